# Sourced by tests/run, compose/demo and others: checks for Go, and installs missing Debian packages
# without starting their services.

me=${0##*/}
die() { echo "$me: $*" >&2; exit 1; }
say() { echo "== $*"; }

# The project's packages need only Go, which downloads the modules.
need_go() {
	local version
	command -v go >/dev/null || die "needs Go 1.26 or newer: https://go.dev/doc/install"
	version=$(go env GOVERSION)
	[[ $version =~ go([0-9]+)\.([0-9]+) ]] || die "cannot read the version of Go: $version"
	((BASH_REMATCH[1] > 1 || (BASH_REMATCH[1] == 1 && BASH_REMATCH[2] >= 26))) ||
		die "needs Go 1.26 or newer, this is $version"
}

installed() { [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

missing=()
units=()
need() { # a package, its purpose, and the services that it would start
	installed "$1" && return
	say "installing $1: $2"
	missing+=("$1")
	units+=("${@:3}")
}

need_broker() {
	command -v apt-get >/dev/null && command -v dpkg-query >/dev/null ||
		die "needs Debian or a relative of it: it installs its servers with apt-get"
	need erlang-base "the broker's runtime" epmd.service epmd.socket
	need rabbitmq-server "the broker" rabbitmq-server.service
}

# Installs the packages, and keeps them from starting services now and at the next boot: the
# tests and the demo start private servers.
install_missing() {
	((${#missing[@]})) || return 0
	local sudo=() policy=/usr/sbin/policy-rc.d
	if ((EUID != 0)); then
		command -v sudo >/dev/null || die "to install them, run it as root or install sudo"
		say "using sudo to install, as this is not root"
		sudo=(sudo)
	fi
	if [[ ! -e $policy ]]; then
		trap "${sudo[*]} rm -f $policy" EXIT
		printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee "$policy" >/dev/null
		"${sudo[@]}" chmod +x "$policy"
	fi
	"${sudo[@]}" apt-get update -qq
	"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
		apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 "${missing[@]}" >/dev/null
	if ((${#units[@]})) && command -v systemctl >/dev/null; then
		"${sudo[@]}" systemctl disable -q "${units[@]}" 2>/dev/null ||
			say "could not turn off the autostart of ${units[*]}"
	fi
	if [[ -n $(trap -p EXIT) ]]; then
		"${sudo[@]}" rm -f "$policy"
		trap - EXIT
	fi
}
