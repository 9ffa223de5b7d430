package endpoints_test

import (
	"net/http"
	"testing"

	"github.com/twoqueue/twoqueue/cmd/internal/endpoints"
)

// A page of another site, in the browser of a user who may read the profiles, cannot start a profile
// and so slow the command down.
func TestProfilesAreNotForThePagesOfOtherSites(t *testing.T) {
	private := func(page http.Handler) http.Handler { return page }
	server, err := endpoints.ListenProfiles(t.Context(), "127.0.0.1:0", private, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for site, want := range map[string]int{"": 200, "none": 200, "same-origin": 200, "same-site": 403, "cross-site": 403, "anything": 403} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+server.Address()+"/debug/pprof/cmdline", nil)
		if err != nil {
			t.Fatal(err)
		}
		if site != "" {
			request.Header.Set("Sec-Fetch-Site", site)
		}
		request.Close = true
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("Sec-Fetch-Site %q: %d, want %d", site, response.StatusCode, want)
		}
	}
}
