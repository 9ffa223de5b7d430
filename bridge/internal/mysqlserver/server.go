// Package mysqlserver reads the errors and variables of a MySQL or MariaDB server, for packages
// mysql and mysqlinspect.
package mysqlserver

import (
	"errors"
	"reflect"
	"strings"
)

// Number returns the number of a server's error, or 0. The driver's error has it in a field and no
// method that returns it. To name the driver's type would mean to import, and so to register, the
// driver: so the field is found by its name.
func Number(err error) uint64 {
	for ; err != nil; err = errors.Unwrap(err) {
		value := reflect.Indirect(reflect.ValueOf(err))
		if value.Kind() != reflect.Struct {
			continue
		}
		field, ok := value.Type().FieldByName("Number")
		if ok && len(field.Index) == 1 && value.Field(field.Index[0]).CanUint() {
			return value.Field(field.Index[0]).Uint()
		}
	}
	return 0
}

// Off reports whether value means that a variable is off.
func Off(value string) bool { return value == "0" || strings.EqualFold(value, "OFF") }
