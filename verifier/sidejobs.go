package verifier

import (
	"log/slog"

	"github.com/twoqueue/twoqueue/verifier/sidejob"
)

// sideJobs are what no message depends on (rule 12 of package bridge). None of them
// ends a session, and what the log has said of them is remembered from one to the next.
type sideJobs struct{ forget, stage, touch, sweep, explain, observe *sidejob.Job }

func newSideJobs(logger *slog.Logger) sideJobs {
	return sideJobs{
		forget:  sidejob.New("forget", logger),
		stage:   sidejob.New("stage", logger),
		touch:   sidejob.New("touch", logger),
		sweep:   sidejob.New("sweep", logger),
		explain: sidejob.New("explain", logger),
		observe: sidejob.New("observe", logger),
	}
}
