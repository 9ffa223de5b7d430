package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/twoqueue/twoqueue/compose/servers/children"
)

// The roles that this program plays when it starts itself.
const (
	roleVariable    = "BENCH_ROLE"
	placeVariable   = "BENCH_PLACE"
	roleApplication = "application"
	roleRelay       = "relay"
	roleUnchecked   = "unchecked"
)

// collectAt is the GC percentage that cmd/verifier sets. The other relays use the same.
const collectAt = 400

// play runs a role of this program in a child process.
func play(ctx context.Context, role string) error {
	var p place
	if err := json.Unmarshal([]byte(os.Getenv(placeVariable)), &p); err != nil {
		return fmt.Errorf("read %s: %w", placeVariable, err)
	}
	if role == roleApplication {
		return runApplication(ctx, p)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectAt)
	}
	relay := relayUnchecked
	if role == roleRelay {
		c, err := findContender(p.Contender)
		if err != nil {
			return err
		}
		relay = c.relay
	}
	err := relay(ctx, p)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// child is a child process. The kernel ends it when its parent ends.
type child struct {
	*children.Child
	cmd  *exec.Cmd
	done <-chan struct{} // closed when it has ended
}

// startChild starts a command. The child writes errors to this process's standard error.
func startChild(cmd *exec.Cmd) (*child, error) {
	cmd.Stderr = os.Stderr
	c, err := children.Start(cmd)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(cmd.Path), err)
	}
	return &child{c, cmd, c.Ended()}, nil
}

// startSelf starts this program in a role.
func startSelf(role string, p place, prepare func(*exec.Cmd)) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleVariable+"="+role, placeVariable+"="+string(text))
	if prepare != nil {
		prepare(cmd)
	}
	return startChild(cmd)
}

// stop sends SIGTERM to the child, and kills it after 20 s.
func (c *child) stop() error {
	_ = c.Signal(syscall.SIGTERM) // fails only if the child has ended
	if c.Await(20 * time.Second) {
		return c.Err()
	}
	c.Kill()
	return errors.New("had to be killed")
}

// failed returns an error if the child ended without having been stopped.
func (c *child) failed() error {
	if !c.HasEnded() {
		return nil
	}
	return fmt.Errorf("%s ended: %w", filepath.Base(c.cmd.Path), errors.Join(c.Err(), errors.New("it was not stopped")))
}

// buildVerifier builds the worker as it ships.
func buildVerifier(ctx context.Context, folder string) (string, error) {
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/twoqueue/twoqueue")
	list.Stderr = os.Stderr
	root, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("find the project: %w", err)
	}
	project := string(root[:len(root)-1])
	binary := filepath.Join(folder, "verifier")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "./cmd/verifier")
	build.Dir = project
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the verifier: %w\n%s", err, output)
	}
	return binary, nil
}
