// Package metrics has the metrics of a sender for Prometheus.
//
//	prometheus.MustRegister(metrics.New(s)) // s is the *sender.Sender
//
// A process with several senders registers each with a separate label:
//
//	prometheus.WrapRegistererWith(prometheus.Labels{"queue": "orders"}, registry).MustRegister(metrics.New(orders))
//
// The metrics, each of which is a field of sender.Stats:
//
//	twoqueue_sender_recorded_total       messages recorded in a transaction, committed or rolled back
//	twoqueue_sender_carried_total        of these: carried by their rows
//	twoqueue_sender_staged_total         messages given to the broker
//	twoqueue_sender_confirmed_total      of these: confirmed
//	twoqueue_sender_refused_total        of these: the broker closed the channel; look at the log
//	twoqueue_sender_failed_total         of these: returned, nacked or not confirmed
//	twoqueue_sender_group_messages       histogram: how many messages travelled together
//	twoqueue_sender_confirm_seconds      histogram: how long a confirmed publication took
//	twoqueue_sender_waiting_bytes        messages that wait for their confirms
//	twoqueue_sender_outage               1 while the broker is out
//	twoqueue_sender_failing              1 while publications fail, for that or another reason
//	twoqueue_sender_failing_timestamp_seconds
//	                                     when twoqueue_sender_failing last changed; 0: never
//
// Alert on twoqueue_sender_failing: transactions fail, or only their rows carry their messages.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twoqueue/twoqueue/sender"
)

type collector struct{ sender *sender.Sender }

// New returns the metrics of s. Each collection reads its Stats.
func New(s *sender.Sender) prometheus.Collector { return collector{s} }

func describe(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("twoqueue_sender_"+name, help, nil, nil)
}

var (
	counts = []struct {
		desc  *prometheus.Desc
		value func(sender.Stats) uint64
	}{
		{describe("recorded_total", "Messages recorded in a transaction, committed or rolled back."), func(s sender.Stats) uint64 { return s.Recorded }},
		{describe("carried_total", "Recorded messages carried by their rows."), func(s sender.Stats) uint64 { return s.Carried }},
		{describe("staged_total", "Messages given to the broker; a carried message counts again when it is published again."), func(s sender.Stats) uint64 { return s.Staged }},
		{describe("confirmed_total", "Staged messages that the broker has confirmed."), func(s sender.Stats) uint64 { return s.Confirmed }},
		{describe("refused_total", "Staged messages in publications for which the broker closed the channel."), func(s sender.Stats) uint64 { return s.Refused }},
		{describe("failed_total", "Staged messages that were returned, nacked or not confirmed."), func(s sender.Stats) uint64 { return s.Failed }},
	}
	gauges = []struct {
		desc  *prometheus.Desc
		value func(sender.Stats) float64
	}{
		{describe("waiting_bytes", "Bytes of messages that wait for their confirms, as the limits count them."), func(s sender.Stats) float64 { return float64(s.Waiting) }},
		{describe("outage", "1 while the broker is out, judged by the last publication; else 0."), func(s sender.Stats) float64 { return one(s.Outage) }},
		{describe("failing", "1 while publications fail, because the broker is out or for another reason; else 0."), func(s sender.Stats) float64 { return one(s.Err != nil) }},
		{describe("failing_timestamp_seconds", "Time at which publications last began or stopped failing, in seconds since 1970; 0: never."), func(s sender.Stats) float64 { return seconds(s.Since) }},
	}
	groups   = describe("group_messages", "Messages in each staged message: 1, or the size of its group.")
	confirms = describe("confirm_seconds", "Duration of confirmed publications, with the wait for a connection.")
)

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

// Describe implements prometheus.Collector.
func (collector) Describe(to chan<- *prometheus.Desc) {
	for _, c := range counts {
		to <- c.desc
	}
	for _, g := range gauges {
		to <- g.desc
	}
	to <- groups
	to <- confirms
}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	stats := c.sender.Stats()
	for _, c := range counts {
		to <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, float64(c.value(stats)))
	}
	for _, g := range gauges {
		to <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, g.value(stats))
	}
	to <- histogram(groups, stats.Groups)
	to <- histogram(confirms, stats.Confirms)
}

func histogram(desc *prometheus.Desc, h sender.Histogram) prometheus.Metric {
	var all uint64
	buckets := make(map[float64]uint64, len(h.Bounds)) // cumulative
	for i, n := range h.Counts {
		all += n
		if i < len(h.Bounds) {
			buckets[h.Bounds[i]] = all
		}
	}
	return prometheus.MustNewConstHistogram(desc, all, h.Sum, buckets)
}
