package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/twoqueue/twoqueue/idempotency/pending"
)

const (
	gatewayPackage  = "github.com/twoqueue/twoqueue/cmd/email-gateway"
	gatewayConsumer = "email-gateway" // in the inbox
	gateways        = 2               // processes
	gatewaySessions = 4               // e-mails that each sends at the same time

	// gatewayReady is in the line that a gateway logs once it works.
	gatewayReady = "consumer session started"
)

// buildGateway finds the program email-gateway beside the demo, or builds it, and creates its tables.
func (t *theatre) buildGateway(ctx context.Context, folder string, out io.Writer) error {
	demo, err := os.Executable()
	if err != nil {
		return err
	}
	t.program = filepath.Join(filepath.Dir(demo), "email-gateway")
	if file, err := os.Stat(t.program); err == nil && file.Mode().IsRegular() {
		fmt.Fprintln(out, "gateway   the program email-gateway beside the demo")
	} else {
		fmt.Fprintln(out, "gateway   the program cmd/email-gateway, built from its source")
		t.program = filepath.Join(folder, "email-gateway")
		build := exec.CommandContext(ctx, "go", "build", "-o", t.program, gatewayPackage)
		build.Cancel = func() error { return build.Process.Signal(os.Interrupt) } // removes its files
		if output, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w; run the demo in the project's folder: %s", gatewayPackage, err, output)
		}
	}
	if _, err := t.askGateway(ctx, "migrate"); err != nil {
		return err
	}
	inbox, err := t.dbs.post.Inbox(ctx)
	if err != nil {
		return err
	}
	t.effects, err = pending.New(inbox, gatewayConsumer, &pending.Options{HandBack: true})
	return err
}

// The gateways' time-outs for the mail server are short, since an e-mail whose gateway was killed
// becomes doubtful only after twice the gateway's effect time-out (doubtAfter).
const (
	commandLimit = 500 * time.Millisecond
	answerLimit  = time.Second
	doubtAfter   = 2 * (answerLimit + 8*commandLimit)
)

// gateway returns the command that runs the e-mail gateway in this world.
func (t *theatre) gateway(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, t.program, args...)
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "EMAIL_") {
			cmd.Env = append(cmd.Env, entry)
		}
	}
	cmd.Env = append(cmd.Env, "EMAIL_DATABASE_URL="+t.Post, "EMAIL_AMQP_URL="+t.AMQP, "EMAIL_QUEUE="+t.Emails,
		"EMAIL_SMTP_HOST="+t.mail.host, "EMAIL_SMTP_PORT="+t.mail.port, "EMAIL_SMTP_TLS=none", "EMAIL_SMTP_NAME="+name,
		"EMAIL_SMTP_TIMEOUT="+commandLimit.String(), "EMAIL_SMTP_ANSWER="+answerLimit.String(), "EMAIL_SMTP_SESSIONS="+strconv.Itoa(gatewaySessions),
		"EMAIL_PAUSE=100ms", "EMAIL_LONGEST_PAUSE=1s", "EMAIL_ATTEMPTS=1000", "EMAIL_HTTP_ADDR=127.0.0.1:0",
		"EMAIL_INSECURE=true") // the demo has checked the URLs itself
	return cmd
}

// askGateway runs one of the gateway's subcommands and returns its output.
func (t *theatre) askGateway(ctx context.Context, args ...string) ([]byte, error) {
	cmd := t.gateway(ctx, "operator", args...)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	output, err := cmd.Output()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("email-gateway %s: %w: %s", strings.Join(args, " "), err, complaint.String())
	}
	return output, nil
}
