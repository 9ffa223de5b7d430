package email

import (
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// Schema is the published form of a message's body.
//
//go:embed schema.json
var Schema string

var compiled = compile()

func compile() *jsonschema.Schema {
	const name = "email.json"
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(Schema))
	if err != nil {
		panic(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource(name, document); err != nil {
		panic(err)
	}
	return compiler.MustCompile(name)
}

// validate checks a decoded body against the schema.
func validate(value any) error {
	var invalid *jsonschema.ValidationError
	err := compiled.Validate(value)
	if errors.As(err, &invalid) {
		return explain(invalid)
	}
	return err
}

// explain names the first place that breaks the schema. The library's text would quote the value,
// which is confidential and must not be logged.
func explain(invalid *jsonschema.ValidationError) error {
	if _, alternatives := invalid.ErrorKind.(*kind.AnyOf); alternatives {
		return errors.New(`/: "text" or "html" is missing`)
	}
	if len(invalid.Causes) > 0 {
		return explain(invalid.Causes[0])
	}
	place := "/" + strings.Join(invalid.InstanceLocation, "/")
	switch broken := invalid.ErrorKind.(type) {
	case *kind.Required:
		return fmt.Errorf("%s: %q is missing", place, broken.Missing)
	case *kind.AdditionalProperties:
		return fmt.Errorf("%s: %q is unknown", place, broken.Properties)
	case *kind.Type:
		return fmt.Errorf("%s: is a %s, not a %s", place, broken.Got, strings.Join(broken.Want, " or "))
	}
	return fmt.Errorf("%s: breaks the schema's %q", place, strings.Join(invalid.ErrorKind.KeywordPath(), "/"))
}
