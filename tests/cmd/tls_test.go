package cmd_test

import (
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// authorityFiles has an authority and the certificates that it has signed, as files.
type authorityFiles struct {
	t *testing.T
	*servers.Authority
	dir string
	ca  string
}

func newAuthorityFiles(t *testing.T) *authorityFiles {
	t.Helper()
	authority, err := servers.NewAuthority()
	must(t, err)
	p := &authorityFiles{t: t, Authority: authority, dir: t.TempDir()}
	p.ca = p.file("ca.pem", authority.Certificate())
	return p
}

func (p *authorityFiles) file(name string, content []byte) string {
	p.t.Helper()
	path := filepath.Join(p.dir, name)
	must(p.t, os.WriteFile(path, content, 0o600))
	return path
}

// client issues a client's certificate and key.
func (p *authorityFiles) client(name string) (certificate, key string) {
	p.t.Helper()
	c, k, err := p.Issue(name)
	must(p.t, err)
	return p.file(name+".pem", c), p.file(name+".key", k)
}

// with sets parameters of a URL, given as pairs of name and value. An empty value removes the
// parameter.
func with(t *testing.T, address string, pairs ...string) string {
	t.Helper()
	parsed, err := url.Parse(address)
	must(t, err)
	query := parsed.Query()
	for i := 0; i < len(pairs); i += 2 {
		if query.Del(pairs[i]); pairs[i+1] != "" {
			query.Set(pairs[i], pairs[i+1])
		}
	}
	parsed.RawQuery = query.Encode()
	return parsed.String()
}

func elsewhere(address string) string { return strings.Replace(address, "127.0.0.1", "localhost", 1) }

const (
	nameHostAndAuthority  = "name the certificate's host in the URL, and the file of the authority that signed the certificate"
	nameClientCertificate = "name the files of a certificate that the server accepts"
)

// refusal is a verifier's error where a server refuses it or it refuses the server. says is a
// regular expression. The tests of cmd/internal/database and bridge check the files that a URL
// may name.
type refusal struct{ address, says, fix string }

// allRefused runs a verifier with each address in place of a good one.
func allRefused(t *testing.T, code int, variable string, s *stage.Stage, cases map[string]refusal) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			env := []string{"BRIDGE_DATABASE_URL=" + program.DatabaseURL(t, s.DatabaseURL), "BRIDGE_AMQP_URL=" + s.AMQP, variable + "=" + c.address}
			if line := refused(t, code, variable, c.fix, env...); !regexp.MustCompile(c.says).MatchString(line) {
				t.Errorf("it does not say %s", c.says)
			}
		})
	}
}

func TestTLSToRabbitMQ(t *testing.T) {
	t.Parallel()
	ours, theirs := newAuthorityFiles(t), newAuthorityFiles(t)
	certificate, key := ours.client("guest")
	stranger, strangersKey := theirs.client("guest")
	broker := servertest.StartRabbitMQ(t, &servers.RabbitMQOptions{
		TLS: ours.Authority, Plugins: []string{"rabbitmq_auth_mechanism_ssl"},
		Config: "auth_mechanisms.1 = PLAIN\nauth_mechanisms.2 = EXTERNAL\nssl_cert_login_from = common_name",
	})
	t.Cleanup(broker.Kill) // its data is not needed, and an orderly stop takes seconds
	good := with(t, broker.URL(), "cacertfile", ours.ca, "certfile", certificate, "keyfile", key)
	s := stage.On(t, stage.Postgres, good, bridge.Topology{Queue: "staging"})
	works(t, s, "BRIDGE_AMQP_URL="+good)
	t.Run("no password", func(t *testing.T) {
		works(t, s, "BRIDGE_AMQP_URL="+with(t, strings.Replace(good, "guest:guest@", "", 1), "auth_mechanism", "external"))
	})
	allRefused(t, 5, "BRIDGE_AMQP_URL", s, map[string]refusal{
		"authority of others":   {with(t, good, "cacertfile", theirs.ca), "unknown authority", nameHostAndAuthority},
		"other host":            {elsewhere(good), "match localhost", nameHostAndAuthority},
		"no certificate":        {with(t, good, "certfile", "", "keyfile", ""), "certificate", nameClientCertificate},
		"certificate of others": {with(t, good, "certfile", stranger, "keyfile", strangersKey), "unknown certificate authority", nameClientCertificate},
		"in the clear":          {"amqp://guest:guest@" + broker.Addr() + "/", "broker unavailable", "check that the broker runs"},
	})
	t.Run("by options", func(t *testing.T) {
		pair, err := tls.LoadX509KeyPair(certificate, key)
		must(t, err)
		config := &tls.Config{RootCAs: x509.NewCertPool(), Certificates: []tls.Certificate{pair}}
		if _, err := bridge.Dial(t.Context(), broker.URL(), &bridge.BrokerOptions{TLS: config}); !errors.As(err, new(x509.UnknownAuthorityError)) || !errors.Is(err, bridge.ErrUnavailable) {
			t.Errorf("authority unknown: %v", err)
		}
		config.RootCAs.AppendCertsFromPEM(ours.Certificate())
		if _, err := bridge.Dial(t.Context(), elsewhere(broker.URL()), &bridge.BrokerOptions{TLS: config}); !errors.As(err, new(x509.HostnameError)) {
			t.Errorf("other host: %v", err)
		}
		opened, err := bridge.Dial(t.Context(), broker.URL(), &bridge.BrokerOptions{TLS: config})
		must(t, err)
		opened.Close()
	})
}

func TestTLSToPostgreSQL(t *testing.T) {
	t.Parallel()
	ours, theirs := newAuthorityFiles(t), newAuthorityFiles(t)
	certificate, key := ours.client("postgres")
	other, othersKey := ours.client("other")
	stranger, strangersKey := theirs.client("postgres")
	server := servertest.StartPostgres(t, &servers.PostgresOptions{Fast: true, TLS: ours.Authority})
	good := with(t, server.URL(), "sslmode", "verify-full", "sslrootcert", ours.ca, "sslcert", certificate, "sslkey", key)
	kind := stage.Postgres
	kind.URL = func(testing.TB) string { return good }
	s := stage.On(t, kind, servertest.Vhost(t), bridge.Topology{Queue: "staging"})
	works(t, s)
	allRefused(t, 4, "BRIDGE_DATABASE_URL", s, map[string]refusal{
		"authority of others":   {with(t, good, "sslrootcert", theirs.ca), "unknown authority", nameHostAndAuthority},
		"other host":            {elsewhere(good), "match localhost", nameHostAndAuthority},
		"no certificate":        {with(t, good, "sslcert", "", "sslkey", ""), "valid client certificate", "correct user or password"},
		"certificate of others": {with(t, good, "sslcert", stranger, "sslkey", strangersKey), "unknown certificate authority|reset by peer|broken pipe", nameClientCertificate},
		"other user":            {with(t, good, "sslcert", other, "sslkey", othersKey), "trust", "correct user or password"},
		"in the clear":          {with(t, server.URL(), "sslmode", "disable"), "no encryption", "correct user or password"},
	})
}

func TestTLSToMariaDB(t *testing.T) {
	t.Parallel()
	ours, theirs := newAuthorityFiles(t), newAuthorityFiles(t)
	certificate, key := ours.client("shop")
	stranger, strangersKey := theirs.client("shop")
	server := servertest.StartMariaDB(t, &servers.MariaDBOptions{Fast: true, TLS: ours.Authority})
	config, err := mysql.ParseDSN(server.DSN())
	must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ours.Certificate())
	must(t, mysql.RegisterTLSConfig(t.Name(), &tls.Config{RootCAs: roots}))
	t.Cleanup(func() { mysql.DeregisterTLSConfig(t.Name()) })
	config.TLSConfig, config.DBName, config.MultiStatements = t.Name(), "mysql", true
	root, err := sql.Open("mysql", config.FormatDSN())
	must(t, err)
	defer root.Close()
	if _, err := root.ExecContext(t.Context(), `CREATE DATABASE shop; CREATE USER shop IDENTIFIED BY '`+password+`' REQUIRE X509; GRANT ALL ON shop.* TO shop;
CREATE USER unchecked IDENTIFIED BY '`+password+`'; SET GLOBAL require_secure_transport = ON`); err != nil {
		t.Fatal(err)
	}
	config.DBName, config.MultiStatements = "shop", false
	kind := stage.MariaDB
	kind.URL = func(testing.TB) string { return config.FormatDSN() }
	s := stage.On(t, kind, servertest.Vhost(t), bridge.Topology{Queue: "staging"})
	good := "mysql://shop:" + password + "@" + server.Addr() + "/shop?" +
		url.Values{"ssl-ca": {ours.ca}, "ssl-cert": {certificate}, "ssl-key": {key}}.Encode()
	works(t, s, "BRIDGE_DATABASE_URL="+good)
	allRefused(t, 4, "BRIDGE_DATABASE_URL", s, map[string]refusal{
		"authority of others":   {with(t, good, "ssl-ca", theirs.ca), "unknown authority", nameHostAndAuthority},
		"other host":            {elsewhere(good), "match localhost", nameHostAndAuthority},
		"no certificate":        {with(t, good, "ssl-cert", "", "ssl-key", ""), "Access denied", "correct user or password"},
		"certificate of others": {with(t, good, "ssl-cert", stranger, "ssl-key", strangersKey), "database not reachable", "check that the database exists"},
	})
	t.Run("in the clear", func(t *testing.T) {
		clear := strings.Replace(with(t, good, "ssl-ca", "", "ssl-cert", "", "ssl-key", ""), "//shop:", "//unchecked:", 1)
		words := refused(t, 4, "BRIDGE_DATABASE_URL", "", "BRIDGE_DATABASE_URL="+clear, "BRIDGE_AMQP_URL="+s.AMQP)
		switch {
		case strings.Contains(words, "Error 1045"): // MariaDB 10.11 does not mention TLS
		case !strings.Contains(words, "without TLS: Error 3159"), !strings.Contains(words, "add ssl-ca=FILE"):
			t.Error("it names neither the server's need of TLS nor the fix")
		}
	})
}
