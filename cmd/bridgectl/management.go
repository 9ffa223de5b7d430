package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/internal/certificates"
)

// Errors of the management API, for errors.Is.
var (
	// errManagementAway: no server answers, or another server than the management API.
	errManagementAway = errors.New("management API not reachable")
	// errManagementLogin: the API refuses the user or the password.
	errManagementLogin = errors.New("management API refuses the login")
	// errManagementRights: the API takes the login, but does not show it this object.
	errManagementRights = errors.New("the management API does not show this to the login")
	// errNotThere: the object does not exist.
	errNotThere = errors.New("not found")
)

const (
	managementPatience = 20 * time.Second // for one request: a busy broker is slow
	managementMost     = 64 << 20         // bytes of one answer
)

// management is a client of the HTTP API of RabbitMQ's management plugin, with the login of one
// user. It only reads.
type management struct {
	base     *url.URL
	user     string
	password string
	vhost    string // of the staging queue
	login    string // the AMQP URL's user
	http     *http.Client

	silent error // a request got no answer in time, so the next ones fail at once
}

// newManagement takes http:// or https://user:password@host:port, with or without the API's path.
// The virtual host comes from the AMQP URL, and so does the login if the address has none. No error
// contains a user or a password.
func newManagement(address, amqpURL string) (*management, error) {
	base, err := url.Parse(address)
	if err != nil || base.Hostname() == "" || base.Scheme != "http" && base.Scheme != "https" ||
		base.Fragment != "" || strings.Contains(base.RequestURI(), "@") {
		return nil, errors.New("it must be http://user:password@host:port or https://, with special characters in user and password percent-encoded")
	}
	m := &management{vhost: "/"}
	if brokers, err := bridge.ParseURL(amqpURL); err == nil {
		broker := brokers[0] // all have one login and virtual host
		m.user, m.password, m.vhost = broker.Username, broker.Password, broker.Vhost
		m.login = broker.Username
	}
	if base.User != nil {
		m.user = base.User.Username()
		m.password, _ = base.User.Password()
	}
	if base.Scheme == "http" && base.RawQuery != "" {
		return nil, errors.New("parameters for TLS need https in the place of http")
	}
	secure, err := certificates.Take(base.Query(), "cacertfile", "certfile", "keyfile") // the parameters of amqps
	if err != nil {
		return nil, err
	}
	base.User, base.RawQuery = nil, ""
	base.Path = strings.TrimSuffix(strings.TrimSuffix(base.Path, "/"), "/api")
	base.RawPath = ""
	m.base = base
	m.http = &http.Client{
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: secure, TLSHandshakeTimeout: managementPatience},
		Timeout:   managementPatience,
		// A redirect must not send the login to another host.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return m, nil
}

// get reads the object at a path into answer. The parts of the path may have any character: get
// escapes them.
func (m *management) get(ctx context.Context, answer any, path ...string) error {
	return m.search(ctx, answer, nil, path...)
}

// search is get with a query.
func (m *management) search(ctx context.Context, answer any, query url.Values, path ...string) error {
	if m.silent != nil {
		return m.silent
	}
	what := "ask the management API for " + strings.Join(path, " ")
	address := m.base.JoinPath("api").String()
	for _, part := range path {
		address += "/" + url.PathEscape(part)
	}
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return fmt.Errorf("%s: not a usable address", what)
	}
	request.SetBasicAuth(m.user, m.password)
	request.Header.Set("Accept", "application/json")
	response, err := m.http.Do(request)
	if err != nil {
		return m.away(what, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, managementMost))
	if err != nil {
		return m.away(what, err)
	}
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		if isWhoami(path) {
			return fmt.Errorf("%s: %w: another server answers", what, errManagementAway)
		}
		return fmt.Errorf("%s: %w", what, errNotThere)
	case http.StatusUnauthorized, http.StatusForbidden:
		return m.refused(ctx, what, path)
	default:
		return fmt.Errorf("%s: %w: it answers %s", what, errManagementAway, response.Status)
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("%s: %w: its answer has not the form of RabbitMQ's", what, errManagementAway)
	}
	return nil
}

// away returns the error of a request without an answer.
func (m *management) away(what string, err error) error {
	var inner *url.Error
	late := errors.As(err, &inner) && inner.Timeout() || errors.Is(err, context.DeadlineExceeded)
	if inner != nil {
		err = inner.Err // without the address
	}
	err = fmt.Errorf("%s: %w: %w", what, errManagementAway, err)
	if late {
		m.silent = err
	}
	return err
}

// refused returns errManagementLogin for a wrong login, and errManagementRights for a login that
// may not see the object. The API answers both alike, but shows whoami to every user.
func (m *management) refused(ctx context.Context, what string, path []string) error {
	if isWhoami(path) {
		return fmt.Errorf("%s: %w", what, errManagementLogin)
	}
	if err := m.get(ctx, new(struct{}), "whoami"); err != nil {
		return err
	}
	return fmt.Errorf("%s: %w", what, errManagementRights)
}

// isWhoami reports whether a path is whoami, which every API has and shows to every user.
func isWhoami(path []string) bool { return len(path) == 1 && path[0] == "whoami" }

func (m *management) close() { m.http.CloseIdleConnections() }

// managedQueue is a queue as the management API shows it. A field that the API omits is zero.
type managedQueue struct {
	Name            string         `json:"name"`
	Vhost           string         `json:"vhost"`
	Type            string         `json:"type"`
	Durable         bool           `json:"durable"`
	AutoDelete      bool           `json:"auto_delete"`
	Exclusive       bool           `json:"exclusive"`
	Arguments       map[string]any `json:"arguments"`
	Policy          string         `json:"policy"`          // its name; empty if there is none
	OperatorPolicy  string         `json:"operator_policy"` // likewise
	EffectivePolicy looseMap       `json:"effective_policy_definition"`
	State           string         `json:"state"`
	Ready           int            `json:"messages_ready"`
	Unacked         *int64         `json:"messages_unacknowledged"` // nil: the API counts nothing (disable_metrics_collector)
	ConsumerDetails []struct {
		Channel struct {
			Connection string `json:"connection_name"`
			User       string `json:"user"`
		} `json:"channel_details"`
	} `json:"consumer_details"`
	Members []string `json:"members"`
	Online  []string `json:"online"`
	Stats   struct {
		Publish managedRate `json:"publish_details"`
		Deliver managedRate `json:"deliver_get_details"`
	} `json:"message_stats"`
}

// managedRate is events per second, over the API's last sample.
type managedRate struct {
	Rate float64 `json:"rate"`
}

// looseMap is an object. The API sometimes writes an empty list instead.
type looseMap map[string]any

func (l *looseMap) UnmarshalJSON(text []byte) error {
	var object map[string]any
	if err := json.Unmarshal(text, &object); err != nil {
		var list []any
		if json.Unmarshal(text, &list) == nil && len(list) == 0 {
			*l = nil
			return nil
		}
		return err
	}
	*l = object
	return nil
}

// queue returns a queue of the virtual host. The error wraps errNotThere if it has none of this name.
func (m *management) queue(ctx context.Context, name string) (*managedQueue, error) {
	q := new(managedQueue)
	if err := m.get(ctx, q, "queues", m.vhost, name); err != nil {
		return nil, err
	}
	return q, nil
}

// ledgerQueues returns the ledger queues of all virtual hosts that the API shows to the user.
func (m *management) ledgerQueues(ctx context.Context) (all []managedQueue, err error) {
	query := url.Values{"name": {`\.ledger$`}, "use_regex": {"true"}, "page_size": {"500"}}
	for page, pages := 1, 1; page <= pages; page++ {
		var answer struct {
			Items []managedQueue `json:"items"`
			Pages int            `json:"page_count"`
		}
		query.Set("page", strconv.Itoa(page))
		if err := m.search(ctx, &answer, query, "queues"); err != nil {
			return nil, err
		}
		all, pages = append(all, answer.Items...), answer.Pages
	}
	return all, nil
}
