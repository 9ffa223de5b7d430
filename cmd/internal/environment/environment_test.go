package environment_test

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/twoqueue/twoqueue/cmd/internal/environment"
)

type config struct {
	Number environment.Count   `default:"3" desc:"a number"`
	Pause  environment.Span    `default:"2s" desc:"a time, with a meaning that is so long that it cannot stand in one line of eighty characters"`
	Really environment.Truth   `default:"false" desc:"whether"`
	Where  environment.Address `default:"none" desc:"where"`
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
	logger.Info("this", "retry_in", 638*time.Millisecond)
	if !strings.Contains(line.String(), `"retry_in":"638ms"`) || !strings.HasPrefix(line.String(), `{"`) || strings.Count(line.String(), "\n") != 1 {
		t.Errorf("log %q", line.String())
	}
}

// A program reads the log, unless it goes to a terminal.
func TestTheLogIsJSONUnlessOnATerminal(t *testing.T) {
	var c config
	if err := environment.Read("SHOP", &c); err != nil {
		t.Fatal(err)
	}
	screen, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	defer terminal.Close()
	reader, pipe, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	defer pipe.Close()
	for _, to := range []struct {
		writer, reader *os.File
		begins         string
	}{{terminal, screen, "time="}, {pipe, reader, `{"`}} {
		c.Log.Logger(to.writer).Info("this")
		if err := to.reader.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(to.reader).ReadString('\n'); err != nil || !strings.HasPrefix(line, to.begins) || !strings.Contains(line, "this") {
			t.Errorf("log %q, %v", line, err)
		}
	}
}

func TestAddresses(t *testing.T) {
	for text, usable := range map[string]bool{
		"none": true, ":8080": true, "127.0.0.1:0": true, "[::1]:80": true, "localhost:65535": true,
		"": false, "8080": false, "localhost": false, ":65536": false, ":-1": false, ":http": false,
	} {
		if err := new(environment.Address).Decode(text); (err == nil) != usable {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestReadNamesTheFaultOfAVariable(t *testing.T) {
	for name, c := range map[string]struct{ value, want string }{
		"SHOP_NUMBER":     {"many", `SHOP_NUMBER: "many" is not usable; give a whole number from 1 to 65535, or unset it`},
		"SHOP_PAUSE":      {"-1s", `SHOP_PAUSE: "-1s" is not usable; give a positive duration such as 500ms, 2s or 10m, or unset it`},
		"SHOP_REALLY":     {"ja", `SHOP_REALLY: "ja" is not usable; give true or false, or unset it`},
		"SHOP_LOG_LEVEL":  {"loud", `SHOP_LOG_LEVEL: "loud" is not usable; give debug, info, warn or error, or unset it`},
		"SHOP_WHERE":      {"8080", `SHOP_WHERE: "8080" is not usable; give host:port, :port for all of the machine's addresses, or none`},
		"SHOP_LOG_FORMAT": {"xml", `SHOP_LOG_FORMAT: "xml" is not usable; give text, json or auto, or unset it`},
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

// A Service whose name starts with the prefix must not keep the program from starting.
func TestKubernetesVariablesOfAServiceAreIgnored(t *testing.T) {
	for name, value := range map[string]string{
		"SHOP_FRONT_SERVICE_HOST":      "10.0.0.11",
		"SHOP_FRONT_SERVICE_PORT":      "80",
		"SHOP_FRONT_SERVICE_PORT_HTTP": "80",
		"SHOP_FRONT_PORT":              "tcp://10.0.0.11:80",
		"SHOP_FRONT_PORT_80_TCP":       "tcp://10.0.0.11:80",
		"SHOP_FRONT_PORT_80_TCP_PROTO": "tcp",
		"SHOP_FRONT_PORT_80_TCP_PORT":  "80",
		"SHOP_FRONT_PORT_80_TCP_ADDR":  "10.0.0.11",
	} {
		t.Setenv(name, value)
	}
	if err := environment.Read("SHOP", new(config)); err != nil {
		t.Error(err)
	}
	t.Setenv("SHOP_SMPT_PORT", "25") // of no Service
	if err := environment.Read("SHOP", new(config)); err == nil || !strings.Contains(err.Error(), "SHOP_SMPT_PORT: unknown variable") {
		t.Errorf("mistyped: %v", err)
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
		{"given", file, "given", "SHOP_KEY_FILE: is set, and SHOP_KEY too; unset one of them"},
		{"", file + "x", "", "SHOP_KEY_FILE: the file cannot be read: no such file or directory; name a readable file"},
		{"", filepath.Dir(file), "", "SHOP_KEY_FILE: the file cannot be read: is a directory"},
		{"", empty, "", "SHOP_KEY_FILE: the file is empty"},
		{"", "amqp://user:given@host/", "", "SHOP_KEY_FILE: the file cannot be read"}, // the secret instead of its file's name
	} {
		got := c.value
		err := environment.Open(environment.Secret{Name: "SHOP_KEY", Value: &got, File: c.file})
		if got != c.want || (err != nil) != (c.wrong != "") || err != nil && (!strings.HasPrefix(err.Error(), c.wrong) || strings.Contains(err.Error(), "given")) {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
	}
}

func TestASecretIsReadAgainFromItsFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one\n")
	var value string
	secret := environment.Secret{Name: "SHOP_KEY", Value: &value, File: file}
	if err := environment.Open(secret); err != nil {
		t.Fatal(err)
	}
	read := secret.Reader()
	expect := func(when, want string) {
		t.Helper()
		if got := read(); got != want {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	expect("at first", "one")
	write("two\n")
	expect("the file has changed", "two")
	write("")
	expect("the file is empty", "two")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	expect("the file is gone", "two")
	plain := "plain"
	if got := (environment.Secret{Name: "SHOP_KEY", Value: &plain}).Reader()(); got != "plain" {
		t.Errorf("without a file: %q", got)
	}
}
