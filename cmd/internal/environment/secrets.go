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

// A Secret is a variable whose value may be in a file instead, such as a mounted secret.
type Secret struct {
	Name  string  // of the variable
	Value *string // its value
	File  string  // the value of the variable with _FILE at its end: the file's name
	// Check refuses a value, even one that is read again. Its error names the variable and the fix,
	// and has no secret. Nil: no value is refused.
	Check func(value string) error
}

// Open sets the values of the secrets that are in files to the files' content, without the line feed
// at the end, and checks all values. No error contains a value, since a secret may be in the wrong
// variable.
func Open(secrets ...Secret) error {
	for _, s := range secrets {
		if err := s.open(); err != nil {
			return err
		}
	}
	return nil
}

// Reader returns a function that reads the secret from its file, if it has one, at each call. While
// the file cannot be read, is empty or has a value that Check refuses, the function returns the last
// value. Call Open first.
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

// Again returns Reader's function in the form of bridge.BrokerOptions.URL.
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
		return fmt.Errorf("%s_FILE: the file cannot be read: %w; name a readable file", s.Name, err)
	}
	if *s.Value = strings.TrimRight(string(content), "\r\n"); *s.Value == "" {
		return fmt.Errorf("%s_FILE: the file is empty; write the secret into it", s.Name)
	}
	return nil
}
