package compose

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// The parts of Grafana's files that the stack rests on.
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
	if err := json.Unmarshal(read(t, "grafana/dashboards/twoqueue.json"), d); err != nil {
		t.Fatal(err)
	}
	return d
}

// query is an expression as Grafana sends it.
func (d *dashboard) query(expr string) string {
	expr = strings.ReplaceAll(expr, "$__rate_interval", "1m")
	for _, variable := range d.Templating.List {
		expr = strings.ReplaceAll(expr, "$"+variable.Name, variable.Query)
	}
	return expr
}

// queries are all of the dashboard's, by the panel's title and the letter.
func (d *dashboard) queries() map[string]string {
	all := make(map[string]string)
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all[p.Title+" "+target.RefID] = d.query(target.Expr)
		}
	}
	return all
}

func TestTheDashboardIsProvisionedWithItsDataSource(t *testing.T) {
	var sources struct {
		Datasources []struct{ UID, Type, URL string }
	}
	var providers struct {
		Providers []struct{ Options struct{ Path string } }
	}
	for file, into := range map[string]any{"datasources/prometheus.yaml": &sources, "dashboards/twoqueue.yaml": &providers} {
		if err := yaml.Unmarshal(read(t, "grafana/provisioning/"+file), into); err != nil {
			t.Fatal(err)
		}
	}
	project := load(t, "compose.yaml", nil, "postgres")
	grafana := project.Services["grafana"]
	mounted := make(map[string]string)
	for _, volume := range grafana.Volumes {
		mounted[volume.Target] = volume.Source
	}
	path := providers.Providers[0].Options.Path
	if !sameFile(mounted[path], folder+"/grafana/dashboards") || !sameFile(mounted["/etc/grafana/provisioning"], folder+"/grafana/provisioning") {
		t.Errorf("Grafana is given %v", mounted)
	}
	home := *grafana.Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
	if home != filepath.Join(path, "twoqueue.json") {
		t.Errorf("the first page is %s", home)
	}
	source := sources.Datasources[0]
	if source.URL != "http://prometheus:9090" || source.Type != "prometheus" {
		t.Errorf("the data come from %+v", source)
	}
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			if want := (datasource{source.Type, source.UID}); target.Datasource != want || p.Datasource != want {
				t.Errorf("%s asks %v", p.Title, target.Datasource)
			}
		}
	}
}

func TestTheConfigurationOfPrometheusIsValid(t *testing.T) {
	promtool(t, "check", "config", folder+"/prometheus/prometheus.yml")
}

// Each alert fires when it should, for what it should, and none without need.
func TestTheAlertsFireWhenTheyShould(t *testing.T) {
	promtool(t, "test", "rules", folder+"/prometheus/alerts_test.yml")
	tested := string(read(t, "prometheus/alerts_test.yml"))
	for _, rule := range alerts(t) {
		if !strings.Contains(tested, fmt.Sprintf(`alertname="%s"`, rule.Alert)) {
			t.Errorf("alerts_test.yml does not have %s fire", rule.Alert)
		}
		if rule.Labels["severity"] == "" || rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" {
			t.Errorf("%s does not say how grave it is, or what to do", rule.Alert)
		}
	}
}

type alert struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

func alerts(t *testing.T) (all []alert) {
	t.Helper()
	var file struct {
		Groups []struct{ Rules []alert }
	}
	if err := yaml.Unmarshal(read(t, "prometheus/alerts.yml"), &file); err != nil {
		t.Fatal(err)
	}
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	if len(all) < 10 {
		t.Fatalf("%d alerts", len(all))
	}
	return all
}

func promtool(t *testing.T, args ...string) {
	t.Helper()
	if output, err := exec.Command(installed(t, "promtool"), args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args[:2], " "), err, output)
	}
}
