//go:build !unix

package sqlite

import "os"

// number is not told.
func number(os.FileInfo) string { return "" }
