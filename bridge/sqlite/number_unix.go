//go:build unix

package sqlite

import (
	"fmt"
	"os"
	"syscall"
)

// number returns the file's device and inode.
func number(file os.FileInfo) string {
	if s, ok := file.Sys().(*syscall.Stat_t); ok {
		return fmt.Sprintf(" (device %d, inode %d)", s.Dev, s.Ino)
	}
	return ""
}
