package sender

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

type parkingLot struct {
	driver.Recorder
	parked int
	err    error
}

func (p *parkingLot) Park(context.Context, bridge.Tx, []driver.Parked) error {
	if p.err == nil {
		p.parked++
	}
	return p.err
}

// Whoever comes after an outage was found parks at once, unless nothing could be parked.
func TestOnlyWhatWaitingRepairsIsAnOutage(t *testing.T) {
	full := errors.New("no right to park")
	for _, test := range []struct {
		name    string
		staging []error // how each of them ended
		parking error
		want    error // of the last
		parked  int
		out     bool // the next one parks at once
	}{
		{"the broker is away", []error{bridge.ErrUnavailable}, nil, nil, 1, true},
		{"it is back", []error{bridge.ErrUnavailable, nil}, nil, nil, 1, false},
		{"nothing can be parked", []error{bridge.ErrUnavailable}, full, full, 0, false},
		{"it refuses the login in the end", []error{bridge.ErrUnavailable, bridge.ErrCredentials}, nil, bridge.ErrCredentials, 1, true},
		{"there is no staging queue", []error{bridge.ErrReturned}, nil, bridge.ErrReturned, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lot := &parkingLot{err: test.parking}
				g := &garage{ledger: lot, opts: Options{Logger: slog.New(slog.DiscardHandler)}}
				var err error
				for _, ended := range test.staging {
					err = g.judge(t.Context(), &Staged{parks: true}, ended)
				}
				if !errors.Is(err, test.want) || lot.parked != test.parked || g.knows() != test.out {
					t.Errorf("the error is %v, %d are parked, the next one parks at once: %t; must be %v, %d, %t",
						err, lot.parked, g.knows(), test.want, test.parked, test.out)
				}
			})
		})
	}
}
