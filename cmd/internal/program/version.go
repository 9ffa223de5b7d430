package program

import (
	"cmp"
	"fmt"
	"runtime/debug"
)

// Release returns the release of this build: the version of the module, from its tag or its
// revision; "(devel)" for a build without both, or "(unknown)".
func Release() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return cmp.Or(info.Main.Version, "(unknown)")
	}
	return "(unknown)"
}

// revision is set by the linker in the Dockerfile, where the builder has no repository.
var revision string

// version returns the release, the source's revision and the Go version of this build.
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
