package compose

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/twoqueue/twoqueue/tests/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// installed is the path of one of Prometheus' programs.
func installed(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
	case errors.Is(err, exec.ErrNotFound) && os.Getenv("CI") != "true":
		t.Skipf("%s is not installed: apt-get install prometheus, or run ./tests/run, which does", name)
	default:
		t.Fatal(err)
	}
	return path
}

// prometheus is a real one.
type prometheus struct {
	t       *testing.T
	address string
	process process
}

// observe has a real Prometheus with the stack's configuration scrape the services, and
// holds the dashboard and the alerts to what is really there.
func (s *stack) observe(rabbit *servers.RabbitMQ) {
	s.t.Helper()
	p := s.prometheus(map[string]string{
		"verifier":      s.address("verifier-postgres", "8081"),
		"email-gateway": s.address("gateway-postgres", "8080"),
		"rabbitmq":      rabbit.PrometheusAddr(), "rabbitmq-queues": rabbit.PrometheusAddr(),
	})
	d := readDashboard(s.t)
	wanted := d.queries()
	for _, job := range []string{"verifier", "email-gateway", "rabbitmq", "rabbitmq-queues"} {
		wanted["job "+job] = fmt.Sprintf("up{job=%q} == 1", job)
	}
	for _, verdict := range []string{"forwarded", "dropped"} {
		wanted[verdict+" messages"] = fmt.Sprintf("sum(twoqueue_messages_total{verdict=%q}) > 0", verdict)
	}
	for _, alert := range alerts(s.t) {
		for i, selector := range selectors(alert.Expr) {
			wanted[fmt.Sprintf("alert %s, series %d", alert.Alert, i)] = "count(" + selector + ")"
		}
	}
	missing := slices.Sorted(maps.Keys(wanted))
	none := func() string {
		text := "these have none:\n"
		for _, name := range missing {
			text += name + ": " + wanted[name] + "\n"
		}
		return text
	}
	servertest.Eventually(s.t, "every query has an answer", func() bool {
		p.process.Running()
		missing = slices.DeleteFunc(missing, func(name string) bool { return p.answers(wanted[name]) })
		return len(missing) == 0
	}, none)
	p.rulesWork()
	s.t.Logf("%d queries of the dashboard and the alerts had an answer", len(wanted))
}

// prometheus starts one with the stack's configuration, with these targets.
func (s *stack) prometheus(targets map[string]string) *prometheus {
	s.t.Helper()
	folder := s.t.TempDir()
	write(s.t, filepath.Join(folder, "alerts.yml"), read(s.t, "prometheus/alerts.yml"))
	var config map[string]any
	if err := yaml.Unmarshal(read(s.t, "prometheus/prometheus.yml"), &config); err != nil {
		s.t.Fatal(err)
	}
	config["global"].(map[string]any)["scrape_interval"] = "1s"
	for _, scrape := range config["scrape_configs"].([]any) {
		job := scrape.(map[string]any)
		delete(job, "dns_sd_configs")
		job["static_configs"] = []any{map[string]any{"targets": []string{targets[job["job_name"].(string)]}}}
	}
	p := &prometheus{t: s.t, address: freeAddress(s.t)}
	cmd := exec.Command(installed(s.t, "prometheus"), "--config.file="+write(s.t, filepath.Join(folder, "prometheus.yml"), must(yaml.Marshal(config))),
		"--storage.tsdb.path="+filepath.Join(folder, "data"), "--web.listen-address="+p.address)
	p.process = startProcess(s.t, cmd)
	return p
}

// ask makes one request to the API.
func (p *prometheus) ask(path string, into any) bool {
	p.t.Helper()
	code, text := get(p.t, "http://"+p.address+"/api/v1/"+path)
	if code == 400 {
		p.t.Fatalf("%s: %s", path, text)
	}
	if code != 200 { // not there yet
		return false
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		p.t.Fatalf("%s: %v", path, err)
	}
	return true
}

// answers tells whether a query has at least one value that is a number.
func (p *prometheus) answers(query string) bool {
	p.t.Helper()
	var answer struct {
		Data struct {
			Result []struct{ Value [2]any }
		}
	}
	if !p.ask("query?query="+url.QueryEscape(query), &answer) {
		return false
	}
	for _, series := range answer.Data.Result {
		if series.Value[1] != "NaN" {
			return true
		}
	}
	return false
}

// rulesWork checks that Prometheus evaluates every alert.
func (p *prometheus) rulesWork() {
	p.t.Helper()
	var answer struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
	}
	unknown := 0
	servertest.Eventually(p.t, "every alert is evaluated", func() bool {
		if !p.ask("rules", &answer) {
			return false
		}
		unknown = len(alerts(p.t))
		for _, group := range answer.Data.Groups {
			for _, rule := range group.Rules {
				if rule.Health == "err" {
					p.t.Errorf("%s: %s", rule.Name, rule.LastError)
				}
				if rule.Health != "unknown" {
					unknown--
				}
			}
		}
		return unknown == 0
	}, func() string { return fmt.Sprintf("%d are not", unknown) })
}

// series is a metric's name with its labels, as the alerts write them.
var series = regexp.MustCompile(`\b(?:up|(?:twoqueue|email_gateway|rabbitmq|process)_\w+)\b(?:\{[^}]*\})?`)

func selectors(expr string) []string { return series.FindAllString(expr, -1) }

// The names are found in every expression: what is not found is not checked.
func TestEveryExpressionNamesAMetric(t *testing.T) {
	for title, query := range readDashboard(t).queries() {
		if len(selectors(query)) == 0 || strings.Contains(query, "$") {
			t.Errorf("%s: %s", title, query)
		}
	}
	for _, alert := range alerts(t) {
		if len(selectors(alert.Expr)) == 0 {
			t.Errorf("%s: %s", alert.Alert, alert.Expr)
		}
	}
}
