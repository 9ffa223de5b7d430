package transit_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/cmd/internal/transit"
)

func TestPasswordsInTheClearAreFound(t *testing.T) {
	for address, want := range map[string]string{
		"postgres://u:s3cret@db.example/shop":                                                    "db.example",
		"postgres://u:s3cret@db.example/shop?sslmode=disable":                                    "db.example",
		"postgres://u:s3cret@db.example/shop?sslmode=prefer":                                     "db.example",
		"postgres://u:s3cret@db.example/shop?sslmode=require":                                    "db.example",
		"postgres://u:s3cret@db.example/shop?sslmode=verify-full":                                "",
		"postgres://u:s3cret@localhost/shop":                                                     "",
		"postgres://u:s3cret@127.0.0.1,10.0.0.2/shop":                                            "10.0.0.2",
		"postgres://u:s3cret@[::1]:5433/shop?sslmode=disable":                                    "",
		"mysql://u:s3cret@db.example/shop":                                                       "db.example",
		"mysql://u:s3cret@db.example/shop?tls=preferred":                                         "db.example",
		"mysql://u:s3cret@db.example/shop?tls=false":                                             "db.example",
		"mysql://u:s3cret@db.example/shop?tls=true":                                              "",
		"mysql://u:s3cret@db.example/shop?tls=skip-verify":                                       "db.example",
		"sqlserver://u:s3cret@db.example?database=shop&encrypt=true&TrustServerCertificate=true": "db.example",
		"mysql://u:s3cret@127.0.0.2/shop":                                                        "",
		"sqlserver://u:s3cret@db.example?database=shop":                                          "",
		"sqlserver://u:s3cret@db.example?database=shop&encrypt=false":                            "db.example",
		"sqlserver://u:s3cret@db.example?database=shop&Encrypt=disable":                          "db.example",
		"sqlserver://u:s3cret@db.example?database=shop&encrypt=true":                             "",
		"sqlserver://u:s3cret@db.example?database=shop&encrypt=strict":                           "",
		"azuresql://db.example?database=shop":                                                    "",
		"azuresql://db.example?database=shop&encrypt=false":                                      "db.example",
		"sqlite:/var/lib/shop.db":                                                                "",
		"oracle://db.example":                                                                    "",
		"postgres://u:s3cret@db.example:port/shop":                                               "",
		"postgres://u:pass@s3cret@db.example/shop":                                               "", // not encoded
		"mysql://u:s3cret@db.example/shop?ssl-cert=/nowhere&ssl-key=/none":                       "",
	} {
		check(t, address, transit.Database(address), want)
	}
	for address, want := range map[string]string{
		"amqp://u:s3cret@mq.example/":                "mq.example",
		"amqp://u:s3cret@localhost,mq.example:5673/": "mq.example",
		"amqps://u:s3cret@mq.example/":               "",
		"amqp://u:s3cret@localhost/":                 "",
		"amqp://u:s3cret@[::1]:5673/":                "",
		"mq.example":                                 "",
	} {
		check(t, address, transit.Broker(address), want)
	}
	for address, want := range map[string]string{
		"http://mq.example:15672": "mq.example", "https://mq.example:15671": "", "http://127.0.0.1:15672": "", "": "",
	} {
		check(t, address, transit.HTTP(address), want)
	}
}

func check(t *testing.T, address string, found *transit.Exposure, want string) {
	t.Helper()
	switch {
	case found == nil:
		if want != "" {
			t.Errorf("%s: nothing is found", address)
		}
	case found.Host != want || found.Fix == "" || strings.Contains(found.String(), "s3cret"):
		t.Errorf("%s: %s; %s", address, found, found.Fix)
	}
}

func TestAnExposureIsRefusedUnlessTheOperatorSaysSo(t *testing.T) {
	for _, c := range []struct {
		insecure         bool
		database, broker string
		want             []string // nothing: it is not refused
	}{
		{false, "postgres://u:s3cret@db.example/shop?sslmode=require", "amqps://mq.example/", []string{"SHOP_DATABASE_URL: ", "db.example", "sslmode=verify-full", "SHOP_INSECURE=true"}},
		{false, "sqlserver://u:s3cret@db.example?database=shop&encrypt=false", "amqps://mq.example/", []string{"SHOP_DATABASE_URL: ", "db.example", "remove encrypt", "SHOP_INSECURE=true"}},
		{false, "sqlite:shop.db", "amqp://u:s3cret@mq.example/", []string{"SHOP_AMQP_URL: ", "mq.example", "amqps://", "SHOP_INSECURE=true"}},
		{true, "postgres://u:s3cret@db.example/shop", "amqp://u:s3cret@mq.example/", nil},
		{false, "postgres://u:s3cret@127.0.0.1/shop", "amqp://u:s3cret@localhost/", nil},
		{false, "postgres://u:s3cret@/shop?host=/run/postgresql", "amqps://u:s3cret@mq.example/", nil},
	} {
		insecure := transit.Insecure(c.insecure)
		err := errors.Join(transit.Refuse(insecure, "SHOP_DATABASE_URL", transit.Database)(c.database),
			transit.Refuse(insecure, "SHOP_AMQP_URL", transit.Broker)(c.broker))
		if (err != nil) != (c.want != nil) {
			t.Errorf("%s, %s: %v", c.database, c.broker, err)
		}
		for _, word := range c.want {
			if err == nil || !strings.Contains(err.Error(), word) || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%v has no %s, or a password", err, word)
			}
		}
	}
}

func TestWarnNamesTheVariable(t *testing.T) {
	var log bytes.Buffer
	transit.Warn(slog.New(slog.NewTextHandler(&log, nil)), "SHOP", "mysql://u:s3cret@db.example/shop", "amqp://u:s3cret@localhost/")
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "SHOP_DATABASE_URL: ") || !strings.Contains(text, "tls=true") || strings.Contains(text, "s3cret") {
		t.Errorf("log %q", text)
	}
}
