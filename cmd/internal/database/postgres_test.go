package database

import (
	"errors"
	"testing"
)

func TestAServerWithoutTLSIsNotNamedIfAnotherAttemptSaysMore(t *testing.T) {
	const head, refused, login = "failed to connect to `user=u database=d`:", "h (h): tls error: server refused TLS connection", "h (h): failed SASL auth"
	for text, want := range map[string]string{
		head + "\n\t" + refused + "\n\t" + login:   head + "\n\t" + login,
		head + " " + refused:                       head + " " + refused,
		head + "\n\t" + refused + "\n\t" + refused: head + "\n\t" + refused + "\n\t" + refused,
		head + "\n\t" + login + "\n\t" + login:     head + "\n\t" + login + "\n\t" + login,
	} {
		inner := errors.New(text)
		if got := classifyPostgres(inner); got.Error() != ErrUnreachable.Error()+": "+want || !errors.Is(got, inner) {
			t.Errorf("%q becomes %q", text, got)
		}
	}
}
