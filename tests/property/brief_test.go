package property_test

import (
	"fmt"
	"os"
	"testing"
)

// A brief test keeps its log short: of a history that failed rapid prints every step,
// thousands of lines, and what is wrong stands before them. Here the last steps come
// first, and then what is wrong.
type brief struct {
	*testing.T
	steps  []string // the last ones
	left   int      // out
	errors []string
}

const stepsShown = 40

// briefly returns t as rapid shall see it. All of a failed history is in rapid's fail
// file (or with -rapid.log).
func briefly(t *testing.T) *brief {
	b := &brief{T: t}
	t.Cleanup(b.tell)
	return b
}

func (b *brief) Log(args ...any) { b.step(fmt.Sprint(args...)) }

func (b *brief) Logf(format string, args ...any) { b.step(fmt.Sprintf(format, args...)) }

func (b *brief) step(text string) {
	b.steps = append(b.steps, text)
	if len(b.steps) > stepsShown {
		b.steps = b.steps[1:]
		b.left++
	}
}

func (b *brief) Error(args ...any) {
	b.errors = append(b.errors, fmt.Sprint(args...))
	b.Fail()
}

func (b *brief) Errorf(format string, args ...any) { b.Error(fmt.Sprintf(format, args...)) }

func (b *brief) Fatal(args ...any) {
	b.Error(args...)
	b.FailNow()
}

func (b *brief) Fatalf(format string, args ...any) { b.Fatal(fmt.Sprintf(format, args...)) }

func (b *brief) tell() {
	if b.left > 0 {
		b.T.Logf("%d steps are left out here", b.left)
	}
	for _, step := range b.steps {
		b.T.Log(step)
	}
	for _, text := range b.errors {
		b.T.Log(text)
	}
}

// inCI tells whether nobody could use a fail file.
func inCI() bool { return os.Getenv("CI") == "true" }
