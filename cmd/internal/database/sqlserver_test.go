package database

import (
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	mssql "github.com/microsoft/go-mssqldb"
	"github.com/microsoft/go-mssqldb/msdsn"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/tds"
)

func standIn(t *testing.T) *tds.Server {
	t.Helper()
	server, err := tds.Start(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return server
}

func TestAMissingSQLServerDatabaseIsNoWrongPassword(t *testing.T) {
	server := standIn(t)
	_, err := Open(t.Context(), server.URL("missing"))
	if !errors.Is(err, ErrNoDatabase) || errors.Is(err, ErrCredentials) {
		t.Errorf("open a missing database: %v", err)
	}
	_, err = Open(t.Context(), strings.Replace(server.URL("master"), "sa:", "sb:", 1))
	if !errors.Is(err, ErrCredentials) || errors.Is(err, ErrNoDatabase) {
		t.Errorf("open with a wrong login: %v", err)
	}
}

func TestARecoveringSQLServerDatabaseIsAwaited(t *testing.T) {
	server := standIn(t)
	server.SetOffline("master", true)
	waited := false
	db, err := Await(t.Context(), server.URL("master"), func(error) {
		waited = true
		server.SetOffline("master", false)
	})
	if err != nil || !waited {
		t.Fatalf("await: %v, waited: %t", err, waited)
	}
	_ = db.Close()
}

func TestASilentSQLServerIsLeft(t *testing.T) {
	server := standIn(t)
	for _, c := range []struct {
		query    string
		migrates bool
		want     time.Duration // 0: without a bound
	}{
		{"", false, silence},
		{"", true, 0},
		{"&connection+timeout=300", false, 5 * time.Minute},
		{"&connection+timeout=300", true, 5 * time.Minute},
		{"&Connection+Timeout=0", false, 0},
	} {
		address, err := sqlServerURL(server.URL("master")+c.query, c.migrates)
		if err != nil {
			t.Fatal(err)
		}
		config, err := msdsn.Parse(address.String())
		if err != nil || config.ConnTimeout != c.want {
			t.Errorf("%+v: the driver waits for %v (%v)", c, config.ConnTimeout, err)
		}
	}

	target, err := url.Parse(server.URL("master"))
	if err != nil {
		t.Fatal(err)
	}
	valve := servertest.NewValve(t, target.Host)
	target.Host = valve.Addr()
	db, err := Open(t.Context(), target.String()+"&connection+timeout=1")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	valve.Vanish()
	if _, err := db.ExecContext(t.Context(), "SELECT 1"); err == nil || t.Context().Err() != nil {
		t.Errorf("ask a silent server: %v", err)
	}
}

func TestSQLServerErrorsThatPassAreAwaited(t *testing.T) {
	for _, number := range []int32{233, 976, 978, 983, 4060, 10928, 10929, 17187, 18401, 40197, 40501, 40613, 49918, 49919, 49920} {
		err := classifySQLServer(mssql.Error{Number: 18456, All: []mssql.Error{{Number: number}, {Number: 18456}}})
		if !mayStart(err) || errors.Is(err, ErrCredentials) {
			t.Errorf("%d: %v, awaited: %t", number, err, mayStart(err))
		}
	}
}

func TestSQLServerIsEncryptedUnlessTheURLRefuses(t *testing.T) {
	for address, want := range map[string]msdsn.Encryption{
		"sqlserver://u:p@db.example?database=shop":                                         msdsn.EncryptionRequired,
		"sqlserver://u:p@127.0.0.1?database=shop":                                          msdsn.EncryptionRequired,
		"sqlserver://u:p@db.example?database=shop&encrypt=disable":                         msdsn.EncryptionDisabled,
		"sqlserver://u:p@db.example?database=shop&Encrypt=strict":                          msdsn.EncryptionStrict,
		"sqlserver://u:p@shop.database.windows.net?database=shop":                          msdsn.EncryptionRequired,
		"azuresql://db.example?database=shop&fedauth=ActiveDirectoryDefault":               msdsn.EncryptionRequired,
		"sqlserver://SHOP.database.windows.net?database=shop&fedauth=ActiveDirectoryMSI":   msdsn.EncryptionRequired,
		"sqlserver://u:p@db.example/INSTANCE?database=shop&multisubnetfailover=false":      msdsn.EncryptionRequired,
		"sqlserver://u:p@shop-group.database.windows.net?database=shop&encrypt=true":       msdsn.EncryptionRequired,
		"sqlserver://u:p@shop-group.database.usgovcloudapi.net?database=shop&encrypt=true": msdsn.EncryptionRequired,
	} {
		parsed, err := sqlServerURL(address, false)
		if err != nil {
			t.Errorf("%s: %v", address, err)
			continue
		}
		config, err := msdsn.Parse(parsed.String())
		if err != nil || config.Encryption != want {
			t.Errorf("%s: encryption %v, must be %v (%v)", address, config.Encryption, want, err)
		}
		if strings.Contains(address, "INSTANCE") && (config.Instance != "INSTANCE" || config.MultiSubnetFailover) {
			t.Errorf("%s: %+v", address, config)
		}
	}
	for _, address := range []string{
		"sqlserver://u:p@shop.database.windows.net?database=shop&encrypt=disable",
		"sqlserver://u:p@shop.Database.Windows.net?database=shop&encrypt=false",
		"azuresql://u:p@shop.database.windows.net?database=shop&encrypt=false",
		"sqlserver://db.example?database=shop&fedauth=ActiveDirectoryDefault&encrypt=false",
	} {
		if _, err := sqlServerConnector(address, false); !errors.Is(err, ErrURL) || !strings.Contains(err.Error(), "encrypt") {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// Today's servers all have TLS, but the stand-in has none.
func TestAServerWithoutTLSIsNamed(t *testing.T) {
	_, err := Open(t.Context(), strings.Replace(standIn(t).URL("master"), "&encrypt=disable", "", 1))
	if !errors.Is(err, ErrURL) || !strings.Contains(err.Error(), "encrypt=disable") {
		t.Errorf("open: %v", err)
	}
}

// fedauth alone chooses a login of Microsoft Entra ID, in both schemes.
func TestFedauthWorksInBothSchemes(t *testing.T) {
	for _, scheme := range []string{"sqlserver", "azuresql"} {
		address := scheme + "://shop.database.windows.net?database=shop&FedAuth="
		if _, err := sqlServerConnector(address+"perhaps", false); !errors.Is(err, ErrURL) {
			t.Errorf("%s: an unknown fedauth: %v", scheme, err)
		}
		if _, err := sqlServerConnector(address+"ActiveDirectoryManagedIdentity", false); err != nil {
			t.Errorf("%s: %v", scheme, err)
		}
	}
}

// No test logs in by Kerberos, since there is no realm here.
func TestKerberosIsLinked(t *testing.T) {
	address := standIn(t).URL("master") + "&authenticator=krb5&krb5-realm=R&krb5-configfile=/none"
	if _, err := Open(t.Context(), address); err == nil || !strings.Contains(err.Error(), "load krb5 config") {
		t.Errorf("open without a krb5.conf: %v", err)
	}
}
