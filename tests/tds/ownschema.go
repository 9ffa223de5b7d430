package tds

import (
	"regexp"
	"strings"
)

// marked replaces the schema in front of a bridge table's name; alone replaces the schema
// elsewhere.
const marked, alone = "\x00", "\x01"

var bridgeTable = regexp.MustCompile(`(?i)\bbridge_(?:ledger|identity|watermark|parked|inbox|inbox_pending|mark|kept|ledger_version|inbox_version)\b`)

// withoutSchema removes Options.Schema in front of the names of the bridge's tables. A name without
// the schema is an error: no such table exists.
func (o *Options) withoutSchema(statement string) (string, error) {
	if o.Schema == "" {
		return statement, nil
	}
	schema := bracketed(o.Schema) + "."
	inLiteral := strings.ReplaceAll(schema, "'", "''")
	text := strings.NewReplacer("N'"+inLiteral+"bridge_", "'"+marked+"bridge_", inLiteral+"bridge_", marked+"bridge_", schema+"bridge_", marked+"bridge_", bracketed(o.Schema), alone).Replace(statement)
	for _, at := range bridgeTable.FindAllStringIndex(text, -1) {
		if !strings.HasSuffix(text[:at[0]], marked) {
			return "", noObject(text[at[0]:at[1]])
		}
	}
	return strings.NewReplacer(marked, "", alone, bracketed(o.Schema)).Replace(text), nil
}

func bracketed(name string) string { return "[" + strings.ReplaceAll(name, "]", "]]") + "]" }
