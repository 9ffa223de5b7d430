package sqlserver

import (
	"encoding/binary"
	"strings"
	"unicode/utf16"

	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// packing limits the lengths of parameters. The driver declares a parameter with its length, and
// the server keeps a plan for each declaration ('sp_executesql'). So bytes follow their length, a
// text precedes a full stop, and the statement cuts off the filling: by a function of the parameter
// alone, which a seek accepts like the parameter. The length has the bytes of a number converted to
// binary ('binary and varbinary'). LEN does not count the spaces at the end, and counts characters
// as LEFT does in any collation.
var packing = portable.Packing{
	Name:  func(s string) any { return packed(s) },
	Bytes: packBytes,
	Text:  packText,
	Error: packText,
}

// The lengths of parameters, in bytes and in units of UTF-16. The first length of each is enough
// for the values of every statement: names and keys of at most 255 bytes, and states and runs.
// Above 8,000 bytes a parameter is varbinary(max) at any length.
var (
	bytesRooms = []int{4 + 255, 2000, 8000}
	textRooms  = []int{40, 2001} // an error has at most 1,000 characters
)

func packBytes(b []byte) []byte {
	if b == nil {
		return nil
	}
	packed := make([]byte, room(4+len(b), bytesRooms))
	binary.BigEndian.PutUint32(packed, uint32(len(b)))
	copy(packed[4:], b)
	return packed
}

func packText(s string) string {
	length := len(utf16.Encode([]rune(s))) + 1
	return s + "." + strings.Repeat(" ", room(length, textRooms)-length)
}

// room returns the first of rooms that is large enough, or the length itself.
func room(length int, rooms []int) int {
	for _, room := range rooms {
		if length <= room {
			return room
		}
	}
	return length
}
