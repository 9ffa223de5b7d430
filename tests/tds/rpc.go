package tds

import (
	"encoding/binary"
	"fmt"
)

const spExecuteSQL = 10

// readRPC reads a call of sp_executesql ([MS-TDS] 2.2.6.6): its statement, the declaration of its
// parameters, and the parameters by name.
func readRPC(d *decoder) (text, declaration string, parameters map[string]any, err error) {
	if d.uint16() != 0xFFFF || d.uint16() != spExecuteSQL {
		return "", "", nil, &sqlError{2812, 16, "the stand-in has no procedure but sp_executesql"}
	}
	d.uint16() // flags
	parameters = make(map[string]any)
	for n := 0; len(d.rest) > 0 && d.err == nil; n++ {
		name := d.name()
		d.byte() // flags
		value, err := readValue(d)
		if err != nil {
			return "", "", nil, err
		}
		switch {
		case n == 0:
			text, _ = value.(string)
		case n == 1:
			declaration, _ = value.(string)
		default:
			parameters[name] = value
		}
	}
	return text, declaration, parameters, d.err
}

// readValue reads a TYPE_INFO and a value ([MS-TDS] 2.2.5.6 and 2.2.5.5.1).
func readValue(d *decoder) (any, error) {
	kind := d.byte()
	switch kind {
	case kindInt, kindBit:
		d.byte() // maximum length
		value := d.bytes(int(d.byte()))
		switch {
		case len(value) == 0:
			return nil, nil
		case kind == kindBit:
			return value[0] != 0, nil
		case len(value) == 8:
			return int64(binary.LittleEndian.Uint64(value)), nil
		}
	case kindText, kindBinary:
		long := d.uint16() == 0xFFFF
		if kind == kindText {
			d.bytes(len(collation))
		}
		var value []byte
		if long {
			value = readLong(d)
		} else if n := d.uint16(); n != 0xFFFF {
			value = d.bytes(int(n))
		}
		switch {
		case value == nil:
			return nil, nil
		case kind == kindText:
			return fromUTF16(value), nil
		default:
			return value, nil
		}
	}
	return nil, unknown("parameter", fmt.Sprintf("of type %#x", kind))
}

// readLong reads a value that comes in parts ([MS-TDS] 2.2.5.2.3).
func readLong(d *decoder) (value []byte) {
	const null = 1<<64 - 1
	if d.uint64() == null {
		return nil
	}
	value = []byte{}
	for d.err == nil {
		n := d.uint32()
		if n == 0 {
			break
		}
		value = append(value, d.bytes(int(n))...)
	}
	return value
}
