//go:build !unix

package sqlite

import "os"

// number returns no number: it is unknown here.
func number(os.FileInfo) string { return "" }
