package database

import (
	"strings"
	"testing"
)

func TestASchemaIsRefusedWhereNoneCanBe(t *testing.T) {
	for url, says := range map[string]string{
		"mysql://u@h/shop":                "name it in the URL",
		"sqlite:shop.db":                  "has no schemas",
		"postgres://u@h/shop":             "",
		"sqlserver://u:p@h?database=shop": "",
		"":                                "",
	} {
		err := Schema("messaging").Check("EMAIL_SCHEMA", url)
		if (err != nil) != (says != "") || err != nil && (!strings.Contains(err.Error(), says) || !strings.HasPrefix(err.Error(), "EMAIL_SCHEMA: ")) {
			t.Errorf("%s: %v, must say %q", url, err, says)
		}
		if err := Schema("").Check("EMAIL_SCHEMA", url); err != nil {
			t.Errorf("%s: no schema is refused: %v", url, err)
		}
		if says == "" {
			continue
		}
		if _, err := Schema("messaging").Open(t.Context(), url); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("open %s: %v", url, err)
		}
	}
}
