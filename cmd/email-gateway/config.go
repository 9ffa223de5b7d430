package main

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twoqueue/twoqueue/cmd/email-gateway/internal/email"
	"github.com/twoqueue/twoqueue/cmd/email-gateway/internal/transport"
	"github.com/twoqueue/twoqueue/cmd/internal/advice"
	"github.com/twoqueue/twoqueue/cmd/internal/certificates"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/cmd/internal/environment"
	"github.com/twoqueue/twoqueue/cmd/internal/transit"
	"github.com/twoqueue/twoqueue/idempotency/pending"
)

const prefix = "EMAIL"

// consumer is the gateway's name in the inbox.
const consumer = "email-gateway"

// config is the environment. The help and the README's table of variables are made from it. A
// variable's name is EMAIL_ and the field's words.
type config struct {
	Database struct {
		URL     string `desc:"the database for the inbox and the e-mails' statuses: postgres:// or mysql://user:password@host:port/database, sqlserver:// or azuresql://user:password@host:port?database=name, or sqlite:/path/to/file; required"`
		URLFile string `split_words:"true" desc:"a file that contains the URL instead; it is read again for each connection"`
	}
	Schema database.Schema `desc:"the schema that has the gateway's tables, the inbox and email_gateway, on PostgreSQL or SQL Server, in the catalogue's spelling (default: the login's search_path or default schema decides)"`
	AMQP   struct {
		URL     string `desc:"the broker: amqp://user:password@host:port/vhost, or amqps, with commas between the addresses of a cluster; required to send"`
		URLFile string `split_words:"true" desc:"a file that contains the URL instead; it is read again for each connection"`
	}
	Insecure transit.Insecure  `default:"false" desc:"true allows connections to other machines without TLS or with an unverified certificate; otherwise a URL that allows such a connection is refused, except to localhost, a loopback address or a socket"`
	Queue    string            `default:"emails" desc:"the queue of e-mails; an e-mail that cannot be sent goes to the queue of this name with .dead appended"`
	Prefetch environment.Count `default:"100" desc:"how many messages are held at once, including messages that wait for another attempt; EMAIL_MAX_HELD_BYTES bounds their bytes"`

	SMTP struct {
		Host         string            `desc:"the mail server's name; required to send"`
		Port         environment.Count `default:"587" desc:"its port"`
		TLS          security          `default:"starttls" desc:"starttls, tls (from the first byte, mostly on port 465) or none (not together with a password)"`
		CAFile       string            `split_words:"true" desc:"a PEM file with the authorities that may sign the server's certificate (default: the system's)"`
		User         string            `desc:"the mail server's login, if it needs one"`
		Password     string            `desc:"its password"`
		PasswordFile string            `split_words:"true" desc:"a file that contains the password instead"`
		Name         string            `desc:"the gateway's name in EHLO (default: the host's name)"`
		Timeout      environment.Span  `default:"30s" desc:"how long connecting may take, and how long each command"`
		Answer       environment.Span  `default:"10m" desc:"how long the server may take to answer to the end of an e-mail; after it the e-mail is doubtful"`
		Sessions     environment.Count `default:"4" desc:"how many e-mails are sent at once, each over a connection of its own; the gateway opens that many database connections and up to six more"`
	}

	From struct {
		Allow patterns `desc:"the senders' addresses that e-mails may have: patterns with commas between them, in which * stands for any characters, such as *@example.org; a message with another address goes to the dead queue (default: all)"`
	}
	To struct {
		Allow patterns `desc:"the recipients' addresses that e-mails may go to, in the same form (default: all)"`
	}

	Max struct {
		Bytes      size              `default:"10485760" desc:"the largest size of an e-mail's message, in bytes, with its attachments in base64"`
		HeldBytes  size              `split_words:"true" default:"67108864" desc:"how many bytes of messages are held at once, or one larger message; other messages are requeued and delivered again. In addition the gateway needs about seven times EMAIL_MAX_BYTES for each of EMAIL_SMTP_SESSIONS"`
		Recipients environment.Count `default:"50" desc:"how many recipients one e-mail may have"`
	}

	Attempts     environment.Count `default:"8" desc:"how many times an e-mail is tried that the server refuses temporarily, or whose connection ends before its last line, before it goes to the dead queue"`
	Pause        environment.Span  `default:"10s" desc:"the pause after the first of these attempts; it doubles with each"`
	LongestPause environment.Span  `split_words:"true" default:"5m" desc:"the longest pause"`
	Hold         environment.Span  `default:"15m" desc:"how long a message is held while the mail server is away and during pauses, before it is requeued; must be longer than the sum of EMAIL_SMTP_ANSWER and 8 times EMAIL_SMTP_TIMEOUT; together with this sum it must be shorter than the broker's consumer timeout (30m unless changed)"`
	Retention    environment.Span  `default:"720h" desc:"how long message IDs and statuses are kept; an older message is not sent, since the record of an earlier attempt may be gone"`
	Drain        environment.Span  `default:"30s" desc:"how long draining may take after SIGTERM; an e-mail without the server's answer by then is doubtful"`

	HTTP struct {
		Addr environment.Address `default:":8080" desc:"the address of /livez, /readyz and /metrics; or none"`
	}
	Log environment.Log
}

// secrets returns the two URLs with the files that may hold them.
func (c *config) secrets() (database, broker environment.Secret) {
	return environment.Secret{Name: "EMAIL_DATABASE_URL", Value: &c.Database.URL, File: c.Database.URLFile,
			Check: transit.Refuse(c.Insecure, "EMAIL_DATABASE_URL", transit.Database)},
		environment.Secret{Name: "EMAIL_AMQP_URL", Value: &c.AMQP.URL, File: c.AMQP.URLFile,
			Check: transit.Refuse(c.Insecure, "EMAIL_AMQP_URL", transit.Broker)}
}

// load reads the environment. With sending, the variables of broker and mail server are required
// too. Its error names the variable and the fix.
func load(sending bool) (*config, error) {
	c := new(config)
	if err := environment.Read(prefix, c); err != nil {
		return nil, err
	}
	databaseURL, broker := c.secrets()
	err := environment.Open(databaseURL, broker,
		environment.Secret{Name: "EMAIL_SMTP_PASSWORD", Value: &c.SMTP.Password, File: c.SMTP.PasswordFile})
	if err != nil {
		return nil, err
	}
	if err := c.Schema.Check("EMAIL_SCHEMA", c.Database.URL); err != nil {
		return nil, err
	}
	if c.SMTP.Name == "" {
		c.SMTP.Name, _ = os.Hostname()
	}
	switch {
	case c.Database.URL == "":
		return nil, errors.New("EMAIL_DATABASE_URL: is not set; name the database, or a file with EMAIL_DATABASE_URL_FILE")
	case c.Queue == "" || len(c.Queue) > 200:
		return nil, errors.New("EMAIL_QUEUE: must have 1 to 200 bytes; name the queue or unset it")
	case c.Retention.Duration() < time.Hour:
		return nil, errors.New("EMAIL_RETENTION: is less than 1h; raise it")
	case c.LongestPause < c.Pause:
		return nil, errors.New("EMAIL_LONGEST_PAUSE: is less than EMAIL_PAUSE; raise the one or lower the other")
	case c.effectTimeout() >= c.Hold.Duration():
		return nil, fmt.Errorf("EMAIL_HOLD: must be more than %v, the sum of EMAIL_SMTP_ANSWER and %d times EMAIL_SMTP_TIMEOUT; raise it or lower these", c.effectTimeout(), timeouts)
	case !sending:
		return c, nil
	case c.AMQP.URL == "":
		return nil, errors.New("EMAIL_AMQP_URL: is not set; name the broker, or a file with EMAIL_AMQP_URL_FILE")
	case c.SMTP.Host == "":
		return nil, errors.New("EMAIL_SMTP_HOST: is not set; name the mail server")
	case c.SMTP.User == "" && c.SMTP.Password != "":
		return nil, errors.New("EMAIL_SMTP_USER: is not set, but a password is; set it, or unset EMAIL_SMTP_PASSWORD")
	case c.SMTP.User != "" && c.SMTP.Password == "":
		return nil, errors.New("EMAIL_SMTP_PASSWORD: is not set, but EMAIL_SMTP_USER is; set it, or EMAIL_SMTP_PASSWORD_FILE")
	case c.SMTP.User != "" && c.SMTP.TLS == security(transport.None):
		return nil, errors.New("EMAIL_SMTP_TLS: is none, so the password would be sent unencrypted; set starttls or tls, or unset EMAIL_SMTP_USER")
	case c.SMTP.Name == "" || strings.ContainsFunc(c.SMTP.Name, func(r rune) bool { return r <= ' ' || r > '~' }):
		return nil, errors.New("EMAIL_SMTP_NAME: must be a host's name; set it")
	}
	_, err = c.server() // reads EMAIL_SMTP_CA_FILE
	return c, err
}

// timeouts is how often EMAIL_SMTP_TIMEOUT may pass in one attempt, beside EMAIL_SMTP_ANSWER: once
// each for a turn, a session, MAIL, DATA and the status, and a few times for recipients and text.
const timeouts = 8

// effectTimeout bounds one attempt as a whole.
func (c *config) effectTimeout() time.Duration {
	return c.SMTP.Answer.Duration() + timeouts*c.SMTP.Timeout.Duration()
}

func (c *config) limits() email.Limits {
	return email.Limits{Bytes: int(c.Max.Bytes), Recipients: int(c.Max.Recipients), From: email.Patterns(c.From.Allow), To: email.Patterns(c.To.Allow)}
}

func (c *config) server() (*transport.Server, error) {
	server := &transport.Server{
		Host: c.SMTP.Host, Port: int(c.SMTP.Port), Security: transport.Security(c.SMTP.TLS),
		User: c.SMTP.User, Password: c.SMTP.Password, Name: c.SMTP.Name,
		Timeout: c.SMTP.Timeout.Duration(), Answer: c.SMTP.Answer.Duration(),
	}
	if c.SMTP.CAFile == "" {
		return server, nil
	}
	var err error
	if server.Roots, err = certificates.Authorities(c.SMTP.CAFile); err != nil {
		return nil, advice.With(fmt.Errorf("EMAIL_SMTP_CA_FILE: %w", err), advice.TLS(err))
	}
	return server, nil
}

// options returns the options of package pending. The statuses count an e-mail's attempts, not package
// pending, so that an outage of the mail server uses up no attempt.
func (c *config) options(logger *slog.Logger) pending.Options {
	return pending.Options{
		Attempts: math.MaxInt32, MinDelay: c.Pause.Duration(), MaxDelay: c.LongestPause.Duration(),
		Hold: c.Hold.Duration(), EffectTimeout: c.effectTimeout(), Retention: c.Retention.Duration(), Logger: logger,
	}
}

type security transport.Security

func (s *security) Decode(text string) error {
	switch *s = security(text); transport.Security(text) {
	case transport.StartTLS, transport.Implicit, transport.None:
		return nil
	}
	return fmt.Errorf("%q is not usable; give starttls, tls or none", text)
}

type patterns email.Patterns

func (p *patterns) Decode(text string) error {
	if text == "" {
		return errors.New("is empty; unset it to allow every address, or name some")
	}
	for pattern := range strings.SplitSeq(text, ",") {
		pattern = strings.TrimSpace(pattern)
		if pattern != "*" && !strings.Contains(pattern, "@") {
			return fmt.Errorf("%q is no pattern of addresses; write *@%[1]s for all of a domain, or * for all", pattern)
		}
		*p = append(*p, pattern)
	}
	return nil
}

type size int

func (s *size) Decode(text string) error {
	const least, most = 1 << 10, 1 << 27
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return fmt.Errorf("%q is not usable; give a whole number from %d to %d, or unset it", text, least, most)
	}
	*s = size(n)
	return nil
}
