package compose

import (
	"encoding/json"
	"strings"
	"testing"
)

// The parts of the dashboard that the tests read.
type (
	dashboard struct {
		Templating struct {
			List []struct {
				Name, Query string
			}
		}
		Panels []struct {
			Title      string
			Datasource datasource
			Targets    []struct {
				RefID, Expr string
				Datasource  datasource
			}
		}
	}
	datasource struct{ Type, UID string }
)

func readDashboard(t *testing.T) *dashboard {
	t.Helper()
	d := new(dashboard)
	if err := json.Unmarshal([]byte(read(t, "grafana/dashboards/twoqueue.json")), d); err != nil {
		t.Fatal(err)
	}
	return d
}

// query returns an expression as Grafana sends it.
func (d *dashboard) query(expr string) string {
	expr = strings.ReplaceAll(expr, "$__rate_interval", "1m")
	for _, variable := range d.Templating.List {
		expr = strings.ReplaceAll(expr, "$"+variable.Name, variable.Query)
	}
	return expr
}

// queries returns all queries of the dashboard, by the panel's title and the query's letter.
func (d *dashboard) queries() map[string]string {
	all := make(map[string]string)
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all[p.Title+" "+target.RefID] = d.query(target.Expr)
		}
	}
	return all
}

// No test runs Grafana: its files must at least agree on each other's names and paths.
func TestTheDashboardIsProvisionedWithItsDataSource(t *testing.T) {
	for name, lines := range map[string][]string{
		"compose.yaml": {"./grafana/provisioning:/etc/grafana/provisioning:ro", "./grafana/dashboards:/etc/grafana/dashboards:ro",
			"GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH: /etc/grafana/dashboards/twoqueue.json"},
		"grafana/provisioning/dashboards/twoqueue.yaml":    {"path: /etc/grafana/dashboards"},
		"grafana/provisioning/datasources/prometheus.yaml": {"uid: prometheus", "type: prometheus", "url: http://prometheus:9090"},
	} {
		for _, line := range lines {
			if !strings.Contains(read(t, name), " "+line+"\n") {
				t.Errorf("%s does not say %s", name, line)
			}
		}
	}
	want := datasource{Type: "prometheus", UID: "prometheus"}
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			if target.Datasource != want || p.Datasource != want {
				t.Errorf("%s asks %v", p.Title, target.Datasource)
			}
		}
	}
}
