package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	workerPatience = 5 * time.Second
	workerMost     = 8 << 20 // bytes of an answer
)

// A workerReport is the part of a worker's /status.json that the doctor reads.
type workerReport struct {
	State              string `json:"state"`
	Error              string `json:"error"`
	Blocked            string `json:"blocked"`
	Foreign            string `json:"foreign"`
	TargetsUnavailable int    `json:"targets_unavailable"`
	Targets            []struct {
		Target       string     `json:"target"`
		Reason       string     `json:"reason"`
		Fix          string     `json:"fix"`
		Messages     int        `json:"messages"`
		Since        time.Time  `json:"since"`
		DeadLetterAt *time.Time `json:"dead_letter_at"`
	} `json:"targets"`
	Now time.Time `json:"now"`
}

// examineWorkers asks workers' status pages which targets are unavailable, and why.
func examineWorkers(ctx context.Context, pages []string) group {
	g := group{Name: "Workers"}
	for _, page := range pages {
		report, err := askWorker(ctx, page)
		c := g.check("worker " + page)
		if err != nil {
			c.fail("start it, or name the address of its status page (BRIDGE_STATUS_ADDR) as http://host:port", "%s", err)
			continue
		}
		switch {
		case report.State == "failing":
			c.fail("see its log", "it judges nothing: %s", report.Error)
		case report.Blocked != "":
			c.fail("free memory or disk on the broker, or raise its limit of connections", "nothing can be published: %s", report.Blocked)
		}
		if report.Foreign != "" {
			c.fail("give each database's senders and verifiers their own staging queue (BRIDGE_QUEUE)", "%s", report.Foreign)
		}
		for _, t := range report.Targets {
			text := fmt.Sprintf("%s accepts nothing: %s; %s for %s", t.Target, t.Reason, count(t.Messages, "message"), short(report.Now.Sub(t.Since).Round(time.Second)))
			if t.DeadLetterAt != nil {
				text += fmt.Sprintf("; the next dead letter in %s", short(max(0, t.DeadLetterAt.Sub(report.Now)).Round(time.Second)))
			}
			c.warn(t.Fix, "%s", text)
		}
		if rest := report.TargetsUnavailable - len(report.Targets); rest > 0 {
			c.warn("see its log", "%d more targets accept nothing", rest)
		}
		c.okIfNoneFound("%s; every target accepts its messages", report.State)
	}
	return g
}

func askWorker(ctx context.Context, page string) (report workerReport, err error) {
	base, err := url.Parse(page)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return report, errors.New("its address is not http://host:port")
	}
	ctx, cancel := context.WithTimeout(ctx, workerPatience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(page, "/")+"/status.json", nil)
	if err != nil {
		return report, errors.New("its address is not http://host:port")
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		var inner *url.Error
		if errors.As(err, &inner) {
			err = inner.Err // without the address
		}
		return report, fmt.Errorf("it does not answer: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return report, fmt.Errorf("it answers %s: the address may not be a status page, or its host name is missing in BRIDGE_STATUS_HOSTS", response.Status)
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, workerMost)).Decode(&report); err != nil || report.State == "" {
		return report, errors.New("its answer is not a status page's")
	}
	return report, nil
}
