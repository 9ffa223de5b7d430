package tds

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"time"
)

// now returns sysutcdatetime() as a datetime2(3).
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// iso is style 126. isoWhole is style 126 of a time without a fraction.
const (
	iso      = "2006-01-02T15:04:05.000"
	isoWhole = "2006-01-02T15:04:05"
)

func (x *execution) time(parameter string) time.Time {
	text, _ := x.parameters[parameter].(string)
	return parseTime(text)
}

// parseTime reads a time in its text form, with a fraction or without.
func parseTime(text string) time.Time {
	t, err := time.Parse(isoWhole, text)
	if err != nil {
		panic(&sqlError{241, 16, "Conversion failed when converting date and/or time from character string."})
	}
	return t
}

// style126 returns a time as a result shows it. Babelfish 4.3 writes a space for the T: measured.
func (x *execution) style126(t any) any {
	at, ok := t.(time.Time)
	if !ok {
		return nil
	}
	text := strings.TrimSuffix(at.Truncate(time.Millisecond).Format(iso), ".000")
	if x.server.options.Babelfish {
		text = strings.Replace(text, "T", " ", 1)
	}
	return text
}

// compare compares in the order of uniqueidentifier: 'Comparing GUID and uniqueidentifier values'
// in ADO.NET's pages.
func compare(a, b guid) int {
	order := func(g guid) []byte { return slices.Concat(g[10:], g[8:10], g[6:8], g[4:6], g[:4]) }
	return bytes.Compare(order(a), order(b))
}

// sortByTime sorts rows by a time, and then by ID.
func sortByTime(rows []row, column string) {
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(a[column].(time.Time).Compare(b[column].(time.Time)), compare(a["id"].(guid), b["id"].(guid)))
	})
}

// top returns the number of rows in TOP (…).
func (x *execution) top(parameter string) int {
	n, _ := x.parameters[parameter].(int64)
	return int(n)
}
