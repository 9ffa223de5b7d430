package environment

import (
	"fmt"
	"os"
	"strings"
)

// ReadShared is Read for a command that shares another command's environment. It ignores a variable
// that the struct does not have, unless the name looks like a typing error for a name of the struct.
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
