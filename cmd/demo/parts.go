package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/verifier"
)

// The parts. The demo starts itself several times, and each child process plays one part. Only the
// gateways are another program.
const (
	shopPart     = "shop"
	verifierPart = "verifier"
	gatewayPart  = "gateway"
)

// partVariable holds a child's part as JSON. It is an environment variable since every user can read
// the arguments of a process.
const partVariable = "TWOQUEUE_DEMO_PART"

// A part tells a child process which part it plays, in which world.
type part struct {
	Name   string
	Worker int // of the shop, or of the gateways
	World  world
}

func (p part) String() string {
	if p.Name == verifierPart {
		return p.Name
	}
	return fmt.Sprintf("%s %d", p.Name, p.Worker+1)
}

// host returns a gateway's name in EHLO.
func (p part) host() string { return fmt.Sprintf("%s-%d.example.org", p.Name, p.Worker+1) }

// playPart runs a child process and returns its exit code.
func playPart(text string) int {
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var p part
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		fmt.Fprintf(os.Stderr, "read part: %v\n", err)
		return 1
	}
	if err := p.perform(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (p part) perform(ctx context.Context) error {
	dbs, err := openDatabases(ctx, p.World)
	if err != nil {
		return err
	}
	defer dbs.close()
	broker, err := bridge.Dial(ctx, p.World.AMQP, &bridge.BrokerOptions{Name: "twoqueue demo: " + p.String()})
	if err != nil {
		return err
	}
	defer broker.Close()
	if p.Name == shopPart {
		return keepShop(ctx, p, dbs, broker)
	}
	return verify(ctx, p.World, dbs, broker)
}

// partReady is the line that a child writes once it works.
const partReady = "ready"

func ready() { fmt.Println(partReady) }

func verify(ctx context.Context, w world, dbs *databases, broker *bridge.Broker) error {
	ledger, err := dbs.shop.Ledger(ctx)
	if err != nil {
		return err
	}
	options := &verifier.Options{
		Topology: w.topology(),
		Allow:    []verifier.Allow{{Exchange: w.Emails, RoutingKey: emailKey}},
		Watcher:  ledger.Watcher,
	}
	dbs.shop.SetMaxIdleConns(options.Connections())
	v, err := verifier.New(ledger, broker, options)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return v.Run(ctx) })
	group.Go(func() error {
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for v.Stats().Sessions == 0 {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return nil
			}
		}
		ready()
		return nil
	})
	return group.Wait()
}
