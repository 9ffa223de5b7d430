package portable

import "regexp"

// A Packing puts bytes and texts of all lengths into parameters of a few lengths, for a server that
// keeps a plan for each length of a parameter.
type Packing struct {
	Bytes func(b []byte) []byte // nil for nil
	Text  func(s string) string
	Error func(s string) string // packs an error's text, in any characters; nil: Text

	// BytesOut, TextOut and ErrorOut are the expressions that unpack the parameter $1. Without
	// Error, ErrorOut does not count.
	BytesOut, TextOut, ErrorOut string
}

// unpacked is the Packing of all other servers.
var unpacked = Packing{
	Bytes: func(b []byte) []byte { return b }, Text: func(s string) string { return s },
	BytesOut: "$1", TextOut: "$1",
}

// withError returns a Packing that has an Error.
func (p Packing) withError() Packing {
	if p.Error == nil {
		p.Error, p.ErrorOut = p.Text, p.TextOut
	}
	return p
}

var (
	packedBytes = regexp.MustCompile(`\bbytes\(([^()]+)\)`)
	packedText  = regexp.MustCompile(`\btext\(([^()]+)\)`)
	packedError = regexp.MustCompile(`\berror\(([^()]+)\)`)
)

// Unpack replaces bytes(…), text(…) and error(…) around the packed parameters of a statement by the
// expressions that unpack them.
func (p Packing) Unpack(statement string) string {
	statement = packedBytes.ReplaceAllString(statement, p.BytesOut)
	statement = packedText.ReplaceAllString(statement, p.TextOut)
	return packedError.ReplaceAllString(statement, p.withError().ErrorOut)
}
