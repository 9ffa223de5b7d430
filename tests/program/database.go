package program

import (
	"net/url"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
)

// DatabaseURL converts the address of a database, as stages and package servertest give it to its
// driver, into the form that the commands take.
func DatabaseURL(t testing.TB, address string) string {
	t.Helper()
	if file, ok := strings.CutPrefix(address, "file:"); ok {
		path, _, _ := strings.Cut(file, "?")
		return "sqlite:" + path
	}
	if strings.Contains(address, "://") {
		return address
	}
	config, err := mysql.ParseDSN(address)
	if err != nil {
		t.Fatalf("the address is neither a URL nor a DSN of MySQL: %v", err)
	}
	converted := url.URL{Scheme: "mysql", User: url.UserPassword(config.User, config.Passwd), Host: config.Addr, Path: config.DBName}
	return converted.String()
}
