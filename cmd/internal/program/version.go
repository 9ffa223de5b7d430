package program

import (
	"cmp"
	"fmt"
	"runtime/debug"
)

// Release is this build's: the version of the module, from its tag or its revision; "(devel)"
// for a build that knows neither, or "(unknown)".
func Release() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return cmp.Or(info.Main.Version, "(unknown)")
	}
	return "(unknown)"
}

// revision is given by the Dockerfile to the linker: the builder is sent no repository.
var revision string

// version says of which release, of which revision of the source and by which Go a build is.
func version() string {
	revision, changed, by := cmp.Or(revision, "unknown"), "", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		by = info.GoVersion
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				revision = s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				changed = ", changed since"
			}
		}
	}
	return fmt.Sprintf("%s, revision %s%s, %s", Release(), revision, changed, by)
}
