package compose

import (
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

var alertName = regexp.MustCompile(`(?m)^ +- alert: (\w+)$`)

// Each alert fires for the fault it is for, when it should, and never without a fault.
func TestTheAlertsFireWhenTheyShould(t *testing.T) {
	tested := read(t, "prometheus/alerts_test.yml")
	output, err := exec.Command(installed(t, "promtool"), "test", "rules",
		folder+"/prometheus/alerts_test.yml", folder+"/prometheus/alerts_weeks_test.yml").CombinedOutput()
	if err != nil {
		t.Errorf("promtool: %v\n%s", err, output)
	}
	for _, match := range alertName.FindAllStringSubmatch(read(t, "prometheus/alerts.yml"), -1) {
		if !strings.Contains(tested, fmt.Sprintf(`alertname="%s"`, match[1])) {
			t.Errorf("alerts_test.yml does not have %s fire", match[1])
		}
	}
}
