package sqlserver

import (
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

// The driver would send a uuid.UUID, which is a driver.Valuer of a string, as nvarchar. Its own type
// mssql.UniqueIdentifier would have to be imported. So an ID is sent as the 16 bytes of varbinary
// that SQL Server stores; a CAST of the parameter makes it a uniqueidentifier. An ID is read by a
// CAST to binary(16), or, in an OUTPUT, compared with the IDs of the statement. So the connection's
// 'guid conversion' does not matter. Many IDs are pieces of one parameter, which has one of the
// sizes below.

// sizes are the numbers of IDs that fit into one statement. They are few, so that the server keeps
// few plans, and no statement comes near the 5,000 locks at which SQL Server would lock the whole
// table. 500 IDs are 8,000 bytes, the most that varbinary takes without becoming varbinary(max).
var sizes = [...]int{1, 16, 128, 500}

// chunk bounds the IDs of one statement.
const chunk = 500

// A statement has a text for each of the sizes.
type statement map[int]string

// forIDs makes a statement of a text in which $ids stands for a table of the IDs in @p1. There is
// room in @p1 for one of the sizes; the first @p2 bytes count. more are further words, each
// followed by its replacement.
func forIDs(text string, more ...string) statement { return forEach("", text, more...) }

// forEach is forIDs with further columns of that table.
func forEach(columns, text string, more ...string) statement {
	s := make(statement, len(sizes))
	for _, size := range sizes {
		s[size] = strings.NewReplacer(append([]string{"$ids", asked(size, columns)}, more...)...).Replace(text)
	}
	return s
}

// asked returns that table. pos is the place of an ID in @p1, counted from 1.
func asked(size int, columns string) string {
	places := make([]string, size)
	for i := range places {
		places[i] = fmt.Sprintf("(%d)", 16*i+1)
	}
	return `(SELECT CAST(SUBSTRING(@p1, pos, 16) AS uniqueidentifier) AS id` + columns + ` FROM (VALUES ` +
		strings.Join(places, ", ") + `) AS place (pos) WHERE pos <= @p2) AS asked`
}

// fill returns the text for that number of IDs, with the schema in it, and its first two arguments.
func (s statement) fill(in schema.Name, ids []uuid.UUID) (text string, packed []byte, used int) {
	size := chunk
	for _, room := range sizes {
		if len(ids) <= room {
			size = room
			break
		}
	}
	packed = make([]byte, 16*size)
	for i, id := range ids {
		stored := swapped(id)
		copy(packed[16*i:], stored[:])
	}
	return in.In(s[size]), packed, 16 * len(ids)
}

// swapped converts a UUID's bytes to SQL Server's order, and back: the first three fields begin
// with their lowest byte.
func swapped(id uuid.UUID) uuid.UUID {
	id[0], id[1], id[2], id[3] = id[3], id[2], id[1], id[0]
	id[4], id[5] = id[5], id[4]
	id[6], id[7] = id[7], id[6]
	return id
}

// argument returns id as a parameter, which a CAST makes a uniqueidentifier.
func argument(id uuid.UUID) []byte {
	stored := swapped(id)
	return stored[:]
}

// readID returns the id in a column that was cast to binary(16).
func readID(column []byte) (uuid.UUID, error) {
	id, err := uuid.FromBytes(column)
	return swapped(id), err
}

func readIDs(column [][]byte) ([]uuid.UUID, error) {
	ids := make([]uuid.UUID, len(column))
	for i, value := range column {
		id, err := readID(value)
		if err != nil {
			return nil, err
		}
		ids[i] = id
	}
	return ids, nil
}

// readChanged returns the IDs in an OUTPUT, which Babelfish refuses to CAST. So the driver has
// swapped their bytes if 'guid conversion' is on. Each ID is one of asked, which shows the order of
// its bytes.
func readChanged(column [][]byte, asked []uuid.UUID) ([]uuid.UUID, error) {
	among := make(map[uuid.UUID]bool, len(asked))
	for _, id := range asked {
		among[id] = true
	}
	ids, err := readIDs(column)
	for i, id := range ids {
		if !among[id] {
			ids[i] = swapped(id)
		}
	}
	return ids, err
}
