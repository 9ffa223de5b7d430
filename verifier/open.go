package verifier

import (
	"context"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/proof"
	"github.com/twoqueue/twoqueue/verifier/internal/consume"
	"github.com/twoqueue/twoqueue/verifier/internal/forward"
)

// openSession declares the queues and connects. It must follow a successful proof. remembered comes
// from the last session. If the session cannot claim the staging queue for its ledger, openSession
// calls unclaimed and goes on.
func openSession(ctx context.Context, r *resources, proven *proof.Proven, remembered forward.Remembered, unclaimed func(error)) (_ *session, err error) {
	room := newWaitingRoom(r.opts.Settlers)
	evidence := &evidence{resources: r, proven: proven, room: room, began: time.Now()}
	pipeline := newPipeline(r)
	limits := &waitLimits{pipeline: pipeline, room: room, evidence: evidence, more: make(chan struct{}, 1)}
	s := &session{
		pipeline: pipeline, room: room, evidence: evidence, limits: limits,
		judge: &judge{pipeline: pipeline, proven: proven, room: room, evidence: evidence, limits: limits},
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	missing := missingQueues(ctx, r)
	if err := r.opts.Topology.Declare(ctx, r.broker); err != nil {
		return nil, err
	}
	for _, queue := range missing {
		s.log.Info("queue did not exist; created", "queue", queue)
	}
	if s.consuming, err = connectClaimed(ctx, r, unclaimed); err != nil {
		return nil, err
	}
	// The AMQP library's channels take no context.
	defer context.AfterFunc(ctx, s.consuming.Close)()
	bytes := s.opts.shares()
	config := consume.Config{Queue: s.opts.Topology.Queue, Prefetch: s.opts.Prefetch, MaxBytes: bytes.staging, HandBack: s.opts.HandBack, Arrive: s.unpack}
	if s.staging, err = consume.Open(s.consuming, config); err != nil {
		return nil, err
	}
	config.Queue, config.Prefetch, config.MaxBytes = s.opts.Topology.WaitingQueue(), s.opts.waitingPrefetch(), bytes.waiting
	if s.waiting, err = consume.Open(s.consuming, config); err != nil {
		return nil, err
	}
	for _, queue := range s.opts.Topology.OrderedQueues() {
		config.Queue, config.Prefetch, config.MaxBytes = queue, consume.OrderedPrefetch, bytes.ordered
		shard, err := consume.OpenOrderedQueue(s.consuming, consume.OrderedQueueConfig{
			Config: config, FinishWait: s.opts.ConfirmTimeout + time.Second, Log: s.log,
			IsHeld: func(m any) bool { return s.forwarder.IsHeld(m.(*message).staged.Target()) },
		})
		if err != nil {
			return nil, err
		}
		s.shards = append(s.shards, shard)
	}
	if s.ledger.Features().Carries {
		s.carried = newCarriedSet(s.opts.Prefetch, bytes.staging)
	}
	s.forwarder = forward.New(forward.Config{
		Connect:        r.broker.Connect,
		InFlight:       s.opts.Prefetch,
		ConfirmTimeout: s.opts.ConfirmTimeout,
		Unroutable:     s.opts.Unroutable,
		Copies:         s.opts.Copies,
		HoldKeys:       s.opts.HoldKeys,
		Waiting:        s.limits.more,
		Log:            s.log,
		Remembered:     remembered,
		Ended: func(p *forward.Publication, result forward.Result, err error) {
			s.publicationEnded(publicationOf(p), result, err)
		},
	})
	if err := s.forwarder.Open(ctx); err != nil {
		return nil, err
	}
	if s.carried != nil {
		s.stager = newStager(r, r.calls.stage, s.carried, s.blocked)
	}
	return s, nil
}

// missingQueues returns the queues that do not exist yet, as far as the login has the right and the
// broker answers. The log names them, because a mistyped name makes new queues.
func missingQueues(ctx context.Context, r *resources) (missing []string) {
	conn, err := r.broker.Connect(ctx)
	if err != nil {
		return nil
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, conn.Close)()
	for _, queue := range r.opts.Topology.Queues() {
		err := conn.Request(func() error {
			ch, err := conn.Channel()
			if err != nil {
				return err
			}
			defer func() { _ = ch.Close() }()
			_, err = ch.QueueDeclarePassive(queue.Name, true, false, false, false, nil)
			return err
		})
		if refusal := bridge.Refusal(err); refusal != nil && refusal.Code == amqp.NotFound {
			missing = append(missing, queue.Name)
		}
	}
	return missing
}
