package servertest_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

const limit = servertest.Patience

func TestMain(m *testing.M) { servertest.Main(m) }

func TestVhostsAreApart(t *testing.T) {
	first, second := servertest.Vhost(t), servertest.Vhost(t)
	declare(t, first, "q")
	_, err := channel(t, second).QueueDeclarePassive("q", false, true, false, false, nil)
	expectCode(t, err, amqp.NotFound)
}

func TestUserHasOnlyItsRights(t *testing.T) {
	vhost := servertest.Vhost(t)
	declare(t, vhost, "mine")
	user := servertest.User(t, vhost, "", ".*", "mine")

	if _, _, err := channel(t, user).Get("mine", true); err != nil {
		t.Fatal(err)
	}
	_, err := channel(t, user).QueueDeclare("other", false, true, false, false, nil)
	expectCode(t, err, amqp.AccessRefused)
}

func TestPolicyLimitsAQueue(t *testing.T) {
	vhost := servertest.Vhost(t)
	servertest.SetPolicy(t, vhost, "short", "^q$", map[string]any{"max-length": 0, "overflow": "reject-publish"})
	declare(t, vhost, "q")
	if publish(t, channel(t, vhost)) {
		t.Fatal("a full queue took a message")
	}
}

func TestAlarmBlocksPublishers(t *testing.T) {
	server := servertest.StartRabbitMQ(t, nil)
	vhost := server.URL()
	declare(t, vhost, "q")
	conn := dial(t, vhost)
	blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 2))
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}

	servertest.Alarm(t, server, true)
	// The broker tells a connection only when it publishes, or at once.
	if err := ch.Publish("", "q", false, false, amqp.Publishing{}); err != nil {
		t.Fatal(err)
	}
	expectBlocked(t, blocked, true)
	servertest.Alarm(t, server, false)
	expectBlocked(t, blocked, false)
}

func TestValveHoldsAndReleases(t *testing.T) {
	vhost := servertest.Vhost(t)
	declare(t, vhost, "q")
	uri, err := amqp.ParseURI(vhost)
	if err != nil {
		t.Fatal(err)
	}
	server := servertest.RabbitMQ(t)
	valve := servertest.NewValve(t, server.Addr())
	conn, err := amqp.Dial("amqp://guest:guest@" + valve.Addr() + "/" + uri.Vhost)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // cut below
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}

	valve.HoldReplies()
	confirmation, err := ch.PublishWithDeferredConfirm("", "q", true, false, amqp.Publishing{})
	if err != nil {
		t.Fatal(err)
	}
	awaitMessage(t, vhost) // it went through
	select {
	case <-confirmation.Done():
		t.Fatal("confirmed through a closed valve")
	default:
	}
	valve.Release()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if acked, err := confirmation.WaitContext(ctx); err != nil || !acked {
		t.Fatalf("after the release: acked %v, %v", acked, err)
	}

	valve.HoldRequests()
	closed := conn.NotifyClose(make(chan *amqp.Error, 1))
	if err := ch.Publish("", "q", false, false, amqp.Publishing{}); err != nil {
		t.Fatal(err)
	}
	valve.Cut()
	select {
	case <-closed:
	case <-ctx.Done():
		t.Fatal("the cut was not noticed")
	}
	if _, ok, err := channel(t, vhost).Get("q", true); err != nil || ok {
		t.Fatalf("a request came through a closed valve: %v, %v", ok, err)
	}
	valve.Release()
	again, err := amqp.Dial("amqp://guest:guest@" + valve.Addr() + "/" + uri.Vhost)
	if err != nil {
		t.Fatalf("connect after the cut: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

func TestDatabasesAreApart(t *testing.T) {
	first, second := servertest.PostgresDB(t), servertest.PostgresDB(t)
	for _, address := range []string{first, second} {
		conn := connect(t, address)
		if _, err := conn.Exec(t.Context(), "CREATE TABLE t (id int)"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPgBouncerLeadsToTheDatabase(t *testing.T) {
	address := servertest.PostgresDB(t)
	want := name(t, connect(t, address))
	if got := name(t, connect(t, servertest.PgBouncer(t, address))); got != want {
		t.Fatalf("connected to %s, not %s", got, want)
	}
}

func TestMariaDBDatabasesAreApart(t *testing.T) {
	first, second := servertest.MariaDBDatabase(t), servertest.MariaDBDatabase(t)
	for _, dsn := range []string{first, second} {
		db, err := sql.Open("mysql", dsn)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.Exec("CREATE TABLE t (id int)"); err != nil {
			t.Fatal(err)
		}
	}
}

func BenchmarkVhost(b *testing.B) {
	servertest.RabbitMQ(b)
	for b.Loop() {
		servertest.Vhost(b)
	}
}

func connect(t *testing.T, address string) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // no prepared statements, for PgBouncer
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return conn
}

func name(t *testing.T, conn *pgx.Conn) (name string) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), "SELECT current_database()").Scan(&name); err != nil {
		t.Fatal(err)
	}
	return name
}

func dial(t *testing.T, url string) *amqp.Connection {
	t.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn
}

func channel(t *testing.T, url string) *amqp.Channel {
	t.Helper()
	ch, err := dial(t, url).Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

func declare(t *testing.T, url, queue string) {
	t.Helper()
	if _, err := channel(t, url).QueueDeclare(queue, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
}

// publish reports whether the queue q took a message.
func publish(t *testing.T, ch *amqp.Channel) bool {
	t.Helper()
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	confirmation, err := ch.PublishWithDeferredConfirm("", "q", true, false, amqp.Publishing{})
	if err != nil {
		t.Fatal(err)
	}
	acked, err := confirmation.WaitContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return acked
}

// awaitMessage takes one message from the queue q.
func awaitMessage(t *testing.T, url string) {
	t.Helper()
	ch := channel(t, url)
	deliveries, err := ch.Consume("q", "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-deliveries:
	case <-time.After(limit):
		t.Fatal("no message came")
	}
	if err := ch.Close(); err != nil {
		t.Error(err)
	}
}

func expectBlocked(t *testing.T, blocked <-chan amqp.Blocking, want bool) {
	t.Helper()
	select {
	case b := <-blocked:
		if b.Active != want {
			t.Fatalf("blocked: %v", b.Active)
		}
	case <-time.After(limit):
		t.Fatalf("the broker did not say that blocked is %v", want)
	}
}

func expectCode(t *testing.T, err error, code int) {
	t.Helper()
	var refusal *amqp.Error
	if !errors.As(err, &refusal) || refusal.Code != code {
		t.Fatalf("want AMQP error %d, got %v", code, err)
	}
}
