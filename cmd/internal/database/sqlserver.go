package database

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/jmoiron/sqlx"
	mssql "github.com/microsoft/go-mssqldb"
	"github.com/microsoft/go-mssqldb/azuread"
	_ "github.com/microsoft/go-mssqldb/integratedauth/krb5" // authenticator=krb5
	"github.com/microsoft/go-mssqldb/msdsn"

	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
)

var sqlServerKind = kind{
	dialect: migrate.SQLServer,
	open:    openSQLServer,
	in: func(schema migrate.Schema) openers {
		s := sqlserver.Schema(schema)
		return openers{opens(s.Open, sqlserver.Inspect), opensOwn(s.OpenOwnTable, sqlserver.InspectOwnTable), opensInbox(s.OpenInbox)}
	},

	inboxDiagnose: sqlserver.DiagnoseInbox,

	inClear: sqlServerInClear, fixClear: "remove encrypt and TrustServerCertificate",
}

// openSQLServer takes sqlserver:// URLs as the driver does, but encrypts unless the URL sets
// encrypt. azuresql:// means the same. fedauth chooses a login of Microsoft Entra ID, and
// authenticator=krb5 a login of Kerberos.
func openSQLServer(ctx context.Context, read func() string, create bool) (*sqlx.DB, error) {
	return connect(ctx, "sqlserver", read, func(address string) (driver.Connector, error) {
		return sqlServerConnector(address, create)
	}, classifySQLServer)
}

func sqlServerConnector(address string, create bool) (driver.Connector, error) {
	parsed, err := sqlServerURL(address, create)
	if err != nil {
		return nil, err
	}
	if intent, ok := parameter(parsed.Query(), "ApplicationIntent"); ok && strings.EqualFold(intent, "ReadOnly") {
		return nil, fmt.Errorf("%w: ApplicationIntent=ReadOnly leads to a secondary, where no lookup waits; remove it", ErrURL)
	}
	// Without fedauth, azuread's connector works like the driver's.
	connector, err := azuread.NewConnector(parsed.String())
	if err != nil { // the driver's error may contain the URL
		return nil, fmt.Errorf("%w: one of its parameters is not understood", ErrURL)
	}
	return connector, nil
}

// sqlServerURL returns a URL in the driver's form, encrypted by default. Unless migrates is set, it
// bounds a server's silence.
func sqlServerURL(address string, migrates bool) (*url.URL, error) {
	parsed, err := parse(address, "sqlserver://user:password@host:port?database=name")
	if err != nil {
		return nil, err
	}
	parsed.Scheme = "sqlserver"
	query := parsed.Query()
	if _, ok := parameter(query, "encrypt"); !ok {
		query.Set("encrypt", "true")
		parsed.RawQuery = query.Encode()
	}
	if _, token := parameter(query, "fedauth"); token || inAzure(parsed.Hostname()) {
		config, err := msdsn.Parse(parsed.String())
		if err == nil && config.Encryption != msdsn.EncryptionRequired && config.Encryption != msdsn.EncryptionStrict {
			return nil, fmt.Errorf("%w: Azure SQL, and a login by fedauth, take TLS only: remove encrypt", ErrURL)
		}
	}
	if !migrates { // a migration takes its time
		boundSilence(parsed)
	}
	return parsed, nil
}

// inAzure reports whether a host is a server, or the listener of a failover group, of Azure SQL
// Database in one of Microsoft's clouds.
func inAzure(host string) bool {
	for _, domain := range []string{".database.windows.net", ".database.usgovcloudapi.net", ".database.chinacloudapi.cn"} {
		if strings.HasSuffix(strings.ToLower(host), domain) {
			return true
		}
	}
	return false
}

// boundSilence makes the driver drop a connection if the server does not answer within silence,
// unless the URL sets another time. By default the driver waits without a bound. After a failover
// that resets no connection, only TCP ends that wait, after about a quarter of an hour.
func boundSilence(address *url.URL) {
	const name = "connection timeout"
	query := address.Query()
	if _, ok := parameter(query, name); !ok {
		query.Set(name, strconv.Itoa(int(silence.Seconds())))
		address.RawQuery = query.Encode()
	}
}

func sqlServerInClear(address string) []string {
	parsed, err := sqlServerURL(address, false)
	if err != nil {
		return nil
	}
	config, err := msdsn.Parse(parsed.String())
	encrypted := config.Encryption == msdsn.EncryptionRequired || config.Encryption == msdsn.EncryptionStrict
	if err != nil || encrypted && !config.TrustServerCertificate {
		return nil
	}
	return []string{config.Host}
}

// parameter returns a parameter's value. Like the driver, it ignores the case of the name.
func parameter(query url.Values, name string) (string, bool) {
	for key, values := range query {
		if strings.EqualFold(key, name) && len(values) > 0 {
			return values[0], true
		}
	}
	return "", false
}

// The numbers of SQL Server's errors at a login. An error may pass if the database recovers or is
// offline (4060), the server starts (17187, 18401) or closes the connection (233), a replica has not
// taken over yet (976, 978, 983), or Azure moves the database or has no resources now (the rest;
// 'Troubleshoot transient connection errors').
const (
	cannotOpenDatabase = 4060
	loginFailed        = 18456
)

var passingAtLogin = []int32{cannotOpenDatabase, 17187, 18401, 233, 976, 978, 983, 10928, 10929, 40197, 40501, 40613, 49918, 49919, 49920}

// reports returns whether an error in a server's answer has one of numbers. The answer's own number
// is the number of its last error, and that is 18456 for every reason.
func reports(answer mssql.Error, numbers ...int32) bool {
	all := append([]mssql.Error{answer}, answer.All...)
	return slices.ContainsFunc(all, func(e mssql.Error) bool { return slices.Contains(numbers, e.Number) })
}

// noTLS is the driver's text for a server without TLS; the error has no type.
const noTLS = "server does not support encryption"

func classifySQLServer(err error) error {
	var answer mssql.Error
	switch {
	case strings.Contains(err.Error(), noTLS):
		return fmt.Errorf("%w: the server has no TLS: encrypt=disable connects without it", ErrURL)
	case !errors.As(err, &answer):
	case reports(answer, cannotOpenDatabase):
		return fmt.Errorf("%w, or it is offline or recovering: %w", ErrNoDatabase, err)
	case reports(answer, passingAtLogin...):
	case reports(answer, loginFailed):
		return fmt.Errorf("%w: %w", ErrCredentials, err)
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}
