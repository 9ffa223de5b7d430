package sqlserver

import (
	"database/sql"
	"fmt"
	"strconv"
	"strings"
)

// product are the columns of a serverProduct. Properties that the server does not know
// are null.
const product = `CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(60)) AS product,
	COALESCE(CAST(SERVERPROPERTY('EngineEdition') AS int), 0) AS edition,
	COALESCE(CAST(SERVERPROPERTY('babelfish') AS int), 0) AS babelfish`

// A serverProduct is what a server says of itself ('SERVERPROPERTY (Transact-SQL)').
type serverProduct struct {
	Product   sql.NullString // four numbers, the first of which is the major version
	Edition   int
	Babelfish bool
}

const (
	// minMajor is SQL Server 2016, the first to have DATEDIFF_BIG.
	minMajor = 13
	// lastOwnEdition is the last EngineEdition of a SQL Server that one runs oneself, but
	// for Azure SQL Edge. The later ones call themselves version 12, and so does Babelfish.
	lastOwnEdition = 4
)

// check returns an error if the server is older than any that will do.
func (p serverProduct) check() error {
	major, _, _ := strings.Cut(p.Product.String, ".")
	if n, err := strconv.Atoi(major); p.Babelfish || p.Edition > lastOwnEdition || err == nil && n >= minMajor {
		return nil
	}
	return fmt.Errorf("the server is of version %q, must be %d (SQL Server 2016) at least", p.Product.String, minMajor)
}
