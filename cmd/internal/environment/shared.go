package environment

import (
	"fmt"
	"os"
	"strings"
)

// ReadShared is Read for a command that takes its variables out of another command's
// environment: a variable that the struct does not have is the other one's, and is
// left alone, unless it looks like a slip of the hand for one of the struct's.
func ReadShared(prefix string, config any) error {
	known, err := names(prefix, config)
	if err != nil {
		return err
	}
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, prefix+"_") || known[name] {
			continue
		}
		if near := nearest(name, known); near != "" {
			return fmt.Errorf("%s: unknown variable; did you mean %s?", name, near)
		}
	}
	return process(prefix, config)
}
