package forward

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestABlockedBrokerIsLoggedOnceAndItsReleaseOnce(t *testing.T) {
	var log bytes.Buffer
	f := &Forwarder{log: slog.New(slog.NewTextHandler(&log, nil))}
	for _, reason := range []string{"", "low on memory", "low on memory", "", ""} {
		f.reportBlocked(reason)
		if f.Blocked() != reason {
			t.Errorf("it says %q, must say %q", f.Blocked(), reason)
		}
	}
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], `accepts no messages" reason="low on memory"`) || !strings.Contains(lines[1], "accepts messages again") {
		t.Errorf("the log is %q", lines)
	}
}
