package world

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/compose/servers/children"
)

// A Diary is the file that collects the lines of all processes and servers, each with its time and
// its writer.
type Diary struct {
	mu   sync.Mutex
	file *os.File
}

const stamp = "15:04:05.000000"

// NewDiary creates a diary in a folder. If folder is "", the diary is removed when the test ends.
func NewDiary(t testing.TB, folder string) *Diary {
	t.Helper()
	if folder == "" {
		folder = t.TempDir()
	}
	file, err := os.CreateTemp(folder, filepath.Base(t.Name())+"-")
	if err != nil {
		t.Fatalf("make diary: %v", err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return &Diary{file: file}
}

// Note writes a line as the harness.
func (d *Diary) Note(format string, args ...any) { d.line("harness", fmt.Sprintf(format, args...)) }

func (d *Diary) line(writer, text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, _ = fmt.Fprintf(d.file, "%s %s| %s\n", time.Now().UTC().Format(stamp), writer, text)
}

// Page returns the writer for a server's log.
func (d *Diary) Page(writer string) io.Writer { return d.page(writer) }

func (d *Diary) page(writer string) *page {
	p := &page{diary: d, writer: writer, waiting: make(map[chan<- string][]string)}
	p.Writer = children.Lines(p.take)
	return p
}

// A page writes one process's output into the diary, line by line.
type page struct {
	io.Writer
	diary  *Diary
	writer string

	mu      sync.Mutex
	waiting map[chan<- string][]string // the words that each channel waits for
}

func (p *page) take(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.diary.line(p.writer, line)
	for c, words := range p.waiting {
		if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(line, w) }) {
			delete(p.waiting, c)
			c <- line // the channel has room
		}
	}
}

// expect returns a channel that gets the next line that contains any of the words.
func (p *page) expect(words []string) <-chan string {
	c := make(chan string, 1)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting[c] = words
	return c
}

// scan calls with for each line of the diary. id is uuid.Nil if the line does not begin with a
// message's ID.
func (d *Diary) scan(with func(line string, at time.Time, writer string, id uuid.UUID, what string)) error {
	file, err := os.Open(d.file.Name())
	if err != nil {
		return fmt.Errorf("read diary: %w", err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		head, text, _ := strings.Cut(line, "| ")
		clock, writer, _ := strings.Cut(head, " ")
		at, err := time.Parse(stamp, clock)
		if err != nil {
			continue
		}
		first, what, _ := strings.Cut(text, " ")
		id, _ := uuid.Parse(first)
		with(line, at, writer, id, what)
	}
	return lines.Err()
}

// history returns the diary's first lines about each of the messages.
func (d *Diary) history(ids []uuid.UUID) map[uuid.UUID][]string {
	const most = 60
	out := make(map[uuid.UUID][]string)
	_ = d.scan(func(line string, _ time.Time, _ string, id uuid.UUID, _ string) {
		for _, wanted := range ids {
			if (id == wanted || strings.Contains(line, wanted.String())) && len(out[wanted]) < most {
				out[wanted] = append(out[wanted], line)
			}
		}
	})
	return out
}

// course returns, in order, the acts of the harness, the broker's log lines about queues, and the
// beginnings of the processes' panics.
func (d *Diary) course() []string {
	const most, panicLines = 200, 15
	panicked := make(map[string]int) // number of lines that are still wanted
	var out []string
	_ = d.scan(func(line string, _ time.Time, writer string, _ uuid.UUID, _ string) {
		ofQueue := strings.Contains(line, "terminating with reason") || strings.Contains(line, "started cluster") || strings.Contains(line, "uorum queue")
		if strings.Contains(line, "| panic: ") {
			panicked[writer] = panicLines
		}
		if (writer == "harness" || writer == "RabbitMQ" && ofQueue || panicked[writer] > 0) && len(out) < most {
			out = append(out, line)
			panicked[writer]--
		}
	})
	return out
}
