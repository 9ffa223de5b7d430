package faults

import (
	"context"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/faults/world"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// A pair is a world whose senders' database is a primary with a replica. Clients connect to one
// address, a valve's, which leads to the primary.
type pair struct {
	*world.World
	t       *testing.T
	address *servertest.Valve
	primary replicated
	replica replicated
}

// replicated is a server of a pair.
type replicated interface {
	world.DatabaseServer
	Addr() string
	Promote(context.Context) error
	Freeze()
	Thaw()
}

// newPair makes a world with traffic on a pair. shop is the URL of the primary's database, post is
// the URL of another database of the same kind.
func newPair(t *testing.T, diary *world.Diary, primary, replica replicated, shop, post string) *pair {
	t.Helper()
	valve, through := servertest.Through(t, shop)
	w := world.New(t, world.Config{
		Diary:    diary,
		AMQP:     servertest.Vhost(t),
		Shop:     through,
		Post:     post,
		Topology: bridge.Topology{Queue: "staging"},
		Pause:    50 * time.Millisecond,
	})
	for i := range 2 {
		w.AddSender(4, uint64(i))
		w.AddVerifier()
	}
	w.AddReceiver()
	return &pair{w, t, valve, primary, replica}
}

// progress waits until some more messages have had their effect.
func (p *pair) progress(when string) {
	p.t.Helper()
	const some = 150
	p.AwaitMore("messages arrive "+when, p.Post(), `SELECT count(*) FROM effects`, some)
}

// failOver kills the primary, promotes the replica and leads all clients to it.
func (p *pair) failOver() {
	p.t.Helper()
	p.Diary.Note("the primary is killed, and its replica promoted")
	p.primary.Kill()
	p.DatabaseKilled()
	p.replica.Thaw()
	p.Must("promote", p.replica.Promote(p.t.Context()))
	p.address.Lead(p.replica.Addr())
}

// postgresPair returns a pair that replicates synchronously.
func postgresPair(t *testing.T) *pair {
	t.Helper()
	if testing.Short() {
		t.Skip("kills servers")
	}
	diary := world.NewDiary(t, *diariesFlag)
	primary := servertest.StartPostgres(t, &servers.PostgresOptions{Log: diary.Page("primary"), Config: []string{"synchronous_standby_names = '*'"}})
	standby := servertest.StartStandby(t, primary, &servers.PostgresOptions{Log: diary.Page("standby")})
	return newPair(t, diary, primary, standby, primary.URL(), servertest.PostgresDB(t))
}

// The commits' wait for the standby is cancelled, as a driver does when the sender's context ends
// during COMMIT. Each commit then counts and others see its row, until the failover undoes it.
func TestACommitThatTheStandbyLacksIsNotForwarded(t *testing.T) {
	t.Parallel()
	p := postgresPair(t)
	p.progress("before the failover")
	p.replica.Freeze()
	seen := 0
	p.Must("wait", servertest.Await(t.Context(), "commits that the standby lacks are seen", func() (bool, error) {
		var n int
		err := p.Shop().QueryRowContext(t.Context(), `SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
WHERE wait_event = 'SyncRep' AND application_name = 'sender'`).Scan(&n)
		seen += n
		return seen > 30, err
	}))
	world.Rest(t.Context(), time.Second) // time in which a verifier could forward them
	p.failOver()
	p.progress("after the failover")
	p.End(0)
}

// mariaDBPair returns a pair that replicates semi-synchronously.
func mariaDBPair(t *testing.T, waitPoint string) *pair {
	t.Helper()
	if testing.Short() {
		t.Skip("kills servers")
	}
	diary := world.NewDiary(t, *diariesFlag)
	primary := servertest.StartMariaDB(t, &servers.MariaDBOptions{Log: diary.Page("primary"), Config: append(servers.Replicates(),
		"rpl-semi-sync-master-enabled=ON", "rpl-semi-sync-master-timeout=600000", "rpl-semi-sync-master-wait-point="+waitPoint)})
	replica := servertest.StartReplica(t, primary, &servers.MariaDBOptions{Log: diary.Page("replica"), Config: []string{"rpl-semi-sync-slave-enabled=ON"}})
	shop := "mysql://root@" + primary.Addr() + "/"
	world.CreateDatabase(t, shop, "shop")
	post, err := mysql.ParseDSN(servertest.MariaDBDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	return newPair(t, diary, primary, replica, shop+"shop", "mysql://root@"+post.Addr+"/"+post.DBName)
}

func TestAFailoverOfASemiSynchronousMariaDBLosesAndInventsNothing(t *testing.T) {
	t.Parallel()
	for _, waitPoint := range []string{"AFTER_SYNC", "AFTER_COMMIT"} {
		t.Run(waitPoint, func(t *testing.T) {
			t.Parallel()
			p := mariaDBPair(t, waitPoint)
			p.progress("before the failover")
			p.replica.Freeze() // commits then wait for the replica
			world.Rest(t.Context(), time.Second)
			p.failOver()
			p.progress("after the failover")
			p.End(0)
		})
	}
}
