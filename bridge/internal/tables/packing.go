package tables

import "regexp"

// A Packing brings bytes and texts of all lengths into parameters of a few, for a server
// that keeps a plan for each length of a parameter.
type Packing struct {
	Bytes func(b []byte) []byte // of nil, nil
	Text  func(s string) string

	// BytesOut and TextOut are the expressions that take out of the parameter $1 what was
	// packed in it.
	BytesOut, TextOut string
}

// unpacked is the Packing of all other servers.
var unpacked = Packing{func(b []byte) []byte { return b }, func(s string) string { return s }, "$1", "$1"}

var packedBytes, packedText = regexp.MustCompile(`\bbytes\(([^()]+)\)`), regexp.MustCompile(`\btext\(([^()]+)\)`)

// Unpack puts the expressions into a statement in which bytes(…) and text(…) stand around
// the packed parameters.
func (p Packing) Unpack(statement string) string {
	return packedText.ReplaceAllString(packedBytes.ReplaceAllString(statement, p.BytesOut), p.TextOut)
}
