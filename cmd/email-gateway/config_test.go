package main

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/cmd/email-gateway/internal/email"
	"github.com/twoqueue/twoqueue/cmd/email-gateway/internal/transport"
	"github.com/twoqueue/twoqueue/cmd/internal/commandtest"
)

// minimal sets only the required variables.
func minimal(t *testing.T) {
	t.Helper()
	commandtest.Environment(t, prefix, "EMAIL_DATABASE_URL=sqlite:/nowhere/s3cret.db", "EMAIL_AMQP_URL=amqp://user:s3cret@127.0.0.1:1/",
		"EMAIL_SMTP_HOST=mail.example.org")
}

func outcome(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return commandtest.Run(t, run, args...)
}

// failureLine runs the program, which must end with this code and one line on standard error, and
// returns the line.
func failureLine(t *testing.T, code int, args ...string) (line string) {
	t.Helper()
	return commandtest.Refused(t, run, "email-gateway", code, args...)
}

func TestValues(t *testing.T) {
	minimal(t)
	for name, value := range map[string]string{"SMTP_PORT": "465", "SMTP_TLS": "tls", "SMTP_USER": "u", "SMTP_PASSWORD": "p",
		"SMTP_NAME": "me", "SMTP_TIMEOUT": "1s", "SMTP_ANSWER": "2s", "MAX_BYTES": "4096", "MAX_RECIPIENTS": "3", "HOLD": "11s", "RETENTION": "2h"} {
		t.Setenv(prefix+"_"+name, value)
	}
	c, err := load(true)
	must(t, err)
	server, err := c.server()
	must(t, err)
	want := &transport.Server{Host: "mail.example.org", Port: 465, Security: transport.Implicit, User: "u", Password: "p", Name: "me",
		Timeout: time.Second, Answer: 2 * time.Second}
	if !reflect.DeepEqual(server, want) {
		t.Errorf("server %+v, want %+v", server, want)
	}
	if o := c.options(nil); o.EffectTimeout != 10*time.Second || o.Hold != 11*time.Second || o.Retention != 2*time.Hour {
		t.Errorf("options %+v", o)
	}
	if l := c.limits(); l.Bytes != 4096 || l.Recipients != 3 {
		t.Errorf("limits %+v", l)
	}
}

func TestBadConfiguration(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"DATABASE_URL": ""}, "EMAIL_DATABASE_URL: is not set; name the database"},
		{map[string]string{"AMQP_URL": ""}, "EMAIL_AMQP_URL: is not set; name the broker"},
		{map[string]string{"SMTP_HOST": ""}, "EMAIL_SMTP_HOST: is not set; name the mail server"},
		{map[string]string{"SMTP_HOTS": "s3cret"}, "EMAIL_SMTP_HOTS: unknown variable; did you mean EMAIL_SMTP_HOST?"},
		{map[string]string{"DATABASE_URL": "oracle://u:s3cret@h/d"}, "EMAIL_DATABASE_URL: open database: not a database URL: it must start with"},
		{map[string]string{"QUEUE": ""}, "EMAIL_QUEUE: must have 1 to 200 bytes"},
		{map[string]string{"MAX_BYTES": "10 MB"}, "EMAIL_MAX_BYTES: \"10 MB\" is not usable; give a whole number from 1024 to"},
		{map[string]string{"MAX_BYTES": "12"}, "EMAIL_MAX_BYTES: "},
		{map[string]string{"SMTP_TLS": "yes"}, "EMAIL_SMTP_TLS: \"yes\" is not usable; give starttls, tls or none"},
		{map[string]string{"SMTP_USER": "u"}, "EMAIL_SMTP_PASSWORD: is not set, but EMAIL_SMTP_USER is"},
		{map[string]string{"SMTP_PASSWORD": "s3cret"}, "EMAIL_SMTP_USER: is not set, but a password is"},
		{map[string]string{"SMTP_USER": "u", "SMTP_PASSWORD": "s3cret", "SMTP_TLS": "none"}, "EMAIL_SMTP_TLS: is none, so the password would be sent unencrypted"},
		{map[string]string{"SMTP_PASSWORD_FILE": "/nowhere"}, "EMAIL_SMTP_PASSWORD_FILE: the file cannot be read"},
		{map[string]string{"SMTP_CA_FILE": "/nowhere"}, "EMAIL_SMTP_CA_FILE: open /nowhere: no such file or directory; name a readable file"},
		{map[string]string{"SMTP_CA_FILE": os.DevNull}, "EMAIL_SMTP_CA_FILE: the file has no certificate; give certificates in PEM"},
		{map[string]string{"SMTP_NAME": "a b"}, "EMAIL_SMTP_NAME: must be a host's name"},
		{map[string]string{"HOLD": "14m"}, "EMAIL_HOLD: must be more than 14m0s, the sum of EMAIL_SMTP_ANSWER and 8 times EMAIL_SMTP_TIMEOUT"},
		{map[string]string{"PAUSE": "10m"}, "EMAIL_LONGEST_PAUSE: is less than EMAIL_PAUSE"},
		{map[string]string{"RETENTION": "10m"}, "EMAIL_RETENTION: is less than 1h"},
	} {
		t.Run(c.want, func(t *testing.T) {
			minimal(t)
			for name, value := range c.env {
				t.Setenv(prefix+"_"+name, value)
			}
			if line := failureLine(t, exitMisused); !strings.HasPrefix(line, c.want) {
				t.Errorf("it says %q", line)
			}
		})
	}
}

func TestBadArguments(t *testing.T) {
	minimal(t)
	for _, args := range [][]string{{"-migrate"}, {"send"}, {"migrate", "now"}, {"doubtful"}, {"doubtful", "show"}, {"doubtful", "list", "x"},
		{"doubtful", "list", "-o", "xml"}, {"doubtful", "list", "-x"}, {"doubtful", "sent"}, {"doubtful", "retry", "a", "b"}} {
		if line := failureLine(t, exitMisused, args...); !strings.Contains(line, "see email-gateway -help") {
			t.Errorf("%v: %s", args, line)
		}
	}
}

func TestTheHelpFitsAScreenAndShowsNothingThatIsSet(t *testing.T) {
	minimal(t)
	t.Setenv("EMAIL_SMTP_PASSWORD", "s3cret")
	commandtest.Help(t, run, "  EMAIL_SMTP_PORT (default 587)", "s3cret", "nowhere", "mail.example.org")
}

func TestSchemaIsPrinted(t *testing.T) {
	minimal(t)
	code, stdout, _ := outcome(t, "schema")
	var schema map[string]any
	if code != exitDone || json.Unmarshal([]byte(stdout), &schema) != nil || schema["title"] != "E-mail" {
		t.Errorf("exit code %d: %s", code, stdout)
	}
}

// The table in the gateway's README is made from config.
func TestReadmeTable(t *testing.T) { commandtest.ReadmeTable(t, prefix, new(config)) }

// The example of a body in the README is an e-mail.
func TestReadmeExample(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	must(t, err)
	_, example, _ := strings.Cut(string(readme), "```json\n")
	example, _, _ = strings.Cut(example, "```")
	if _, err := email.Parse([]byte(example), email.Limits{Bytes: 1 << 10, Recipients: 1}); err != nil {
		t.Errorf("%v:\n%s", err, example)
	}
}
