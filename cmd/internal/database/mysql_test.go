package database

import (
	"testing"
	"time"
)

// When the driver reads tls=true, its DSN has no host yet.
func TestTheCertificateOfMySQLIsForTheHostOfTheURL(t *testing.T) {
	for _, address := range []string{"mysql://u:p@db.example/shop?tls=true", "mysql://u:p@db.example:3307/shop?tls=true"} {
		config, err := mysqlConfig(address)
		if err != nil {
			t.Fatal(err)
		}
		if config.TLS == nil || config.TLS.InsecureSkipVerify || config.TLS.ServerName != "db.example" {
			t.Errorf("%s: %+v", address, config.TLS)
		}
	}
	if config, err := mysqlConfig("mysql://u:p@db.example/shop"); err != nil || config.TLS != nil {
		t.Errorf("without it: %+v, %v", config, err)
	}
}

// If the host is gone, nothing else ends the driver's COMMIT.
func TestAMySQLThatFallsSilentIsLeft(t *testing.T) {
	for parameters, want := range map[string]time.Duration{"": silence, "?readTimeout=5m": 5 * time.Minute} {
		if config, err := mysqlConfig("mysql://u:p@db.example/shop" + parameters); err != nil || config.ReadTimeout != want {
			t.Errorf("%q: it is left after %v (error %v), want %v", parameters, config.ReadTimeout, err, want)
		}
	}
}
