package tds

import (
	"encoding/hex"
	"regexp"
	"strings"
)

// token matches one part of a text: a comment, spaces, a quoted name, a string, or another word or
// character.
var token = regexp.MustCompile(`--[^\n]*|\s+|\[(?:[^\]]|\]\])*\]|'(?:[^']|'')*'|[^\s;\['(),-]+|.`)

// split returns the statements of a text, without comments, with single spaces.
func split(text string) (all []string) {
	var one strings.Builder
	end := func() {
		if s := strings.TrimSpace(one.String()); s != "" {
			all = append(all, s)
		}
		one.Reset()
	}
	for _, t := range token.FindAllString(text, -1) {
		switch {
		case t == ";":
			end()
		case strings.HasPrefix(t, "--"):
		case strings.TrimSpace(t) == "":
			one.WriteByte(' ')
		default:
			one.WriteString(t)
		}
	}
	end()
	return all
}

// list splits a list at its commas outside parentheses.
func list(text string) (parts []string) {
	depth, part := 0, ""
	for _, t := range token.FindAllString(text, -1) {
		switch {
		case t == "(":
			depth++
		case t == ")":
			depth--
		case t == "," && depth == 0:
			parts = append(parts, strings.TrimSpace(part))
			part = ""
			continue
		}
		part += t
	}
	return append(parts, strings.TrimSpace(part))
}

// identifier is a name, quoted or not, with an optional schema.
const identifier = oneName + `(?:\.` + oneName + `)?`

const oneName = `(?:\w+|\[(?:[^\]]|\]\])+\])`

var nameParts = regexp.MustCompile(oneName)

// unquoted returns the name that an identifier stands for. It omits the schema dbo, which is every
// login's default.
func unquoted(text string) string {
	parts := nameParts.FindAllString(text, -1)
	for i, part := range parts {
		if inner, quoted := strings.CutPrefix(part, "["); quoted {
			parts[i] = strings.ReplaceAll(strings.TrimSuffix(inner, "]"), "]]", "]")
		}
	}
	return strings.TrimPrefix(strings.Join(parts, "."), "dbo.")
}

func unquotedAll(texts []string) (names []string) {
	for _, text := range texts {
		names = append(names, unquoted(text))
	}
	return names
}

// parseGUID reads a uniqueidentifier in its text form.
func parseGUID(text string) guid {
	b, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	if err != nil || len(b) != len(guid{}) {
		panic(&sqlError{8169, 16, "Conversion failed when converting from a character string to uniqueidentifier."})
	}
	b[0], b[1], b[2], b[3] = b[3], b[2], b[1], b[0]
	b[4], b[5], b[6], b[7] = b[5], b[4], b[7], b[6]
	return guid(b)
}
