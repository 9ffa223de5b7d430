package idempotency_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency"
)

// The environment of a victim, beside that of a child: the strategy, and the step after
// which it stops to be killed.
const (
	victimStrategy = "IDEMPOTENCY_TEST_STRATEGY"
	victimStep     = "IDEMPOTENCY_TEST_STEP"
	victimMessages = "IDEMPOTENCY_TEST_MESSAGES"
)

// A victim is a receiver that counts its steps: each word to the database and to the
// broker, and each effect.
type victim struct {
	bridge.Keeper
	left int // steps until it stops
}

func (v *victim) step() {
	if v.left--; v.left == 0 {
		stop()
	}
}

// playVictim handles so many messages, and says so if it has not stopped before.
func playVictim() {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	ctx := context.Background()
	r, err := stores[os.Getenv(childDriver)].connect(ctx, os.Getenv(childDSN))
	fail(err)
	steps, err := strconv.Atoi(os.Getenv(victimStep))
	fail(err)
	messages, err := strconv.Atoi(os.Getenv(victimMessages))
	fail(err)
	v := &victim{r.keeper, steps}
	handle, err := crashes[os.Getenv(victimStrategy)].make(r, v, idempotency.Options{})
	fail(err)
	conn, err := amqp.Dial(os.Getenv(childAMQP))
	fail(err)
	channel, err := conn.Channel()
	fail(err)
	fail(channel.Qos(1, 0, false))
	deliveries, err := channel.Consume(os.Getenv(childQueue), "", false, false, false, false, nil)
	fail(err)
	for range messages {
		d := <-deliveries
		d.Acknowledger = stepping{channel, v}
		fail(handle(ctx, d, func(ctx context.Context, tx *sql.Tx, event string) error {
			defer v.step()
			return r.place(ctx, tx, event)
		}))
	}
	fmt.Println("done")
}

// stepping is a channel whose acks are steps, before and after.
type stepping struct {
	*amqp.Channel
	victim *victim
}

func (s stepping) Ack(tag uint64, multiple bool) error {
	s.victim.step()
	defer s.victim.step()
	return s.Channel.Ack(tag, multiple)
}

func (v *victim) LockMark(ctx context.Context, tx bridge.Tx, consumer, name string) (string, error) {
	v.step() // the transaction has begun; the one before has committed
	defer v.step()
	return v.Keeper.LockMark(ctx, tx, consumer, name)
}

func (v *victim) SetMark(ctx context.Context, tx bridge.Tx, consumer, name, mark string) error {
	defer v.step()
	return v.Keeper.SetMark(ctx, tx, consumer, name, mark)
}

func (v *victim) Keep(ctx context.Context, tx bridge.Tx, consumer, entity string, version int64, message []byte) (bool, error) {
	defer v.step()
	return v.Keeper.Keep(ctx, tx, consumer, entity, version, message)
}

func (v *victim) Unkeep(ctx context.Context, tx bridge.Tx, consumer, entity string, version int64) error {
	defer v.step()
	return v.Keeper.Unkeep(ctx, tx, consumer, entity, version)
}

type crash struct {
	make     func(r *receiver, keeper bridge.Keeper, opts idempotency.Options) (handler, error)
	messages []string
	effects  []string // what must have taken effect in the end, in this order
	steps    int      // how many there are at least
}

var crashes = map[string]crash{
	"Latest":    {(*receiver).latest, []string{"e:1", "e:3", "e:2", "e:3"}, []string{"1", "3"}, 20},
	"Ordered":   {(*receiver).ordered, []string{"e:3", "e:2", "e:1", "e:4"}, []string{"1", "2", "3", "4"}, 30},
	"HighWater": {(*receiver).highWater, []string{"e:001", "e:002", "e:002", "e:010"}, []string{"001", "002", "010"}, 22},
}

// A receiver is killed after its first step, another one after its second, and so on
// until one comes to the end alive. After each another receiver does what is left.
func TestAReceiverKilledBetweenAnyTwoStepsLosesAndRepeatsNothing(t *testing.T) {
	for name, c := range crashes {
		t.Run(name, func(t *testing.T) {
			onEachStore(t, func(t *testing.T, s string, dsn string, r *receiver) {
				q := newQueue(t, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 1_000_000})
				for step := 1; ; step++ {
					q.publish(c.messages...)
					killed := killVictim(t, q, s, dsn, name, step, len(c.messages))
					handle, err := c.make(r, r.keeper, idempotency.Options{DeadLetterExchange: true})
					must(t, err)
					finish(t, q, handle, r.place)
					if got := r.effectsOf(t)["e"]; !slices.Equal(got, c.effects) {
						t.Errorf("after a kill at step %d versions %v took effect, must be %v", step, got, c.effects)
					}
					r.forget(t)
					if !killed {
						if step < c.steps {
							t.Errorf("there were only %d steps", step-1)
						}
						break
					}
				}
			})
		})
	}
}

// finish handles what is in the queue, which nobody else consumes.
func finish(t *testing.T, q *queue, handle handler, effect func(context.Context, *sql.Tx, string) error) {
	t.Helper()
	eventually(t, "the victim is gone", func() (bool, error) {
		state, err := q.QueueDeclarePassive(q.name, true, false, false, false, nil)
		return state.Consumers == 0, err
	})
	for {
		d, ok, err := q.Get(q.name, false)
		must(t, err)
		if !ok {
			return
		}
		must(t, handle(t.Context(), d, effect))
	}
}

// forget empties the tables.
func (r *receiver) forget(t *testing.T) {
	t.Helper()
	var kept int
	must(t, r.db.QueryRowContext(t.Context(), `SELECT count(*) FROM bridge_kept`).Scan(&kept))
	if kept > 0 {
		t.Errorf("%d messages are still kept", kept)
	}
	for _, table := range []string{"effects", "bridge_mark", "bridge_kept"} {
		_, err := r.db.ExecContext(t.Context(), `DELETE FROM `+table)
		must(t, err)
	}
}

// killVictim runs a victim and kills it after a step. It returns false if the victim
// has come to its end instead.
func killVictim(t *testing.T, q *queue, store, dsn, strategy string, step, messages int) bool {
	t.Helper()
	program, err := os.Executable()
	must(t, err)
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(os.Environ(), victimStrategy+"="+strategy, victimStep+"="+strconv.Itoa(step), victimMessages+"="+strconv.Itoa(messages),
		childAMQP+"="+q.url, childQueue+"="+q.name, childDriver+"="+store, childDSN+"="+dsn)
	cmd.Stderr = testLog{t}
	stdin, err := cmd.StdinPipe()
	must(t, err)
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	_ = cmd.Process.Kill() // SIGKILL
	_ = cmd.Wait()
	if err != nil || line != "reached\n" && line != "done\n" {
		t.Fatalf("at step %d the victim said %q: %v", step, line, err)
	}
	return line == "reached\n"
}
