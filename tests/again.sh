# Sourced by tests/run and tests/matrix: go test, with a second try that hides nothing.

# Runs go test on packages: file for its output, folder, packages, arguments (which stand
# behind the packages, as go test takes its own no other way). What
# failed runs once more, by itself; the second result is the one that counts. A package
# that fails and then passes is added to the file "flaky" beside the output.
test_again() {
	local out=$1 folder=$2 packages=$3 failed
	shift 3
	(cd "$folder" && go test $packages "$@") 2>&1 | tee "$out" && return
	failed=$(sed -n 's/^FAIL[[:space:]]\+\([^[:space:]]\+\).*/\1/p' "$out" | sort -u)
	[[ $failed ]] || return 1 # not one of the packages
	say "once more, by themselves: "$failed
	(cd "$folder" && go test $failed "$@" -p 1) 2>&1 | tee "$out.again" || {
		say "failed both times: both results are above"
		return 1
	}
	echo "$failed" >>"$(dirname "$out")/flaky"
}

# Tells of what failed once: such a test is a defect to mend. Its folder is that of the
# output files.
tell_flaky() {
	[[ -e $1/flaky ]] || return 0
	echo
	echo "**** FLAKY ****  failed, then passed; both results are above:"
	sort -u "$1/flaky" | sed 's/^/**** FLAKY ****  /'
	echo "**** FLAKY ****  Each of them has a defect, in the test or in the product: mend it."
}
