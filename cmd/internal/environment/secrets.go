package environment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
)

// A Secret is a variable for which a file may stand, as secrets are mounted.
type Secret struct {
	Name  string  // of the variable
	Value *string // what it says
	File  string  // what its sibling with _FILE says: the file's name
	// Check refuses a value, also one that is read again. Its error names the variable and what
	// to do, and has no secret in it. Nil: all are taken.
	Check func(value string) error
}

// Open replaces the values of those secrets that are in files by what the files hold,
// without the line feed at the end. No error contains a value: a secret may have been
// put into the wrong variable.
func Open(secrets ...Secret) error {
	for _, s := range secrets {
		if err := s.open(); err != nil {
			return err
		}
	}
	return nil
}

// Reader returns a function that reads the secret anew each time: from its file, if it stands in
// one. While the file cannot be read, is empty or has a value that Check refuses, the function
// returns the last one. Open must have been called.
func (s Secret) Reader() func() string {
	last := *s.Value
	if s.File == "" {
		return func() string { return last }
	}
	var mu sync.Mutex
	return func() string {
		now := ""
		err := (Secret{s.Name, &now, s.File, s.Check}).open()
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			last = now
		}
		return last
	}
}

// Again is Reader as bridge.BrokerOptions.URL takes it.
func (s Secret) Again() func(context.Context) (string, error) {
	read := s.Reader()
	return func(context.Context) (string, error) { return read(), nil }
}

func (s Secret) open() error {
	if err := s.read(); err != nil || s.Check == nil {
		return err
	}
	return s.Check(*s.Value)
}

func (s Secret) read() error {
	switch {
	case s.File == "":
		return nil
	case *s.Value != "":
		return fmt.Errorf("%s_FILE: is set, and %s too; unset one of them", s.Name, s.Name)
	}
	content, err := os.ReadFile(s.File)
	if err != nil {
		var pathErr *fs.PathError
		if errors.As(err, &pathErr) {
			err = pathErr.Err
		}
		return fmt.Errorf("%s_FILE: the file cannot be read: %w; name one that can", s.Name, err)
	}
	if *s.Value = strings.TrimRight(string(content), "\r\n"); *s.Value == "" {
		return fmt.Errorf("%s_FILE: the file is empty; write the secret into it", s.Name)
	}
	return nil
}
