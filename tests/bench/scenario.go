package main

import (
	"context"
	"fmt"
)

// A scenario is one section of the report: trials that are compared with each other.
type scenario struct {
	name     string
	what     string   // a description of the comparison, for the report
	headline headline // the metric of the comparison; may be empty
	trials   func(c config) []trial
}

// A trial is one contender's part of a scenario, in each round. Either its transactions are
// measured at some points, or run measures something else.
type trial struct {
	name   string // name of the contender
	seldom bool   // only in the first round, unless -long is set

	contender *contender
	kind      kind
	points    []point

	run func(ctx context.Context, w *world, add adder) error
}

// An adder records a contender's values in a case, given as pairs of a metric's name and its value.
type adder func(contender, what string, values ...any)

// A point is one case of a trial.
type point struct {
	what  string
	order order
	open  int  // number of further transactions that have sent and stay open meanwhile
	half  bool // at half of the rate that the contender reaches at full load
}

// fullLoad is the number of workers at which all contenders are compared.
const fullLoad = 32

// mostAtOnce limits the concurrent transactions where they begin at a steady rate.
const mostAtOnce = 128

// sending returns trials of contenders at the same points.
func sending(k kind, points []point, contenders ...*contender) (trials []trial) {
	for _, c := range contenders {
		trials = append(trials, trial{name: c.name, contender: c, kind: k, points: points})
	}
	return trials
}

func seldom(trials []trial) []trial {
	for i := range trials {
		trials[i].seldom = true
	}
	return trials
}

// atOnce returns one point for each number of concurrent transactions. The flag -workers replaces
// all the numbers.
func (c config) atOnce(numbers ...int) (points []point) {
	if c.workers > 0 {
		numbers = []int{c.workers}
	}
	for _, n := range numbers {
		points = append(points, point{what: fmt.Sprintf("%d at once", n), order: order{Workers: n, Size: 512}})
	}
	return points
}

// steady returns points at which transactions begin at a steady rate.
func steady(rates ...int) (points []point) {
	for _, rate := range rates {
		points = append(points, point{what: fmt.Sprintf("%d/s", rate), order: order{Workers: mostAtOnce, Rate: float64(rate), Size: 512}})
	}
	return points
}

// compare carries out the trials of a scenario, in alternating rounds.
func (w *world) compare(ctx context.Context, scenario string, trials []trial) error {
	for round := range w.rounds {
		for _, t := range trials {
			if !w.only.MatchString(t.name) || round > 0 && t.seldom && !w.long {
				continue
			}
			err := t.measure(ctx, w, func(contender, what string, values ...any) { w.add(round, scenario, what, contender, values...) })
			if err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
		}
	}
	return nil
}

func (t trial) measure(ctx context.Context, w *world, add adder) error {
	if t.run != nil {
		return t.run(ctx, w, add)
	}
	return w.with(ctx, t.contender, t.kind, func(s *session) error {
		for _, p := range t.points {
			m, err := s.at(p)
			if err != nil {
				return fmt.Errorf("%s: %w", p.what, err)
			}
			add(t.name, p.what, m.values()...)
		}
		return nil
	})
}

// at measures one point.
func (s *session) at(p point) (m measurement, err error) {
	if p.half {
		most, err := s.measure(order{Workers: fullLoad, Size: 512})
		if err != nil {
			return m, err
		}
		p.order.Rate = most.delivered / 2
	}
	if p.open > 0 {
		if _, err := s.do(order{Open: p.open, Size: 512}); err != nil {
			return m, err
		}
	}
	if m, err = s.measure(p.order); err == nil && p.open > 0 {
		_, err = s.do(order{Close: true})
	}
	return m, err
}
