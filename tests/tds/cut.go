package tds

import (
	"encoding/binary"
	"maps"
	"regexp"
	"strings"
)

// The library packs values into parameters; these expressions unpack them.
var (
	cutBytes = regexp.MustCompile(`SUBSTRING\((@p\d+), 5, CAST\(SUBSTRING\((@p\d+), 1, 4\) AS int\)\)`)
	cutText  = regexp.MustCompile(`LEFT\((@p\d+), LEN\((@p\d+)\) - 1\)`)

	parameterName = regexp.MustCompile(`@p\d+\b`)
)

// cut replaces each such expression by the name of its parameter, and the parameter's value by the
// unpacked value. The statement must not use the parameter elsewhere.
func cut(statement string, sent map[string]any) (text string, parameters map[string]any, err error) {
	if !cutBytes.MatchString(statement) && !cutText.MatchString(statement) {
		return statement, sent, nil
	}
	parameters = maps.Clone(sent)
	take := func(out func(any) any) func(string) string {
		return func(expression string) string {
			names := parameterName.FindAllString(expression, -1)
			if names[0] != names[1] {
				return expression // unknown
			}
			parameters[names[0]] = out(sent[names[0]])
			return names[0]
		}
	}
	text = cutBytes.ReplaceAllStringFunc(statement, take(outOfBytes))
	text = cutText.ReplaceAllStringFunc(text, take(outOfText))
	places := make(map[string]bool)
	for _, name := range parameterName.FindAllString(text, -1) {
		if places[name] {
			return "", nil, unknown("use of "+name+" in two places", statement)
		}
		places[name] = true
	}
	return text, parameters, nil
}

// outOfBytes reads the length in the first four bytes, highest byte first: 'binary and varbinary'.
// The result for NULL is NULL.
func outOfBytes(packed any) any {
	b, _ := packed.([]byte)
	if len(b) < 4 {
		return nil
	}
	return b[4:][:min(int(binary.BigEndian.Uint32(b)), len(b)-4)]
}

// outOfText returns the text without its last character, ignoring spaces at the end: 'LEN' counts
// no spaces at the end.
func outOfText(packed any) any {
	s, _ := packed.(string)
	runes := []rune(strings.TrimRight(s, " "))
	if len(runes) == 0 {
		return nil
	}
	return string(runes[:len(runes)-1])
}
