package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"
)

// The number is found by the name of a field: this test must fail if a driver renames it.
func TestErrorsAreRecognizedByTheDriversNumber(t *testing.T) {
	type wrapper struct{ error }
	for name, c := range map[string]struct {
		err  error
		want uint64
	}{
		"the driver's":   {&driver.MySQLError{Number: 1205}, 1205},
		"wrapped":        {fmt.Errorf("query: %w", &driver.MySQLError{Number: 1213}), 1213},
		"none":           {nil, 0},
		"a nil pointer":  {(*driver.MySQLError)(nil), 0},
		"another":        {sql.ErrNoRows, 0},
		"the context's":  {context.DeadlineExceeded, 0},
		"embedding":      {wrapper{errors.New("x")}, 0},
		"embedding none": {wrapper{}, 0},
	} {
		if got := errorNumber(c.err); got != c.want {
			t.Errorf("%s: %d, must be %d", name, got, c.want)
		}
	}
}

func TestARefusalUnderSafeUpdatesNamesTheSetting(t *testing.T) {
	if err := classify(&driver.MySQLError{Number: 1175}); !strings.Contains(err.Error(), "sql_safe_updates=0") {
		t.Errorf("%v, must name the setting", err)
	}
}
