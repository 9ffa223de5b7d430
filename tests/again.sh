# Sourced by tests/run and tests/matrix: go test, with a second try that hides nothing.

# Runs go test on packages: file for its output, folder, packages, arguments (which stand
# behind the packages, as go test takes its own no other way). It leaves failed packages to
# try_again.
test_once() {
	local out=$1 folder=$2 packages=$3 failed
	shift 3
	(cd "$folder" && go test $packages "$@") 2>&1 | tee "$out" && return
	failed=$(sed -n 's/^FAIL[[:space:]]\+\([^[:space:]]\+\).*/\1/p' "$out" | sort -u)
	printf '%q ' "$(go env CGO_ENABLED)" "$folder" "${failed:-$packages}" "$@" >"$out.failed"
}

# Runs the failed packages once more, and nothing beside them: folder of the output files.
# The second result counts. A package that fails and then passes is added to
# the file "flaky" there.
try_again() {
	local note again failed=
	for note in "$1"/*.failed; do
		[[ -e $note ]] || continue
		eval "again=($(<"$note"))" # CGO_ENABLED, folder, packages, arguments
		say "once more, by themselves: "${again[2]}
		if (cd "${again[1]}" && CGO_ENABLED=${again[0]} go test ${again[2]} "${again[@]:3}" -p 1) 2>&1 | tee "${note%.failed}.again"; then
			printf '%s\n' ${again[2]} >>"$1/flaky"
		else
			failed=yes
		fi
		rm "$note"
	done
	[[ ! $failed ]] || say "failed both times: both results are above"
	[[ ! $failed ]]
}

# Names the packages that failed once: such a test is a defect to fix. Its argument is the
# folder of the output files.
name_flaky() {
	[[ -e $1/flaky ]] || return 0
	echo
	echo "**** FLAKY ****  failed, then passed; both results are above:"
	sort -u "$1/flaky" | sed 's/^/**** FLAKY ****  /'
	echo "**** FLAKY ****  Each of them has a defect, in the test or in the product: fix it."
}
