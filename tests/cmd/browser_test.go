package cmd_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// browser is a headless Chromium with one page. The test speaks the DevTools protocol to it over
// a pipe: in each direction JSON texts, each followed by a zero byte.
type browser struct {
	t       *testing.T
	to      *os.File
	pipe    *os.File
	from    *bufio.Reader // reads pipe
	session string
	last    int
}

// browse opens an address in a browser, which ends with the test.
func browse(t *testing.T, address string) *browser {
	t.Helper()
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("chromium is not installed")
		}
		t.Skip("chromium is not installed")
	}
	home, err := os.MkdirTemp("", "twoqueue-browser-")
	must(t, err)
	its, to, err := os.Pipe()
	must(t, err)
	from, itsToo, err := os.Pipe()
	must(t, err)
	cmd := exec.Command(chromium, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
		"--lang=en-GB", "--user-data-dir="+filepath.Join(home, "profile"), "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_CACHE_HOME="+home, "TZ=UTC", "LANG=en_GB.UTF-8")
	cmd.ExtraFiles = []*os.File{its, itsToo} // file descriptors 3 and 4
	p := program.StartCmd(t, cmd)
	its.Close()
	itsToo.Close()
	b := &browser{t: t, to: to, pipe: from, from: bufio.NewReader(from)}
	t.Cleanup(func() {
		b.session = ""
		if _, err := b.try("Browser.close", struct{}{}); err == nil {
			p.Await()
		}
		to.Close()
		from.Close()
		if err := os.RemoveAll(home); err != nil { // its child processes may still be ending
			t.Logf("the browser's folder: %v", err)
		}
	})
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": address}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	return b
}

// try sends a command and reads until its answer.
func (b *browser) try(method string, params any) (json.RawMessage, error) {
	b.last++
	command := map[string]any{"id": b.last, "method": method, "params": params}
	if b.session != "" {
		command["sessionId"] = b.session
	}
	text, err := json.Marshal(command)
	if err != nil {
		return nil, err
	}
	limit := time.Now().Add(stage.Patience)
	if err := errors.Join(b.to.SetWriteDeadline(limit), b.pipe.SetReadDeadline(limit)); err != nil {
		return nil, err
	}
	if _, err := b.to.Write(append(text, 0)); err != nil {
		return nil, err
	}
	for {
		text, err := b.from.ReadBytes(0)
		if err != nil {
			return nil, err
		}
		var answer struct { // or an event, which has no ID
			ID     int
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		if err := json.Unmarshal(text[:len(text)-1], &answer); err != nil {
			return nil, err
		}
		switch {
		case answer.ID == b.last && answer.Error != nil:
			return nil, errors.New(answer.Error.Message)
		case answer.ID == b.last:
			return answer.Result, nil
		}
	}
}

func (b *browser) call(method string, params, result any) {
	b.t.Helper()
	text, err := b.try(method, params)
	if err == nil {
		err = json.Unmarshal(text, result)
	}
	if err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
}

// until waits until an expression is true. While the page is loading, the expression may throw,
// or there may be no context to evaluate it in.
func (b *browser) until(expression string) {
	b.t.Helper()
	servertest.Eventually(b.t, "in the page: "+expression, func() bool {
		var result struct{ Result struct{ Value any } }
		text, err := b.try("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true})
		return err == nil && json.Unmarshal(text, &result) == nil && result.Result.Value == true
	})
}

// look sets the user's preferred colour scheme and the width of the window.
func (b *browser) look(scheme string, width int) {
	b.t.Helper()
	var result struct{}
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, &result)
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false}, &result)
}
