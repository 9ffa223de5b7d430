package tables

import "regexp"

// A Packing brings bytes and texts of all lengths into parameters of a few, for a server
// that keeps a plan for each length of a parameter.
type Packing struct {
	Bytes func(b []byte) []byte // of nil, nil
	Text  func(s string) string
	Error func(s string) string // of an error's text, in any characters; nil: Text

	// BytesOut, TextOut and ErrorOut are the expressions that take out of the parameter $1 what
	// was packed in it. Without Error, ErrorOut does not count.
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

// Unpack puts the expressions into a statement in which bytes(…), text(…) and error(…) stand
// around the packed parameters.
func (p Packing) Unpack(statement string) string {
	statement = packedBytes.ReplaceAllString(statement, p.BytesOut)
	statement = packedText.ReplaceAllString(statement, p.TextOut)
	return packedError.ReplaceAllString(statement, p.withError().ErrorOut)
}
