# Sourced by tests/matrix and tests/compose/engine: root folders of Debian releases with
# packages of theirs. They are kept in $TWOQUEUE_ROOTS, and made anew after 14 days, or if
# $fresh says so.

roots=${TWOQUEUE_ROOTS:-/var/cache/twoqueue/roots}

# Makes a root, unless it is there: name, release, packages.
make_root() {
	local name=$1 release=$2 packages=$3 root=$roots/$1 said
	if [[ ! ${fresh:-} && -e $root/made && $(<"$root/made") == "$packages" && $(find "$root/made" -mtime -14) ]]; then
		return
	fi
	say "making the root $name"
	mkdir -p "$roots"
	rm -rf --one-file-system "$root.new"
	if said=$(mmdebstrap --quiet --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' \
		--include="${packages// /,}" "$release" "$root.new" 2>&1); then
		echo "$packages" >"$root.new/made"
		rm -rf --one-file-system "$root"
		mv "$root.new" "$root"
		return
	fi
	echo "$said"
	rm -rf --one-file-system "$root.new"
	[[ -e $root/made ]] || return 1
	say "**** the root $name could not be made anew: using the one of $(date -r "$root/made" +%F)"
}
