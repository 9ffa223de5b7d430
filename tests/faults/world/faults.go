package world

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/faults/parts"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// Servers are the servers that a plan may kill.
type Servers struct {
	RabbitMQ *servers.RabbitMQ
	Database DatabaseServer
}

// Counts has the number of injected faults of each kind.
type Counts map[FaultKind]int

// Carry carries out the plan and returns the numbers of injected faults. An error means that a
// fault could not be injected or could not be ended.
func (w *World) Carry(ctx context.Context, plan Plan, s Servers) (Counts, error) {
	counts := make(Counts)
	w.event(func(e *Events) { e.Began = time.Now() })
	for i, step := range plan.Steps {
		errs := make([]error, len(step.Faults))
		var faults sync.WaitGroup
		for j, f := range step.Faults {
			counts[f.Kind]++
			w.Diary.Note("step %d: %s", i+1, f)
			faults.Go(func() { errs[j] = w.timed(ctx, f, s) })
		}
		faults.Wait()
		w.Diary.Note("step %d is over", i+1)
		if err := errors.Join(errs...); err != nil {
			return counts, fmt.Errorf("step %d of seed %d: %w", i+1, plan.Seed, err)
		}
		for _, p := range w.Processes() {
			if err := p.Ended(); err != nil {
				w.hadEnded(err)
				p.Start()
			}
		}
		Rest(ctx, step.Rest)
	}
	return counts, ctx.Err()
}

// Rest calls parts.Rest.
func Rest(ctx context.Context, d time.Duration) { parts.Rest(ctx, d) }

// timed injects a fault, and records its times and its subject for the judge.
func (w *World) timed(ctx context.Context, f Fault, s Servers) error {
	trouble := Trouble{Fault: f, From: time.Now()}
	switch p := w.Processes()[f.Process]; {
	case slices.Contains(w.Senders, p):
		trouble.Sender = p.Name
	case slices.Contains(w.Verifiers, p):
		trouble.Verifier = p.Name
	}
	var err error
	if f.Kind == LockRows {
		trouble.Rows, err = w.shop.lockRows(ctx, func() { Rest(ctx, f.For) })
	} else {
		err = w.inject(ctx, f, s)
	}
	trouble.To = time.Now()
	w.event(func(e *Events) { e.Troubles = append(e.Troubles, trouble) })
	return err
}

func (w *World) inject(ctx context.Context, f Fault, s Servers) error {
	p := w.Processes()[f.Process]
	link := p.Database
	if f.Broker {
		link = p.Broker
	}
	switch f.Kind {
	case KillProcess:
		p.Kill()
		w.killed(p)
		p.Start()
	case VanishHost:
		p.Database.Vanish()
		p.Broker.Vanish()
		p.Kill()
		w.killed(p)
		Rest(ctx, f.For)
		p.Database.Release() // the servers then notice the lost connections
		p.Broker.Release()
		p.Start()
	case FreezeProcess:
		p.Freeze()
		Rest(ctx, f.For)
		p.Thaw()
	case KillBroker:
		if err := s.RabbitMQ.SyncDeclarations(ctx); err != nil {
			return err
		}
		s.RabbitMQ.Kill()
		Rest(ctx, f.For)
		return s.RabbitMQ.Restart(ctx)
	case KillDatabase:
		s.Database.Kill()
		Rest(ctx, f.For)
		w.DatabaseKilled()
		return s.Database.Restart(ctx)
	case CutLink:
		link.Cut()
	case TearLink:
		link.Tear()
	case LoseLink:
		link.Vanish()
		Rest(ctx, f.For)
		link.Release()
	case SlowLink:
		link.Slow(40 * time.Millisecond)
		Rest(ctx, f.For)
		link.Release()
	case MemoryAlarm:
		if err := s.RabbitMQ.SetMemoryAlarm(ctx, true); err != nil {
			return err
		}
		Rest(ctx, f.For)
		return s.RabbitMQ.SetMemoryAlarm(ctx, false)
	case DeleteStaging:
		return w.deleteStaging(ctx, f.For)
	case DeleteTarget:
		return w.deleteTarget(ctx, []bridge.Target{Classic, Quorum, Exchange}[f.Target], f.For)
	case KillSessions:
		return errors.Join(w.shop.killSessions(ctx, parts.Sender, parts.Verifier), w.post.killSessions(ctx, parts.Receiver))
	case LockLedger:
		return w.shop.lockTable(ctx, "bridge_ledger", f.For)
	case StrayMessages, UnreadableMessages, UnpublishableMessages:
		return w.PublishStrays(ctx, f.Kind)
	case SilentTarget:
		return silence(ctx, s.RabbitMQ, Quorum.RoutingKey, f.For)
	case SlowTransactions:
		return w.slowTransactions(ctx, f.For)
	case FewConnections: // open connections stay
		if err := s.RabbitMQ.SetMaxConnections(ctx, "guest", 1); err != nil {
			return err
		}
		Rest(ctx, f.For)
		return s.RabbitMQ.SetMaxConnections(ctx, "guest", -1)
	case FullBeside:
		if err := w.fillBeside(); err != nil {
			return err
		}
		Rest(ctx, f.For)
		return w.clearBeside()
	case UnbindOrdered:
		if err := w.unbindOrdered(); err != nil {
			return err
		}
		Rest(ctx, f.For)
		return w.redeclare(ctx, func() {})
	}
	return nil
}

// besideQueue is bound to Exchange like the target's queue, is full and has no consumer.
const besideQueue = "beside"

// fillBeside binds a full queue to Exchange. The broker then nacks messages that the target's queue
// accepts.
func (w *World) fillBeside() error {
	return w.onChannel(func(ch *amqp.Channel) error {
		args := amqp.Table{"x-queue-type": "classic", "x-max-length": 1, "x-overflow": "reject-publish"}
		if _, err := ch.QueueDeclare(besideQueue, true, false, false, false, args); err != nil {
			return err
		}
		if err := ch.Publish("", besideQueue, true, false, amqp.Publishing{}); err != nil {
			return err
		}
		return ch.QueueBind(besideQueue, "order.*", Exchange.Exchange, false, nil)
	})
}

// clearBeside deletes besideQueue.
func (w *World) clearBeside() error {
	return w.onChannel(func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(besideQueue, false, false, false)
		return err
	})
}

// unbindOrdered removes the binding of the ordered target's queue, without losing messages. Declare
// restores it.
func (w *World) unbindOrdered() error {
	return servertest.Await(context.Background(), "the binding is gone", func() (bool, error) {
		err := w.onChannel(func(ch *amqp.Channel) error {
			return ch.QueueUnbind(orderedQueue, Ordered.RoutingKey, Ordered.Exchange, nil)
		})
		return err == nil, err
	})
}

// DatabaseKilled tells the judge that the senders' database was killed, and perhaps replaced by its
// standby. Deletions that did not wait for the disk, or for the standby, may be undone. Call it
// after the kill, since a deletion during the kill may be undone too.
func (w *World) DatabaseKilled() {
	w.event(func(e *Events) { e.DatabaseKilled = append(e.DatabaseKilled, time.Now()) })
}

// killed tells the judge that a verifier was killed, which may have had rows to delete.
func (w *World) killed(p *Process) {
	if slices.Contains(w.Verifiers, p) {
		w.event(func(e *Events) { e.VerifierKilled = append(e.VerifierKilled, time.Now()) })
	}
}

// event changes the Events, which the judge reads when all faults are over.
func (w *World) event(note func(*Events)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	note(&w.events)
}

// deleteStaging deletes the staging queue with its messages, and declares it again later.
func (w *World) deleteStaging(ctx context.Context, gone time.Duration) error {
	if err := w.RemoveStaging(); err != nil {
		return err
	}
	Rest(ctx, gone)
	return w.redeclare(ctx, func() { w.stagingDeleted(0) })
}

// deleteTarget deletes the queue of a target with its messages, and declares it again later.
func (w *World) deleteTarget(ctx context.Context, target bridge.Target, gone time.Duration) error {
	if err := w.RemoveTarget(target); err != nil {
		return err
	}
	Rest(ctx, gone)
	err := w.redeclare(ctx, func() { w.targetDeleted(target, 0) })
	if err == nil {
		w.targetBack(target)
	}
	return err
}

// RemoveStaging deletes the staging queue.
func (w *World) RemoveStaging() error {
	ready, err := w.deleteQueue(w.config.Topology.Queue)
	if err != nil {
		return err
	}
	w.stagingDeleted(ready)
	return nil
}

func (w *World) stagingDeleted(ready int) {
	w.event(func(e *Events) { e.StagingDeleted = append(e.StagingDeleted, Deletion{At: time.Now(), Ready: ready}) })
}

// RemoveTarget deletes the queue of a target.
func (w *World) RemoveTarget(target bridge.Target) error {
	ready, err := w.deleteQueue(queueOf[target])
	if err != nil {
		return err
	}
	w.targetDeleted(target, ready)
	return nil
}

// RemoveDead deletes the dead queue. Its messages are lost, which the judge reports.
func (w *World) RemoveDead() error {
	_, err := w.deleteQueue(w.config.Topology.DeadQueue())
	return err
}

func (w *World) targetDeleted(target bridge.Target, ready int) {
	name := parts.TargetName(target)
	w.event(func(e *Events) {
		e.TargetDeleted[name] = append(e.TargetDeleted[name], Deletion{At: time.Now(), Ready: ready})
	})
}

// targetBack records that the queue of a target was declared again.
func (w *World) targetBack(target bridge.Target) {
	w.event(func(e *Events) {
		deleted := e.TargetDeleted[parts.TargetName(target)]
		for i, d := range deleted {
			if d.Back.IsZero() {
				deleted[i].Back = time.Now()
			}
		}
	})
}

func (w *World) deleteQueue(queue string) (ready int, err error) {
	// The count in the answer to a deletion may be wrong.
	if ready, err = w.counted(context.Background(), queue); err != nil {
		return 0, err
	}
	err = w.onChannel(func(ch *amqp.Channel) error {
		n, err := ch.QueueDelete(queue, false, false, false)
		ready = max(ready, n)
		w.Diary.Note("queue %s is deleted with %d messages that were ready", queue, ready)
		return err
	})
	return ready, err
}

// redeclare declares the missing queues. The verifiers declare queues too, and two clients that
// declare the same quorum queue at the same time may get an error.
//
// A failed declaration is a deletion too. RabbitMQ registers a quorum queue before it starts it. If
// the start fails or takes too long, RabbitMQ ends the queue's processes and deletes the queue
// (start_cluster in rabbit_quorum_queue.erl and ra.erl, read in 4.3.6). Meanwhile the queue may
// have accepted and confirmed messages.
func (w *World) redeclare(ctx context.Context, deleted func()) error {
	return servertest.Await(ctx, "the queue is declared again", func() (bool, error) {
		err := w.Declare(ctx)
		if failed := new(amqp.Error); errors.As(err, &failed) && failed.Code == amqp.InternalError {
			deleted()
			w.Diary.Note("the declaration has failed: %v", err)
		}
		return err == nil, err
	})
}

// PublishAgain publishes the message of an order to its target again, as happens after a verifier
// died before it deleted the row.
func (w *World) PublishAgain(id uuid.UUID, to bridge.Target) error {
	p := parts.Message(id, to).Publishing
	p.MessageId, p.DeliveryMode = id.String(), amqp.Persistent
	return w.onChannel(func(ch *amqp.Channel) error {
		return ch.Publish(to.Exchange, to.RoutingKey, true, false, p)
	})
}
