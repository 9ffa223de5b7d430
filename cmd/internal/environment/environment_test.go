package environment_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/cmd/internal/environment"
)

type config struct {
	Number environment.Count `default:"3" desc:"a number"`
	Pause  environment.Span  `default:"2s" desc:"a time, with a meaning that is so long that it cannot stand in one line of eighty characters"`
	Really environment.Truth `default:"false" desc:"whether"`
	Log    environment.Log
}

func TestReadTakesDefaultsAndValues(t *testing.T) {
	t.Setenv("SHOP_PAUSE", "5m")
	t.Setenv("SHOP_REALLY", "true")
	t.Setenv("SHOP_LOG_FORMAT", "json")
	t.Setenv("SHOP_TEST_ANYTHING", "ignored")
	var c config
	if err := environment.Read("SHOP", &c, "SHOP_TEST"); err != nil {
		t.Fatal(err)
	}
	if c.Number != 3 || c.Pause.Duration() != 5*time.Minute || !c.Really {
		t.Errorf("%+v", c)
	}
	var line bytes.Buffer
	logger := c.Log.Logger(&line)
	logger.Debug("not this")
	logger.Info("this")
	if !strings.HasPrefix(line.String(), `{"`) || strings.Count(line.String(), "\n") != 1 {
		t.Errorf("log %q", line.String())
	}
}

func TestReadNamesWhatIsWrong(t *testing.T) {
	for name, c := range map[string]struct{ value, want string }{
		"SHOP_NUMBER":     {"many", `SHOP_NUMBER: "many" is not usable; give a whole number from 1 to 65535, or unset it`},
		"SHOP_PAUSE":      {"-1s", `SHOP_PAUSE: "-1s" is not usable; give a positive duration such as 500ms, 2s or 10m, or unset it`},
		"SHOP_REALLY":     {"ja", `SHOP_REALLY: "ja" is not usable; give true or false, or unset it`},
		"SHOP_LOG_LEVEL":  {"loud", `SHOP_LOG_LEVEL: "loud" is not usable; give debug, info, warn or error, or unset it`},
		"SHOP_LOG_FORMAT": {"xml", `SHOP_LOG_FORMAT: "xml" is not usable; give text or json, or unset it`},
		"SHOP_NUMBR":      {"s3cret", `SHOP_NUMBR: unknown variable; did you mean SHOP_NUMBER?`},
		"SHOP_ELSEWHERE":  {"s3cret", `SHOP_ELSEWHERE: unknown variable; unset it (-help lists all)`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, c.value)
			if err := environment.Read("SHOP", new(config)); err == nil || err.Error() != c.want {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}

func TestHelpKeepsToTheWidth(t *testing.T) {
	var text strings.Builder
	if err := environment.Help(&text, "SHOP", new(config)); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text.String()) {
		if len(line) > 81 {
			t.Errorf("long: %s", line)
		}
	}
	if want := "  SHOP_NUMBER (default 3)\n      a number\n"; !strings.HasPrefix(text.String(), want) {
		t.Errorf("help\n%s", text.String())
	}
}

func TestASecretComesFromOnePlace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("s3cret \r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ value, file, want, wrong string }{
		{"given", "", "given", ""},
		{"", "", "", ""},
		{"", file, "s3cret ", ""},
		{"given", file, "", "SHOP_KEY_FILE: is set, and SHOP_KEY too; unset one of them"},
		{"", file + "x", "", "SHOP_KEY_FILE: the file cannot be read: no such file or directory; name one that can"},
		{"", filepath.Dir(file), "", "SHOP_KEY_FILE: the file cannot be read: is a directory"},
		{"", empty, "", "SHOP_KEY_FILE: the file is empty"},
		{"", "amqp://user:given@host/", "", "SHOP_KEY_FILE: the file cannot be read"}, // the secret in the place of its file
	} {
		got, err := environment.Secret("SHOP_KEY", c.value, c.file)
		if got != c.want || (err != nil) != (c.wrong != "") || err != nil && (!strings.HasPrefix(err.Error(), c.wrong) || strings.Contains(err.Error(), "given")) {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
	}
}
