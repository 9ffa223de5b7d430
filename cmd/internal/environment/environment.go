// Package environment reads a command's configuration from the environment. The command declares
// one documented struct, in envconfig's form. Each error is one line that names the variable and
// the fix.
package environment

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/kelseyhightower/envconfig"

	"github.com/twoqueue/twoqueue/cmd/internal/terminal"
)

// Read fills config, a pointer to the struct, from the variables that start with prefix and an
// underscore. A variable that the struct does not have is an error, since it may be mistyped. Read
// ignores variables that start with one of the other prefixes. It also ignores variables that
// Kubernetes sets for a Service whose name starts with the prefix, such as
// EMAIL_GATEWAY_SERVICE_HOST and EMAIL_GATEWAY_PORT_80_TCP.
func Read(prefix string, config any, others ...string) error {
	if err := refuseUnknown(prefix, config, others); err != nil {
		return err
	}
	return process(prefix, config)
}

func process(prefix string, config any) error {
	err := envconfig.Process(prefix, config)
	var parse *envconfig.ParseError
	if errors.As(err, &parse) {
		return fmt.Errorf("%s: %w", parse.KeyName, parse.Err)
	}
	return err
}

// serviceForms matches the variables that Kubernetes sets in each container for each Service
// (Kubernetes' documentation 'Service', 'Environment variables').
var serviceForms = regexp.MustCompile(`^(.+?)_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// ofService reports whether Kubernetes has set a variable for a Service. Each Service also has a
// variable _SERVICE_HOST, so a mistyped variable of ours that ends in _PORT does not count.
func ofService(name string) bool {
	form := serviceForms.FindStringSubmatch(name)
	if form == nil {
		return false
	}
	_, there := os.LookupEnv(form[1] + "_SERVICE_HOST")
	return there
}

func refuseUnknown(prefix string, config any, others []string) error {
	known, err := names(prefix, config)
	if err != nil {
		return err
	}
entries:
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, prefix+"_") || known[name] || ofService(name) {
			continue
		}
		for _, other := range others {
			if strings.HasPrefix(name, other+"_") {
				continue entries
			}
		}
		if near := nearest(name, known); near != "" {
			return fmt.Errorf("%s: unknown variable; did you mean %s?", name, near)
		}
		return fmt.Errorf("%s: unknown variable; unset it (-help lists all)", name)
	}
	return nil
}

func names(prefix string, config any) (map[string]bool, error) {
	var text strings.Builder
	if err := Usage(&text, prefix, config, `{{range .}}{{usage_key .}} {{end}}`); err != nil {
		return nil, err
	}
	known := make(map[string]bool)
	for _, name := range strings.Fields(text.String()) {
		known[name] = true
	}
	return known, nil
}

// Usage writes the variables by a template of envconfig.
func Usage(w io.Writer, prefix string, config any, template string) error {
	return envconfig.Usagef(prefix, config, w, template)
}

// width is the most characters of a line on a terminal.
const width = 80

// Help writes the variables with their defaults and meanings, in lines of at most 80
// characters, between a head and a tail. It panics if config is no struct of variables.
func Help(w io.Writer, prefix string, config any, head, tail string) {
	var variables, text strings.Builder
	err := Usage(&variables, prefix, config, `{{range .}}{{usage_key .}}{{with usage_default .}} (default {{.}}){{end}}
{{usage_description .}}
{{end}}`)
	if err != nil {
		panic(err)
	}
	text.WriteString(head)
	for line := range strings.Lines(variables.String()) {
		if strings.HasPrefix(line, prefix+"_") {
			text.WriteString("  " + line)
			continue
		}
		const indent = "      "
		for _, part := range terminal.Wrap(line, width-len(indent)) {
			text.WriteString(indent + part + "\n")
		}
	}
	text.WriteString(tail)
	_, _ = io.WriteString(w, text.String()) // an error would have no reader
}
