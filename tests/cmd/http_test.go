package cmd_test

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// where is the address of one of the worker's servers, by what its log calls it.
func (p *process) where(what string) string {
	p.t.Helper()
	line := regexp.MustCompile(`msg="?` + what + `"? address=(\S+)`)
	said := p.Read(&p.Stderr, "where its "+what+" is", line.MatchString)
	return line.FindStringSubmatch(said)[1]
}

// endpoint asks one of the endpoints.
func (p *process) endpoint(path string) (code int, text string) {
	p.t.Helper()
	return get(p.t, "http://"+p.where("endpoints")+path)
}

func get(t *testing.T, address string) (code int, text string) {
	t.Helper()
	code, text, err := tryGet(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	return code, text
}

func tryGet(ctx context.Context, address string) (code int, text string, err error) {
	ctx, cancel := context.WithTimeout(ctx, stage.Patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, "", err
	}
	request.Close = true // no goroutine is left over
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	return response.StatusCode, string(content), err
}

// ready waits until the worker is, or is not, and returns what it says.
func (p *process) ready(want int, words string) {
	p.t.Helper()
	servertest.Eventually(p.t, "readyz says "+words, func() bool {
		code, text := p.endpoint("/readyz")
		return code == want && strings.Contains(text, words)
	})
}
