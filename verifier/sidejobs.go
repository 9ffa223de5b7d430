package verifier

import (
	"log/slog"

	"github.com/twoqueue/twoqueue/verifier/sidejob"
)

// sideJobs are the jobs of rule 12 of package bridge. Only carried messages without a copy in a
// queue wait for one of them, stage. None of them ends a session. Each remembers across sessions
// whether the log has reported that it fails.
type sideJobs struct{ forget, stage, touch, sweep, explain, observe *sidejob.Job }

// sideCalls are the calls of prove and of the side jobs, without the calls of forgetter and
// toucher. queues is the sweep's request to the broker.
type sideCalls struct{ stage, sweep, queues, explain, prove sideCall }

func newSideCalls() sideCalls {
	return sideCalls{stage: newSideCall(), sweep: newSideCall(), queues: newSideCall(), explain: newSideCall(), prove: sidejob.NewCalls(provesAtOnce)}
}

func newSideJobs(logger *slog.Logger) sideJobs {
	return sideJobs{
		forget:  sidejob.New("forget", logger),
		stage:   sidejob.NewAwaited("stage", "carried messages without a copy in a queue wait until the job works", logger),
		touch:   sidejob.New("touch", logger),
		sweep:   sidejob.New("sweep", logger),
		explain: sidejob.New("explain", logger),
		observe: sidejob.New("observe", logger),
	}
}
