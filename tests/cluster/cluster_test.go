package cluster

import (
	"errors"
	"flag"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/faults/parts"
	"github.com/twoqueue/twoqueue/tests/faults/world"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

var pauseFlag = flag.Duration("cluster.pause", 600*time.Millisecond, "at most, of each sender between two transactions; 30ms makes heavy traffic")

var diariesFlag = flag.String("cluster.diaries", "", "a folder that keeps the diary")

func TestMain(m *testing.M) { world.Main(m) }

// stage is a cluster with traffic on it.
type stage struct {
	*world.World
	t        *testing.T
	cluster  *servers.Cluster
	vhost    string
	balancer *servertest.Valve
}

func TestACluster(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	diary := world.NewDiary(t, *diariesFlag)
	cluster := servertest.StartCluster(t, 3, &servers.RabbitMQOptions{Log: diary.Page("RabbitMQ")})
	t.Run("that loses leaders, the only node of a target, and a partition loses and invents nothing, and keeps the order of each key", func(t *testing.T) {
		s := newStage(t, diary, cluster, func(c *world.Config) { c.MoreTargets = []string{alone.RoutingKey} })
		s.progress("with three nodes")
		s.syncDeclarations()
		s.killLeaders(topology.Queue, topology.OrderedQueues()[0], world.Quorum.RoutingKey)
		s.loseOnlyNode()
		s.partition()
		s.End(100)
	})
	t.Run("that has a frozen node serves all clients by the other nodes", func(t *testing.T) {
		s := newStage(t, diary, cluster, func(c *world.Config) { c.Nodes = nodes(cluster, c.AMQP) })
		s.progress("with three nodes")
		s.syncDeclarations()
		s.freeze()
		s.End(50)
	})
	t.Run("that elects leaders lets every sender send", func(t *testing.T) { senderDuringElection(t, cluster) })
}

// syncDeclarations has each node find its queues again after a Kill.
func (s *stage) syncDeclarations() {
	s.t.Helper()
	for _, node := range s.cluster.Nodes {
		if err := node.SyncDeclarations(s.t.Context()); err != nil {
			s.t.Fatal(err)
		}
	}
}

func newStage(t *testing.T, diary *world.Diary, cluster *servers.Cluster, change func(*world.Config)) *stage {
	t.Helper()
	vhost := newVhost(t, cluster)
	balancer, address := balance(t, cluster, vhost)
	config := world.Config{
		Diary:    diary,
		AMQP:     address,
		Shop:     servertest.PostgresDB(t),
		Post:     servertest.PostgresDB(t),
		Topology: topology,
		Quorum:   true,
		Keys:     6,
		Pause:    *pauseFlag,
	}
	change(&config)
	w := world.New(t, config)
	s := &stage{w, t, cluster, vhost, balancer}
	if len(config.MoreTargets) > 0 {
		s.declareAlone()
	}
	for i := range 2 {
		w.AddSender(2, uint64(i))
		w.AddVerifier()
		w.AddReceiver()
	}
	return s
}

var topology = bridge.Topology{Queue: "staging", OrderedShards: 1}

// killLeaders kills the leader of each queue and restarts it. If one node leads several of the
// queues, as after their declaration by one connection, it is killed once.
func (s *stage) killLeaders(queues ...string) {
	s.t.Helper()
	for len(queues) > 0 {
		node := s.leader(queues[0])
		var lost, rest []string
		for _, queue := range queues {
			if s.leader(queue) == node {
				lost = append(lost, queue)
			} else {
				rest = append(rest, queue)
			}
		}
		s.Diary.Note("kill %s, the leader of %v", node.Name(), lost)
		node.Kill()
		for _, queue := range lost {
			s.elected(queue, node)
		}
		s.progress(fmt.Sprintf("without the leader of %v", lost))
		s.Must("restart node", node.Restart(s.t.Context()))
		s.online(node)
		s.progress("with three nodes again")
		queues = rest
	}
}

// loseOnlyNode kills the only node of a target's queue for a while. The other targets must not
// wait for it.
func (s *stage) loseOnlyNode() {
	s.t.Helper()
	node := s.cluster.Nodes[2]
	s.Diary.Note("kill %s, the only member of %s", node.Name(), alone.RoutingKey)
	node.Kill()
	for _, v := range s.Verifiers { // new sessions, with new channels
		v.Kill()
		v.Start()
	}
	var script []parts.Transaction
	for range 20 {
		script = append(script, parts.Transaction{Orders: []parts.Order{{ID: uuid.Must(uuid.NewV7()), To: alone}}})
	}
	s.AddScript(script...).Start()
	s.progress("while a target has lost its only node")
	s.progress("while a target has lost its only node")
	s.Must("restart node", node.Restart(s.t.Context()))
	s.online(node)
}

// freeze freezes the node of the ledger queue for a while; a verifier consumes there. All clients
// must go on by the other nodes before these declare the node dead. Only in RabbitMQ 3.10 do
// messages to queues led by the frozen node wait until then. A freeze of that length can leave
// the nodes apart; see reunite.
func (s *stage) freeze() {
	s.t.Helper()
	node := s.ledgerNode()
	var lost []<-chan string
	for _, v := range s.Verifiers {
		lost = append(lost, v.Await("session ended"))
	}
	s.Diary.Note("freeze %s, the node of %s", node.Name(), topology.LedgerQueue())
	s.t.Cleanup(node.Thaw)
	node.Freeze()
	began := time.Now()
	s.balancer.Avoid(node.Addr()) // the receivers have one address; see package bridge
	again := s.await(lost)
	servertest.Next(s.t, "a session by another node", again)
	const dead = time.Minute // net_ticktime, after which the other nodes declare the node dead
	took := time.Since(began)
	s.t.Logf("a session by another node after %v", took.Round(10*time.Millisecond))
	if took > dead {
		s.t.Errorf("the verifier has a session by another node after %v, must be within %v", took, dead)
	}
	s.progress("while a node is frozen")
	s.progress("while a node is frozen")
	s.Diary.Note("thaw %s", node.Name())
	node.Thaw()
	s.balancer.Avoid("")
	s.online(node)
	s.progress("with three nodes again")
}

// await waits until a verifier has lost its session, and returns the channel that reports its
// next session.
func (s *stage) await(lost []<-chan string) (again <-chan string) {
	s.t.Helper()
	s.Must("wait", servertest.Await(s.t.Context(), "a verifier has lost its session", func() (bool, error) {
		for i, c := range lost {
			if len(c) > 0 {
				again = s.Verifiers[i].Await("session started")
				return true, nil
			}
		}
		return false, nil
	}))
	return again
}

// ledgerNode returns the node of the ledger queue. The first verifier consumes there.
func (s *stage) ledgerNode() *servers.RabbitMQ {
	s.t.Helper()
	found, err := s.cluster.Nodes[0].Eval(s.t.Context(),
		`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"%s">>, queue, <<"%s">>)), node(amqqueue:get_pid(Q))`, s.vhost, topology.LedgerQueue())
	s.Must("find queue", err)
	for _, node := range s.cluster.Nodes {
		if strings.Contains(found, node.Name()) {
			return node
		}
	}
	s.t.Fatalf("queue %s is on no node: %q", topology.LedgerQueue(), found)
	panic("unreachable")
}

// nodes returns a URL with the addresses of all nodes and the vhost of the URL balanced.
func nodes(c *servers.Cluster, balanced string) string {
	u, err := url.Parse(balanced)
	if err != nil {
		panic(err) // it was parsed before
	}
	var hosts []string
	for _, node := range c.Nodes {
		hosts = append(hosts, node.Addr())
	}
	u.Host = strings.Join(hosts, ",")
	return u.String()
}

// partition separates the staging queue's leader from the other nodes for a while.
func (s *stage) partition() {
	s.t.Helper()
	node := s.leader(topology.Queue)
	s.Diary.Note("partition %s off, the leader of staging", node.Name())
	pauses := servertest.FeaturesOf(s.t, node.URL()).MinorityPauses // it is then soon unreachable
	s.Must("partition", s.cluster.Isolate(s.t.Context(), node))
	if !pauses {
		s.balancer.Avoid(node.Addr()) // as a balancer's health check would; see package bridge
	}
	s.elected(topology.Queue, node)
	s.progress("with one node partitioned off")
	s.Must("end the partition", s.cluster.Rejoin(s.t.Context(), node))
	s.balancer.Avoid("")
	s.online(node)
	s.progress("with three nodes again")
}

// alone is a target whose queue has one member, on the last node.
var alone = bridge.Target{RoutingKey: "target.alone"}

func (s *stage) declareAlone() {
	s.t.Helper()
	conn, err := amqp.Dial(s.cluster.Nodes[2].VhostURL(s.vhost))
	s.Must("dial", err)
	defer conn.Close()
	ch, err := conn.Channel()
	s.Must("open channel", err)
	_, err = ch.QueueDeclare(alone.RoutingKey, true, false, false, false,
		amqp.Table{"x-queue-type": "quorum", "x-quorum-initial-group-size": 1, "x-delivery-limit": 1_000_000})
	s.Must("declare queue", err)
}

// newVhost creates a virtual host and waits until every node accepts clients for it. It is never
// deleted: the cluster ends with the tests.
func newVhost(t *testing.T, c *servers.Cluster) string {
	t.Helper()
	whole(t, c)
	name := fmt.Sprintf("v%d", vhosts.Add(1))
	for _, args := range [][]string{{"add_vhost", name}, {"set_permissions", "-p", name, "guest", ".*", ".*", ".*"}} {
		if _, err := c.Nodes[0].Ctl(t.Context(), args...); err != nil {
			t.Fatalf("make vhost: %v", err)
		}
	}
	for _, node := range c.Nodes {
		if err := servertest.Await(t.Context(), node.Name()+" takes clients for vhost "+name, func() (bool, error) {
			conn, err := amqp.Dial(node.VhostURL(name))
			if err != nil {
				return false, err
			}
			return true, conn.Close()
		}); err != nil {
			t.Fatalf("wait: %v", err)
		}
	}
	return name
}

var vhosts atomic.Int32

// balance starts a balancer in front of the nodes and returns it with the cluster's one URL.
func balance(t *testing.T, c *servers.Cluster, vhost string) (*servertest.Valve, string) {
	t.Helper()
	var others []string
	for _, node := range c.Nodes[1:] {
		others = append(others, node.Addr())
	}
	u, err := url.Parse(c.Nodes[0].VhostURL(vhost))
	if err != nil {
		t.Fatal(err)
	}
	balancer := servertest.NewValve(t, u.Host, others...)
	u.Host = balancer.Addr()
	return balancer, u.String()
}

// progress waits until 100 more messages have had their effect.
func (s *stage) progress(when string) {
	s.t.Helper()
	const some = 100
	before, began := -1, time.Now()
	if err := s.AwaitCount("messages arrive "+when, s.Post(), `SELECT count(*) FROM effects`, func(n int) bool {
		if before < 0 {
			before = n
		}
		return n >= before+some
	}); err != nil {
		queues := s.list() // before the verifiers end
		s.t.Fatalf("%s\n%s\nwait: %v", s.Explain(), queues, err)
	}
	s.t.Logf("%s: %d messages more after %v", when, some, time.Since(began).Round(10*time.Millisecond))
}

// leader waits until a queue has a leader, and returns that node.
func (s *stage) leader(queue string) *servers.RabbitMQ {
	s.t.Helper()
	return leaderBeside(s.t, s.cluster, s.vhost, queue, nil)
}

// elected waits until the nodes other than old report that one of them leads the queue.
func (s *stage) elected(queue string, old *servers.RabbitMQ) {
	s.t.Helper()
	node := leaderBeside(s.t, s.cluster, s.vhost, queue, old)
	s.Diary.Note("%s is elected, the leader of %s", node.Name(), queue)
}

// leaderBeside waits until a queue has a leader other than old, and returns that node. It does
// not query old.
func leaderBeside(t *testing.T, c *servers.Cluster, vhost, queue string, old *servers.RabbitMQ) (leader *servers.RabbitMQ) {
	t.Helper()
	others := slices.DeleteFunc(slices.Clone(c.Nodes), func(node *servers.RabbitMQ) bool { return node == old })
	if err := servertest.Await(t.Context(), queue+" has a leader", func() (bool, error) {
		told := queues(t, others, vhost, "leader")[queue]
		for _, node := range others {
			if strings.Contains(told, node.Name()) {
				leader = node
			}
		}
		return leader != nil, nil
	}); err != nil {
		t.Fatalf("wait: %v", err)
	}
	return leader
}

// online waits, after a node has been away, until the nodes form one cluster and every queue has
// all its members online. Otherwise the loss of the next node could cost a queue its majority.
func (s *stage) online(back *servers.RabbitMQ) {
	s.t.Helper()
	reunite(s.t, s.cluster, back)
	s.Must("wait", servertest.Await(s.t.Context(), "all nodes are online", func() (bool, error) {
		queues := queues(s.t, s.cluster.Nodes, s.vhost, "online")
		for queue, members := range queues {
			if queue == alone.RoutingKey || queue == topology.LedgerQueue() { // classic queues, with one member
				continue
			}
			for _, node := range s.cluster.Nodes {
				if !strings.Contains(members, node.Name()) {
					return false, nil
				}
			}
		}
		return len(queues) > 0, nil
	}))
}

// reunite waits, after a node has been away, until the nodes form one cluster. If they stay
// apart, as after a freeze of more than a minute, it restarts the node, as RabbitMQ's guide to
// partitions advises.
func reunite(t *testing.T, c *servers.Cluster, back *servers.RabbitMQ) {
	t.Helper()
	var split error
	if err := servertest.Await(t.Context(), "the nodes form one cluster or stay apart", func() (bool, error) {
		err := c.Whole(t.Context())
		if errors.Is(err, servers.ErrSplit) {
			split, err = err, nil
		}
		return err == nil, err
	}); err != nil {
		t.Fatalf("wait: %v", err)
	}
	if split == nil {
		return
	}
	t.Logf("restart %s: %v", back.Name(), split)
	if err := back.Restart(t.Context()); err != nil {
		t.Fatalf("restart node: %v", err)
	}
	whole(t, c)
}

// whole waits until the nodes form one cluster.
func whole(t *testing.T, c *servers.Cluster) {
	t.Helper()
	if err := servertest.Await(t.Context(), "the nodes form one cluster", func() (bool, error) {
		err := c.Whole(t.Context())
		return err == nil, err
	}); err != nil {
		t.Fatalf("wait: %v", err)
	}
}

// list returns each node's list of the queues.
func (s *stage) list() string {
	var out strings.Builder
	for _, node := range s.cluster.Nodes {
		text, err := node.Ctl(s.t.Context(), "-q", "list_queues", "-p", s.vhost,
			"name", "state", "leader", "online", "messages_ready", "messages_unacknowledged", "consumers")
		fmt.Fprintf(&out, "%s: error %v\n%s\n", node.Name(), err, text)
	}
	return out.String()
}

// queues returns one item of all queues, from the first node that answers; nil if no node
// answers.
func queues(t *testing.T, nodes []*servers.RabbitMQ, vhost, item string) map[string]string {
	t.Helper()
	for _, node := range nodes {
		if told, err := node.Queues(t.Context(), vhost, item); err == nil {
			return told
		}
	}
	return nil
}
