package verifier

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestGatheringGrowsWithTheRateAndEndsWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const longest = 10 * time.Millisecond
		var p loadMeter
		at := func(perSecond int) time.Duration {
			for range 200 {
				time.Sleep(time.Second / time.Duration(perSecond))
				p.add(1)
			}
			return p.gather(longest)
		}
		if got := p.gather(longest); got != 0 {
			t.Errorf("before the first message: gathers for %v", got)
		}
		if got := at(300); got != 0 {
			t.Errorf("at 300 a second: gathers for %v", got)
		}
		if got := at(1000); got < longest/4 || got > 3*longest/4 {
			t.Errorf("at 1000 a second: gathers for %v of %v", got, longest)
		}
		if got := at(5000); got != longest {
			t.Errorf("at 5000 a second: gathers for %v", got)
		}
		time.Sleep(time.Second)
		if got := p.gather(longest); got != 0 {
			t.Errorf("when nothing comes any more: gathers for %v", got)
		}
	})
}
