package cmd_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// A browser is a headless Chromium with one page, spoken to by its DevTools protocol
// over a pipe: a JSON text with a zero byte behind it in each direction.
type browser struct {
	t       *testing.T
	to      *os.File
	session string

	mu      sync.Mutex
	last    int
	waiting map[int]chan answer
	ended   error
	said    []string // on its console, errors among them
}

type answer struct {
	Result json.RawMessage
	Error  *struct{ Message string }
}

// browse starts a browser. It ends with the test.
func browse(t *testing.T) *browser {
	t.Helper()
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("chromium is not installed")
		}
		t.Skip("chromium is not installed")
	}
	theirs, ours, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, theirsToo, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	home, err := os.MkdirTemp("", "twoqueue-browser-")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(chromium, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
		"--lang=en-GB", "--user-data-dir="+filepath.Join(home, "profile"), "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_CACHE_HOME="+home, "TZ=UTC", "LANG=en_GB.UTF-8")
	cmd.ExtraFiles = []*os.File{theirs, theirsToo} // the third and the fourth
	var output program.Output
	cmd.Stderr = &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	theirsToo.Close()
	b := &browser{t: t, to: ours, waiting: make(map[int]chan answer)}
	var reading sync.WaitGroup
	reading.Go(func() { b.read(from) })
	t.Cleanup(func() {
		b.mu.Lock()
		b.session = ""
		b.mu.Unlock()
		_, _ = b.try("Browser.close", nil)
		ours.Close()
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case <-ended:
		case <-time.After(stage.Patience):
			_ = cmd.Process.Kill()
			<-ended
		}
		reading.Wait()
		from.Close()
		if err := os.RemoveAll(home); err != nil { // its children may be about to end
			t.Logf("the browser's folder: %v", err)
		}
		if t.Failed() {
			t.Logf("the browser wrote\n%s", &output)
		}
	})
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

func (b *browser) read(from *os.File) {
	reader := bufio.NewReader(from)
	for {
		text, err := reader.ReadBytes(0)
		if err != nil {
			b.mu.Lock()
			b.ended = errors.New("the browser has ended")
			for _, waiting := range b.waiting {
				close(waiting)
			}
			b.waiting = nil
			b.mu.Unlock()
			return
		}
		var message struct {
			ID     int
			Method string
			Params json.RawMessage
			answer
		}
		if json.Unmarshal(text[:len(text)-1], &message) != nil {
			continue
		}
		b.mu.Lock()
		switch waiting := b.waiting[message.ID]; {
		case waiting != nil:
			delete(b.waiting, message.ID)
			waiting <- message.answer
		case message.Method == "Runtime.exceptionThrown", message.Method == "Log.entryAdded", message.Method == "Runtime.consoleAPICalled":
			b.said = append(b.said, string(message.Params))
		}
		b.mu.Unlock()
	}
}

// try sends a command and waits for its answer.
func (b *browser) try(method string, params any) (json.RawMessage, error) {
	b.mu.Lock()
	if b.ended != nil {
		b.mu.Unlock()
		return nil, b.ended
	}
	b.last++
	message := map[string]any{"id": b.last, "method": method}
	if params != nil {
		message["params"] = params
	}
	if b.session != "" {
		message["sessionId"] = b.session
	}
	waiting := make(chan answer, 1)
	b.waiting[b.last] = waiting
	text, err := json.Marshal(message)
	if err == nil {
		_, err = b.to.Write(append(text, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case got, ok := <-waiting:
		switch {
		case !ok:
			return nil, errors.New("the browser has ended")
		case got.Error != nil:
			return nil, errors.New(got.Error.Message)
		}
		return got.Result, nil
	case <-time.After(stage.Patience):
		return nil, errors.New("the browser does not answer")
	}
}

func (b *browser) call(method string, params, result any) {
	b.t.Helper()
	text, err := b.try(method, params)
	if err == nil && result != nil {
		err = json.Unmarshal(text, result)
	}
	if err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
}

// open goes to an address.
func (b *browser) open(address string) {
	b.t.Helper()
	var result struct{ ErrorText string }
	b.call("Page.navigate", map[string]any{"url": address}, &result)
	if result.ErrorText != "" {
		b.t.Fatalf("open %s: %s", address, result.ErrorText)
	}
}

// eval returns what an expression of JavaScript is in the page.
func (b *browser) eval(expression string) any {
	b.t.Helper()
	var result struct {
		Result           struct{ Value any }
		ExceptionDetails json.RawMessage
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &result)
	if result.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, result.ExceptionDetails)
	}
	return result.Result.Value
}

// until waits for an expression to be true. As long as the page is being loaded it may
// throw, or have nothing to be evaluated in.
func (b *browser) until(expression string) {
	b.t.Helper()
	servertest.Eventually(b.t, "in the page: "+expression, func() bool {
		var result struct{ Result struct{ Value any } }
		text, err := b.try("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true})
		return err == nil && json.Unmarshal(text, &result) == nil && result.Result.Value == true
	})
}

// press presses a key as the keyboard does.
func (b *browser) press(key string, code int, text string) {
	b.t.Helper()
	for _, kind := range []string{"keyDown", "keyUp"} {
		params := map[string]any{"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "nativeVirtualKeyCode": code}
		if kind == "keyDown" && text != "" {
			params["text"] = text
		}
		b.call("Input.dispatchKeyEvent", params, nil)
	}
}

// look sets the colours that the user prefers, and the width of the window.
func (b *browser) look(scheme string, width int) {
	b.t.Helper()
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false}, nil)
}

// shoot takes a picture of the whole page, if a folder for pictures was given.
func (b *browser) shoot(name string) {
	b.t.Helper()
	if *pictures == "" {
		return
	}
	var shot struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true}, &shot)
	content, err := base64.StdEncoding.DecodeString(shot.Data)
	if err == nil {
		err = os.WriteFile(filepath.Join(*pictures, name+".png"), content, 0o600)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// complaints are what the page has said on its console, errors and refusals of its
// policy among them.
func (b *browser) complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.said...)
}
