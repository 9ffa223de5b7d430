package compose

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/tests/emailgateway/mailserver"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// A real Prometheus with the stack's configuration scrapes the real commands and a real broker.
// Every query of the dashboard and every series of the alerts must return a value.
func TestTheDashboardAndTheAlertsQueryExistingMetrics(t *testing.T) {
	binary := installed(t, "prometheus")
	broker := servertest.Vhost(t)
	verifier, gateway := startServices(t, broker)
	p := startPrometheus(t, binary, verifier, gateway, servertest.RabbitMQ(t).PrometheusAddr())

	wanted := make(map[string]string)
	for title, query := range readDashboard(t).queries() {
		if len(selectors(query)) == 0 || strings.Contains(query, "$") {
			t.Errorf("%s: %s", title, query)
		}
		wanted[title] = query
	}
	for _, job := range []string{"verifier", "email-gateway", "rabbitmq", "rabbitmq-queues"} {
		wanted["job "+job] = fmt.Sprintf("up{job=%q} == 1", job)
	}
	for _, verdict := range []string{"forwarded", "dropped"} {
		wanted[verdict+" messages"] = fmt.Sprintf("sum(twoqueue_messages_total{verdict=%q}) > 0", verdict)
	}
	for _, alert := range p.alerts() {
		series := selectors(alert.Query)
		if len(series) == 0 { // a series that the pattern misses would go unchecked
			t.Errorf("%s names no metric: %s", alert.Name, alert.Query)
		}
		for i, selector := range series {
			wanted[fmt.Sprintf("alert %s, series %d", alert.Name, i)] = "count(" + selector + ")"
		}
		if alert.Labels["severity"] == "" || alert.Annotations["summary"] == "" || alert.Annotations["description"] == "" {
			t.Errorf("%s lacks a severity or a fix", alert.Name)
		}
	}
	missing := slices.Sorted(maps.Keys(wanted))
	servertest.Eventually(t, "every query has an answer", func() bool {
		p.process.Running()
		missing = slices.DeleteFunc(missing, func(name string) bool { return p.answers(wanted[name]) })
		return len(missing) == 0
	}, func() string {
		text := "these have none:\n"
		for _, name := range missing {
			text += name + ": " + wanted[name] + "\n"
		}
		return text
	})
	servertest.Eventually(t, "every alert is evaluated", func() bool {
		return !slices.ContainsFunc(p.alerts(), func(a alert) bool { return a.Health != "ok" })
	}, func() string { return fmt.Sprintf("%+v", p.alerts()) })
	t.Logf("%d queries of the dashboard and the alerts had an answer", len(wanted))
}

var endpoints = regexp.MustCompile(`msg=endpoints address=(\S+)`)

// startServices starts the verifier, the e-mail gateway and the shop, and returns the metrics
// addresses of verifier and gateway.
func startServices(t *testing.T, broker string) (verifier, gateway string) {
	t.Helper()
	database, mail := servertest.PostgresDB(t), mailserver.Start(t, mailserver.Options{})
	command := func(name, prefix string, args ...string) *program.Process {
		return program.Start(t, name, append(args, prefix+"_DATABASE_URL="+database, prefix+"_AMQP_URL="+broker, prefix+"_LOG_FORMAT=text")...)
	}
	service := func(name, prefix string, args ...string) string {
		p := command(name, prefix, append(args, prefix+"_HTTP_ADDR=127.0.0.1:0")...)
		p.Hear("session started") // so the queue exists
		return endpoints.FindStringSubmatch(p.Read(&p.Stderr, "its address", endpoints.MatchString))[1]
	}
	if code := command("verifier", "BRIDGE", "-migrate").Await(); code != 0 {
		t.Fatalf("verifier -migrate ends with %d", code)
	}
	if code := command("email-gateway", "EMAIL", "migrate").Await(); code != 0 {
		t.Fatalf("email-gateway migrate ends with %d", code)
	}
	if code := command("shop", "SHOP", "-migrate").Await(); code != 0 {
		t.Fatalf("shop -migrate ends with %d", code)
	}
	verifier = service("verifier", "BRIDGE", "BRIDGE_ALLOW=:emails")
	gateway = service("email-gateway", "EMAIL", "EMAIL_SMTP_HOST="+mail.Host, "EMAIL_SMTP_PORT="+mail.Port, "EMAIL_SMTP_TLS=none")
	command("shop", "SHOP", "SHOP_EVERY=250ms")
	return verifier, gateway
}

// prometheus is a running Prometheus.
type prometheus struct {
	t       *testing.T
	address string
	process *program.Process
}

var (
	discovery = regexp.MustCompile(`(?s)dns_sd_configs:.*?names: \[([a-z-]+)\].*?refresh_interval: 5s`)
	listening = regexp.MustCompile(`msg="Listening on" address=(\S+)`)
)

// startPrometheus starts a Prometheus with the stack's configuration and these targets.
func startPrometheus(t *testing.T, binary, verifier, gateway, broker string) *prometheus {
	t.Helper()
	config := discovery.ReplaceAllString(read(t, "prometheus/prometheus.yml"), `static_configs: [targets: ["$1"]]`)
	config = strings.NewReplacer(`["verifier"]`, `["`+verifier+`"]`, `["email-gateway"]`, `["`+gateway+`"]`,
		`["rabbitmq:15692"]`, `["`+broker+`"]`, "_interval: 5s", "_interval: 1s").Replace(config)
	folder := t.TempDir()
	for name, content := range map[string]string{"prometheus.yml": config, "alerts.yml": read(t, "prometheus/alerts.yml")} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := program.StartCmd(t, exec.Command(binary, "--config.file="+filepath.Join(folder, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(folder, "data"), "--web.listen-address=127.0.0.1:0"))
	p.Hear("Server is ready to receive web requests")
	return &prometheus{t, listening.FindStringSubmatch(p.Read(&p.Stderr, "its address", listening.MatchString))[1], p}
}

// ask sends one request to the API.
func (p *prometheus) ask(path string, into any) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), servertest.Patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+"/api/v1/"+path, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	request.Close = true // leaves no goroutine behind
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		p.t.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode == http.StatusOK {
		err = json.Unmarshal(content, into)
	}
	if err != nil || response.StatusCode != http.StatusOK {
		p.t.Fatalf("%s: %v, %s: %s", path, err, response.Status, content)
	}
}

// answers reports whether a query returns at least one value that is a number.
func (p *prometheus) answers(query string) bool {
	p.t.Helper()
	var answer struct {
		Data struct {
			Result []struct{ Value [2]any }
		}
	}
	p.ask("query?query="+url.QueryEscape(query), &answer)
	for _, series := range answer.Data.Result {
		if series.Value[1] != "NaN" {
			return true
		}
	}
	return false
}

type alert struct {
	Name, Query, Health, LastError string
	Labels, Annotations            map[string]string
}

// alerts returns the configured alerts as Prometheus has read them.
func (p *prometheus) alerts() (all []alert) {
	p.t.Helper()
	var answer struct {
		Data struct {
			Groups []struct{ Rules []alert }
		}
	}
	p.ask("rules", &answer)
	for _, group := range answer.Data.Groups {
		all = append(all, group.Rules...)
	}
	if len(all) < 10 {
		p.t.Fatalf("%d alerts", len(all))
	}
	return all
}

// series matches a metric's name with its labels, as the alerts write them.
var series = regexp.MustCompile(`\b(?:up|(?:twoqueue|email_gateway|rabbitmq|process)_\w+)\b(?:\{[^}]*\})?`)

func selectors(expr string) []string { return series.FindAllString(expr, -1) }
