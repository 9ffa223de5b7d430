package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	mssql "github.com/microsoft/go-mssqldb"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/cmd/internal/transit"
)

// These tests give the doctor versions, and answers of the management API, that no server of the
// tests can be made to give.

// expect fails the test unless this is the group's only finding that is not ok.
func (g *group) expect(t *testing.T, check string, level inspect.Level, words string) {
	t.Helper()
	found := false
	for _, f := range g.Findings {
		switch {
		case f.Check == check && f.Level == level && strings.Contains(f.Text, words) && f.Fix != "":
			found = true
		case f.Level != inspect.OK:
			t.Errorf("%s: %s: %s", f.Check, f.Level, f.Text)
		}
	}
	if !found {
		t.Errorf("no %q of level %s with %q in %+v", check, level, words, g.Findings)
	}
}

func TestNodes(t *testing.T) {
	const well = `"running":true,"mem_used":1,"mem_limit":1000,"mem_alarm":false,"disk_free":9000000000,"disk_free_limit":2000000000,"disk_free_alarm":false,"fd_used":10,"fd_total":1000,"proc_used":10,"proc_total":1000`
	for _, c := range []struct {
		name, node string
		check      string
		level      inspect.Level
		words      string
	}{
		{"split", well + `,"partitions":["b@host"]`, "cluster", inspect.Error, "a@host does not see b@host"},
		{"down", `"running":false,"partitions":[],"type":"disc"`, "cluster", inspect.Warning, "a@host does not run"},
		{"no memory", strings.Replace(well, `"mem_alarm":false`, `"mem_alarm":true`, 1), "alarms", inspect.Error, "the broker accepts no messages"},
		{"no disk", strings.Replace(well, `"disk_free_alarm":false`, `"disk_free_alarm":true`, 1), "alarms", inspect.Error, "of disk left"},
		{"a low watermark", strings.Replace(well, `"disk_free_limit":2000000000`, `"disk_free_limit":50000000`, 1), "disk watermark", inspect.Warning, "stops accepting messages when 48 MiB of disk are left"},
		{"nearly no memory", strings.Replace(well, `"mem_used":1`, `"mem_used":900`, 1), "alarms", inspect.Warning, "of memory"},
		{"nearly no disk", strings.Replace(well, `"disk_free":9`, `"disk_free":3`, 1), "alarms", inspect.Warning, "of disk left"},
		{"nearly no files", strings.Replace(well, `"fd_used":10`, `"fd_used":900`, 1), "resources", inspect.Warning, "900 of 1000 file descriptors"},
		{"nearly no processes", strings.Replace(well, `"proc_used":10`, `"proc_used":900`, 1), "resources", inspect.Warning, "900 of 1000 Erlang processes"},
		{"nothing known yet", `"running":true`, "alarms", inspect.Unknown, "does not report the limits"},
		{"disk not watched", strings.Replace(well, `"disk_free_limit":2000000000`, `"disk_free_limit":"disk_free_monitoring_disabled"`, 1), "alarms", inspect.Unknown, "does not report the limits"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := new(group)
			if nodes := examineNodes(t.Context(), g, answering(t, http.StatusOK, `[{"name":"a@host",`+c.node+`}]`)); nodes != 1 {
				t.Errorf("%d nodes", nodes)
			}
			g.expect(t, c.check, c.level, c.words)
		})
	}
}

// answering returns an API that answers every request alike.
func answering(t *testing.T, status int, answer string) *management {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(answer))
	}))
	t.Cleanup(server.Close)
	m, err := newManagement(server.URL, "amqp://user:s3cret@host/")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.close)
	return m
}

func TestAnAnswerInAnotherFormIsNoAnswer(t *testing.T) {
	for _, m := range []*management{answering(t, http.StatusOK, "<html>"), answering(t, http.StatusBadGateway, "{}"), answering(t, http.StatusFound, "")} {
		g := new(group)
		examineNodes(t.Context(), g, m)
		g.expect(t, "alarms", inspect.Error, "management API not reachable")
	}
}

// The doctor makes several requests for each queue. One that gets no answer is enough.
func TestAnAPIThatDoesNotAnswerIsAskedOnce(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		<-r.Context().Done()
	}))
	defer server.Close()
	m, err := newManagement(server.URL, "amqp://user:s3cret@host/")
	if err != nil {
		t.Fatal(err)
	}
	m.http.Timeout = 100 * time.Millisecond
	for range 3 {
		if _, err := m.queue(t.Context(), "q"); !errors.Is(err, errManagementAway) {
			t.Errorf("the error is %v", err)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the API got %d requests", n)
	}
}

func TestQueuesOfAllKinds(t *testing.T) {
	staging := bridge.Topology{Queue: "q"}.Queues()[0]
	for _, c := range []struct {
		name    string
		examine func(g *group)
		check   string
		level   inspect.Level
		words   string
	}{
		{"a queue that deletes itself", func(g *group) {
			examineArguments(g, &managedQueue{Name: "q", Type: "quorum", Durable: true, AutoDelete: true, Arguments: staging.Arguments}, staging, nil)
		}, "arguments of q", inspect.Error, "deletes itself"},
		{"a federated queue", func(g *group) {
			examinePolicies(g, &managedQueue{Name: "q", Type: "quorum", Policy: "p", EffectivePolicy: looseMap{"federation-upstream-set": "all"}}, roleStaging, staging)
		}, "policies of q", inspect.Warning, `federation-upstream-set is "all"`},
		{"a policy with a consumer timeout", func(g *group) { // RabbitMQ 3.12 and later
			examineConsumerTimeout(g, []*managedQueue{{Name: "q", EffectivePolicy: looseMap{"consumer-timeout": 600000.0}}}, 10*time.Minute)
		}, "consumer timeout", inspect.Error, "it is 10m on q"},
		{"a hand-back below the consumer timeout whose half and confirm timeout exceed it", func(g *group) {
			examineConsumerTimeout(g, []*managedQueue{{Name: "q", Arguments: looseMap{"x-consumer-timeout": 1800000.0}}}, 20*time.Minute)
		}, "consumer timeout", inspect.Error, "it is 30m on q, and verifiers hold messages for up to 30m10s"},
		{"such a hand-back, with the broker's consumer timeout", func(g *group) {
			examineConsumerTimeout(g, []*managedQueue{{Name: "q"}}, 20*time.Minute)
		}, "consumer timeout", inspect.Warning, "BRIDGE_HAND_BACK is 20m"},
		{"one of three is away", func(g *group) {
			examineState(g, &managedQueue{Name: "q", Type: "quorum", Members: []string{"a", "b", "c"}, Online: []string{"a", "b"}}, 3)
		}, "members of q", inspect.Warning, "2 of 3 are online"},
		{"a classic queue in a cluster", func(g *group) { examineState(g, &managedQueue{Name: "q", Type: "classic"}, 3) }, "members of q", inspect.Warning, "on one of 3 nodes"},
		{"an API without TLS", func(g *group) {
			g.check("encryption of the API").examineTransit("BRIDGE_MANAGEMENT_URL", transit.HTTP("http://broker.example:15672"))
		}, "encryption of the API", inspect.Warning, "without TLS"},
		{"no majority", func(g *group) {
			examineState(g, &managedQueue{Name: "q", Type: "quorum", Members: []string{"a", "b", "c"}, Online: []string{"a"}}, 3)
		}, "members of q", inspect.Error, "1 of 3 are online, not a majority"},
		{"few members", func(g *group) {
			examineState(g, &managedQueue{Name: "q", Type: "quorum", Members: []string{"a"}, Online: []string{"a"}}, 3)
		}, "members of q", inspect.Warning, "1 members in a cluster of 3 nodes"},
		{"two members", func(g *group) {
			examineState(g, &managedQueue{Name: "q", Type: "quorum", Members: []string{"a", "b"}, Online: []string{"a", "b"}}, 2)
		}, "members of q", inspect.Warning, "the loss of either"},
		{"members not reported", func(g *group) { examineState(g, &managedQueue{Name: "q", Type: "quorum"}, 1) }, "members of q", inspect.Unknown, "does not report"},
		{"a queue that is down", func(g *group) { examineState(g, &managedQueue{Name: "q", Type: "classic", State: "down"}, 1) }, "members of q", inspect.Error, "the queue is down"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := new(group)
			c.examine(g)
			g.expect(t, c.check, c.level, c.words)
		})
	}
}

func TestAPolicyThatIsNotYetInAQueuesDescription(t *testing.T) {
	const policies = `[{"name":"low","pattern":"^q","apply-to":"all","priority":0},{"name":"high","pattern":"^q$","apply-to":"queues","priority":5},
{"name":"other","pattern":"^x","apply-to":"all","priority":9},{"name":"exchanges","pattern":"","apply-to":"exchanges","priority":9}]`
	m := answering(t, http.StatusOK, policies)
	for shown, want := range map[string]string{"": "high", "low": "high", "high": ""} {
		if got := m.newerPolicy(t.Context(), &managedQueue{Name: "q", Type: "quorum", Policy: shown, OperatorPolicy: "high"}); got != want {
			t.Errorf("%q is shown: %q is newer, want %q", shown, got, want)
		}
	}
	if got := answering(t, http.StatusNotFound, "").newerPolicy(t.Context(), &managedQueue{Name: "q"}); got != "" {
		t.Errorf("%q out of nothing", got)
	}
}

// RabbitMQ 4 accepts a negative limit. The tests' RabbitMQ 3.10 does not.
func TestANegativeDeliveryLimitIsNoLimit(t *testing.T) {
	for _, c := range []struct {
		argument, policy any
		limit            float64
		isSet            bool
	}{
		{nil, nil, 0, false},
		{nil, 20.0, 20, true},
		{100.0, nil, 100, true},
		{100.0, 20.0, 20, true},
		{20.0, 100.0, 20, true},
		{-1.0, 20.0, 20, true},
		{20.0, -1.0, 20, true},
		{-1.0, nil, -1, true},
	} {
		q := &managedQueue{Type: "quorum", Arguments: looseMap{"x-delivery-limit": c.argument}, EffectivePolicy: looseMap{"delivery-limit": c.policy}}
		if limit, isSet := q.deliveryLimit(); limit != c.limit || isSet != c.isSet {
			t.Errorf("argument %v, policy %v: %v, %v", c.argument, c.policy, limit, isSet)
		}
	}
	g := new(group)
	examinePolicies(g, &managedQueue{Name: "q", Type: "quorum", Policy: "p", EffectivePolicy: looseMap{"delivery-limit": -1.0}}, roleStaging, bridge.Topology{Queue: "q"}.Queues()[0])
	if len(g.Findings) != 1 || g.Findings[0].Level != inspect.OK {
		t.Errorf("%+v", g.Findings)
	}
}

func TestVersions(t *testing.T) {
	for _, c := range []struct {
		product, version string
		level            inspect.Level
	}{
		{"RabbitMQ", "3.9.29", inspect.Error},
		{"RabbitMQ", "3.10.0", inspect.OK},
		{"RabbitMQ", "3.13.7", inspect.OK},
		{"RabbitMQ", "4.0.1-rc.1", inspect.OK},
		{"RabbitMQ", "next", inspect.Unknown},
		{"RabbitMQ", "", inspect.Unknown},
		{"LavinMQ", "2.0.0", inspect.Warning},
	} {
		g := new(group)
		judgeVersion(g, c.product, c.version)
		if len(g.Findings) != 1 || g.Findings[0].Level != c.level || (g.Findings[0].Fix == "") != (c.level == inspect.OK) {
			t.Errorf("%s %s: %+v", c.product, c.version, g.Findings)
		}
	}
}

func TestTextsOfServersAndMessagesCannotActOnATerminal(t *testing.T) {
	var text strings.Builder
	d := newDiagnosis([]group{{Name: "x\x1b[2J", Findings: []inspect.Finding{
		{Check: "c\a", Level: inspect.Error, Text: "t\x1b]0;title\a\nnext", Fix: "m\u009b"},
	}}})
	p := &page{w: &text}
	d.write(p)
	p.table([]string{"H"}, [][]string{{"cell\x1b[31m\t\x00"}})
	p.line("%s", "line\x1b[31m")
	if p.err != nil || strings.ContainsAny(text.String(), "\x1b\a\x00\u009b") || !strings.Contains(text.String(), "next") {
		t.Errorf("%q", &text)
	}
}

func TestAMissingRightIsReportedWithItsGrant(t *testing.T) {
	for _, err := range []error{&pgconn.PgError{Code: "42501"}, &mysql.MySQLError{Number: 1142}, mssql.Error{Number: 229}} {
		g := new(group)
		g.check("schema").refused(new(database.Database), migrate.LedgerPart, fmt.Errorf("read: %w", err))
		g.check("schema").refused(new(database.Database), migrate.InboxPart, err)
		g.check("proof").failed(err)
		for i, want := range []string{"GRANT SELECT ON bridge_identity", "GRANT SELECT ON bridge_inbox_version", "the findings about rights"} {
			if !strings.Contains(g.Findings[i].Fix, want) {
				t.Errorf("%v: %+v", err, g.Findings[i])
			}
		}
	}
	g := new(group)
	g.check("schema").refused(new(database.Database), migrate.LedgerPart, &pgconn.PgError{Code: "XX000"})
	if g.Findings[0].Fix != "see the error's text" {
		t.Errorf("%+v", g.Findings)
	}
	// Operators paste the statements, so each begins a line.
	var text strings.Builder
	newDiagnosis([]group{{Findings: []inspect.Finding{{Level: inspect.Error, Fix: "GRANT a;\nGRANT b;"}}}}).write(&page{w: &text})
	if !regexp.MustCompile(`> GRANT a;\n +> GRANT b;\n`).MatchString(text.String()) {
		t.Errorf("%s", &text)
	}
}

func TestTheDoctorKnowsTheOrderedQueues(t *testing.T) {
	a := new(app)
	a.config.Queue, a.config.OrderedShards = "q", 2
	t.Run("one has no consumer", func(t *testing.T) {
		g := new(group)
		a.examineDepths(g, map[string]depth{"q": {consumers: 1}, "q.waiting": {consumers: 1}, "q.ordered.0": {consumers: 1}, "q.ordered.1": {ready: 1}})
		g.expect(t, "verifiers", inspect.Warning, "no verifier consumes q.ordered.1; 1 message is ready")
	})
	t.Run("one may not be read", func(t *testing.T) {
		g := new(group)
		a.examineRights(t.Context(), g, answering(t, http.StatusOK, `{"write":".*","read":"^q(\\.waiting|\\.dead|\\.ordered\\.0)?$"}`))
		g.expect(t, "rights", inspect.Error, `may not read "q.ordered.1"`)
	})
}
