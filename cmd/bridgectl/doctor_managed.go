package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/inspect"
)

// monitoringFix is the fix if the API refuses the user an answer. The user needs the tag
// monitoring, and a permission on the virtual host, which may be empty.
const monitoringFix = "give the user of BRIDGE_MANAGEMENT_URL the tag monitoring, and any permission on the virtual host: rabbitmqctl set_permissions -p VHOST USER '^$' '^$' '^$'"

// againFix is the fix for a missing number that the API gathers every few seconds.
const againFix = "run the doctor again in a few seconds; a broker that has just started has no statistics yet"

// examineManaged examines, over the management API, the state that AMQP does not report.
func (a *app) examineManaged(ctx context.Context, m *management, broker, queues *group, there map[string]depth) {
	if err := m.get(ctx, new(struct{}), "whoami"); err != nil {
		broker.check("management API").failed(about("BRIDGE_MANAGEMENT_URL", err))
		return
	}
	broker.check("management API").ok("it answers")
	nodes := examineNodes(ctx, broker, m)
	a.examineRights(ctx, broker, m)
	a.examineLimits(ctx, broker, m)
	var staging []*managedQueue
	for _, want := range a.topology().Queues() {
		if _, ok := there[want.Name]; !ok {
			continue // reported already
		}
		q, err := m.queue(ctx, want.Name)
		switch {
		case errors.Is(err, errNotThere):
			queues.check("arguments of "+want.Name).fail("check that both URLs name the same broker and virtual host",
				"the queue exists over AMQP, but not in the management API")
			continue
		case err != nil:
			queues.check("arguments of " + want.Name).unanswered(err)
			continue
		}
		r := a.roleOf(want.Name)
		examineArguments(queues, q, want, there[want.Name].declared)
		if stale := m.newerPolicy(ctx, q); stale != "" {
			queues.check("policies of "+q.Name).unknown(againFix, "policy %q matches the queue, but the management API does not report its effect yet", stale)
		} else {
			examinePolicies(queues, q, r, want)
		}
		examineState(queues, q, nodes)
		if r == roleStaging {
			staging = append(staging, q)
		}
		examineConsumers(ctx, queues, m, q, r)
	}
	if a.topology().Exchange != "" {
		a.examineBindings(ctx, queues, m)
		a.examineAlternate(ctx, queues, m)
	}
	if len(staging) > 0 {
		examineConsumerTimeout(queues, staging, a.config.HandBack.Duration())
	}
}

// newerPolicy returns the name of a policy that applies to a queue and is not yet in the queue's
// description, which can be many seconds old. It returns "" if there is none, or if the login may
// not list policies.
func (m *management) newerPolicy(ctx context.Context, q *managedQueue) string {
	for kind, shown := range map[string]string{"policies": q.Policy, "operator-policies": q.OperatorPolicy} {
		var policies []struct {
			Name     string `json:"name"`
			Pattern  string `json:"pattern"`
			ApplyTo  string `json:"apply-to"`
			Priority int    `json:"priority"`
		}
		if m.get(ctx, &policies, kind, m.vhost) != nil {
			continue
		}
		var names []string // of the policies with the highest priority; RabbitMQ applies one of them
		highest := math.MinInt
		for _, p := range policies {
			matches, err := regexp.MatchString(p.Pattern, q.Name)
			switch {
			case err != nil || !matches || p.ApplyTo != "all" && p.ApplyTo != "queues" && p.ApplyTo != q.Type+"_queues":
			case p.Priority > highest:
				highest, names = p.Priority, []string{p.Name}
			case p.Priority == highest:
				names = append(names, p.Name)
			}
		}
		if len(names) > 0 && !slices.Contains(names, shown) {
			return names[0]
		}
	}
	return ""
}

// unanswered adds an error of the management API. The answer is unknown if the API does not show it
// to the login.
func (c *check) unanswered(err error) {
	level := inspect.Error
	if errors.Is(err, errManagementRights) {
		level = inspect.Unknown
	}
	c.add(level, monitoringFix, "%s", err)
}

func (a *app) roleOf(queue string) role {
	switch t := a.topology(); queue {
	case t.DeadQueue():
		return roleDead
	case t.AuditQueue():
		return roleAudit
	}
	return roleStaging
}

// managedNode is a node of the broker.
type managedNode struct {
	Name          string   `json:"name"`
	Running       bool     `json:"running"`
	MemoryUsed    loose    `json:"mem_used"`
	MemoryLimit   loose    `json:"mem_limit"`
	MemoryAlarm   bool     `json:"mem_alarm"`
	DiskFree      loose    `json:"disk_free"`
	DiskLimit     loose    `json:"disk_free_limit"`
	DiskAlarm     bool     `json:"disk_free_alarm"`
	FilesUsed     loose    `json:"fd_used"`
	FilesMost     loose    `json:"fd_total"`
	ProcessesUsed loose    `json:"proc_used"`
	ProcessesMost loose    `json:"proc_total"`
	Partitions    []string `json:"partitions"`
}

// loose is a number. If the API writes a word instead, it is 0.
type loose int64

func (l *loose) UnmarshalJSON(text []byte) error {
	var number float64
	if json.Unmarshal(text, &number) == nil {
		*l = loose(number)
	}
	return nil
}

func (l loose) bytes() string { return humanize.IBytes(uint64(max(l, 0))) }

// leastDisk is the least disk_free_limit that a broker should have. RabbitMQ's default is 50 MB,
// which a burst of messages fills before the alarm stops the senders.
const leastDisk = 1_000_000_000 // 1GB, as rabbitmq.conf counts

// crowded reports whether more than four fifths are used.
func crowded(used, most loose) bool { return most > 0 && used > most/5*4 }

// examineNodes examines the broker's nodes, and returns their number.
func examineNodes(ctx context.Context, g *group, m *management) int {
	c := g.check("alarms")
	var nodes []managedNode
	if err := m.get(ctx, &nodes, "nodes"); err != nil {
		c.unanswered(err)
		return 0
	}
	for _, n := range nodes {
		if n.Running && (n.MemoryLimit == 0 || n.DiskLimit == 0) {
			c.unknown(againFix, "the management API does not report the limits of %s", n.Name)
			return len(nodes)
		}
		if n.MemoryAlarm {
			c.fail("free memory: consume messages, or give the machine more and raise vm_memory_high_watermark",
				"%s uses %s of memory, its limit is %s: the broker accepts no messages", n.Name, n.MemoryUsed.bytes(), n.MemoryLimit.bytes())
		} else if crowded(n.MemoryUsed, n.MemoryLimit) {
			c.warn("find out which queues or connections use it, before the alarm stops all senders", "%s uses %s of memory, its limit is %s", n.Name, n.MemoryUsed.bytes(), n.MemoryLimit.bytes())
		}
		if n.DiskAlarm {
			c.fail("free disk space", "%s has %s of disk left, its limit is %s: the broker accepts no messages", n.Name, n.DiskFree.bytes(), n.DiskLimit.bytes())
		} else if n.Running && n.DiskLimit > 0 && n.DiskFree < 2*n.DiskLimit {
			c.warn("free disk space, before the alarm stops all senders", "%s has %s of disk left, its limit is %s", n.Name, n.DiskFree.bytes(), n.DiskLimit.bytes())
		}
	}
	c.okIfNoneFound("none on %s", count(len(nodes), "node"))

	c = g.check("disk watermark")
	for _, n := range nodes {
		if n.Running && n.DiskLimit < leastDisk {
			c.warn("set disk_free_limit.absolute in rabbitmq.conf to 1GB or more",
				"%s stops accepting messages when %s of disk are left: too late for messages that are on their way", n.Name, n.DiskLimit.bytes())
		}
	}
	c.okIfNoneFound("1 GB or more on %s", count(len(nodes), "node"))

	c = g.check("resources")
	for _, n := range nodes {
		if crowded(n.FilesUsed, n.FilesMost) {
			c.warn("raise the limit of open files of the broker's service", "%s uses %d of %d file descriptors", n.Name, n.FilesUsed, n.FilesMost)
		}
		if crowded(n.ProcessesUsed, n.ProcessesMost) {
			c.warn("close unused connections and channels", "%s uses %d of %d Erlang processes", n.Name, n.ProcessesUsed, n.ProcessesMost)
		}
	}
	c.okIfNoneFound("files and processes are below four fifths of their limits")

	c = g.check("cluster")
	running := 0
	for _, n := range nodes {
		if n.Running {
			running++
		} else {
			c.warn("start it, or remove it from the cluster: rabbitmqctl forget_cluster_node "+n.Name, "%s does not run", n.Name)
		}
		if len(n.Partitions) > 0 {
			c.fail("see RabbitMQ's guide to network partitions; restart the nodes of the smaller part",
				"%s does not see %s: the cluster is split", n.Name, strings.Join(n.Partitions, ", "))
		}
	}
	c.okIfNoneFound("%s, all running", count(running, "node"))
	return len(nodes)
}

// examineState examines whether the nodes of a queue run, and how many it has.
func examineState(g *group, q *managedQueue, nodes int) {
	c := g.check("members of " + q.Name)
	if q.Type != "quorum" {
		if q.State != "" && q.State != "running" && q.State != "flow" && q.State != "idle" {
			c.fail("start the queue's node", "the queue is %s", q.State)
		} else if nodes > 1 {
			c.warn("use quorum queues (BRIDGE_CLASSIC=false)", "a %s queue is on one of %d nodes: while this node is down, its messages are stuck", q.Type, nodes)
		}
		return
	}
	members, online := len(q.Members), len(q.Online)
	switch {
	case members == 0:
		c.unknown(againFix, "the management API does not report them")
	case online <= members/2:
		c.fail("start the nodes that are missing", "%d of %d are online, not a majority: its messages are stuck", online, members)
	case online < members:
		c.warn("start the nodes that are missing", "%d of %d are online", online, members)
	case members < 3 && nodes >= 3:
		c.warn("add members: rabbitmq-queues grow NODE all", "the queue has %d members in a cluster of %d nodes: the loss of one stops it", members, nodes)
	case members == 2:
		c.warn("add a third node", "the queue has 2 members: the loss of either stops it")
	default:
		c.ok("%d of %d are online", online, members)
	}
}

// examineConsumers looks for foreign programs that consume a queue.
func examineConsumers(ctx context.Context, g *group, m *management, q *managedQueue, r role) {
	c := g.check("consumers of " + q.Name)
	if r == roleAudit || len(q.ConsumerDetails) == 0 {
		return
	}
	var connections []struct {
		Name       string `json:"name"`
		Properties struct {
			Product string `json:"product"`
		} `json:"client_properties"`
	}
	if err := m.get(ctx, &connections, "vhosts", m.vhost, "connections"); err != nil {
		c.unanswered(err)
		return
	}
	foreign := make(map[string]bool) // by connection
	for _, connection := range connections {
		foreign[connection.Name] = connection.Properties.Product != bridge.Product
	}
	var names []string
	for _, consumer := range q.ConsumerDetails {
		if channel := consumer.Channel; foreign[channel.Connection] {
			names = append(names, fmt.Sprintf("%s as %s", channel.Connection, channel.User))
		}
	}
	switch {
	case len(names) > 0 && r == roleStaging:
		c.fail("stop it, and revoke its right to read the queue", "a program other than a verifier consumes staged messages: %s", strings.Join(names, "; "))
	case len(names) > 0:
		c.warn("check that this program is meant to handle dead messages", "a program other than the bridge's consumes dead messages: %s", strings.Join(names, "; "))
	}
}

// examineRights compares the login's rights with the rights that verifiers, senders and
// bridgectl dead need.
func (a *app) examineRights(ctx context.Context, g *group, m *management) {
	c := g.check("rights")
	user := m.login
	var rights struct {
		Write string `json:"write"`
		Read  string `json:"read"`
	}
	err := m.get(ctx, &rights, "permissions", m.vhost, user)
	switch {
	case errors.Is(err, errManagementRights):
		c.unknown("ask with a user that has the tag administrator, or on the broker's machine: rabbitmqctl list_user_permissions "+user,
			"the management API shows the rights of %s to an administrator only", user)
		return
	case errors.Is(err, errNotThere):
		c.unknown("look up the rights where the broker finds the login (LDAP, OAuth)", "the broker lists no rights for %s", user)
		return
	case err != nil:
		c.failed(err)
		return
	}
	t := a.topology()
	type need struct{ right, pattern, name, what string }
	needs := []need{
		{"read", rights.Read, t.Queue, "a verifier cannot consume it"},
		{"read", rights.Read, t.WaitingQueue(), "a verifier cannot consume it"},
		{"read", rights.Read, t.DeadQueue(), "bridgectl dead cannot read it"},
		{"write", rights.Write, "amq.default", "senders cannot stage, verifiers cannot set messages aside"},
	}
	if t.Exchange != "" {
		needs[len(needs)-1].what = "verifiers cannot set messages aside"
	}
	for _, queue := range t.OrderedQueues() {
		needs = append(needs, need{"read", rights.Read, queue, "a verifier cannot consume it"})
	}
	for _, need := range needs {
		matches, err := regexp.MatchString(need.pattern, need.name)
		if err != nil {
			c.unknown("compare the pattern with the name "+need.name, "bridgectl cannot parse the pattern for %s: %q", need.right, need.pattern)
		} else if need.pattern == "" || !matches {
			c.fail(fmt.Sprintf("rabbitmqctl set_permissions, with a pattern for %s that matches %q", need.right, need.name),
				"%s may not %s %q: %s", user, need.right, need.name, need.what)
		}
	}
	c.okIfNoneFound("%s may read the queues and write to the default exchange", user)
}
