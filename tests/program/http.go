package program

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"testing"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// Where waits until a process logs the address of one of its HTTP servers, found by the server's
// name in the log, and returns the address.
func (p *Process) Where(server string) string {
	p.t.Helper()
	line := regexp.MustCompile(`msg="?` + server + `"? address=(\S+)`)
	said := p.Read(&p.Stderr, "where its "+server+" is", line.MatchString)
	return line.FindStringSubmatch(said)[1]
}

// Endpoint requests one of the endpoints of a process.
func (p *Process) Endpoint(path string) (code int, text string) {
	p.t.Helper()
	return Get(p.t, "http://"+p.Where("endpoints")+path)
}

// AwaitEndpoint waits until an endpoint answers with this code and exactly this text.
func (p *Process) AwaitEndpoint(path string, code int, text string) {
	p.t.Helper()
	var gotCode int
	var got string
	servertest.Eventually(p.t, path+" says "+text, func() bool {
		gotCode, got = p.Endpoint(path)
		return gotCode == code && got == text
	}, func() string { return got })
}

// Get sends a request to an HTTP server.
func Get(t testing.TB, address string) (code int, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), servertest.Patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Close = true // leaves no goroutine behind
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(content)
}
