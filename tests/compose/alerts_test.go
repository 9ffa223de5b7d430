package compose

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var alertName = regexp.MustCompile(`(?m)^ +- alert: (\w+)$`)

// Each alert fires when it should, for what it should, and none without need.
func TestTheAlertsFireWhenTheyShould(t *testing.T) {
	tested := read(t, "prometheus/alerts_test.yml")
	output, err := exec.Command(installed(t, "promtool"), append([]string{"test", "rules"}, byStep(t, tested)...)...).CombinedOutput()
	if err != nil {
		t.Errorf("promtool: %v\n%s", err, output)
	}
	for _, match := range alertName.FindAllStringSubmatch(read(t, "prometheus/alerts.yml"), -1) {
		if !strings.Contains(tested, fmt.Sprintf(`alertname="%s"`, match[1])) {
			t.Errorf("alerts_test.yml does not have %s fire", match[1])
		}
	}
}

// byStep makes a file of each test in a file of promtool's. In one whose series go by the hour the
// rules are evaluated by the hour too: promtool evaluates all of them up to the last question,
// and every five minutes of two weeks take it ten seconds.
func byStep(t *testing.T, text string) (files []string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("alerts.yml", read(t, "prometheus/alerts.yml"))
	parts := strings.Split(text, "\n  - name: ")
	const step = "\nevaluation_interval: 5m\n"
	if !strings.Contains(parts[0], step) || len(parts) < 3 {
		t.Fatalf("this is no file of tests as it was:\n%s", parts[0])
	}
	for i, test := range parts[1:] {
		head := parts[0]
		if strings.Contains(test, "\n    interval: 1h\n") {
			head = strings.Replace(head, step, "\nevaluation_interval: 1h\n", 1)
		}
		files = append(files, write(fmt.Sprint(i, ".yml"), head+"\n  - name: "+test))
	}
	return files
}
