package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// resolve does the operator's part for the gateways, until every e-mail is sent and none is pending,
// or patience ends. It fills d.doubts.
func (d *director) resolve(ctx context.Context) error {
	d.doubts = make(map[string]bool)
	var unable error
	for late := time.Now().Add(patience); time.Now().Before(late); {
		c, err := d.counts(ctx)
		if err != nil || c.Received >= c.Committed && c.Pending == 0 {
			return err
		}
		if c.Doubtful > 0 {
			// Not final: a gateway may resolve an e-mail after it was listed.
			unable = d.lookUp(ctx)
		}
		if err := rest(ctx); err != nil {
			return err
		}
	}
	return unable
}

// lookUp lists the doubtful e-mails, searches the mail server's log for each of them, and decides it:
// sent if it is there, retry if not.
func (d *director) lookUp(ctx context.Context) error {
	output, err := d.askGateway(ctx, "doubtful", "list", "-o", "json")
	if err != nil {
		return err
	}
	var listed []struct{ ID string }
	if err := json.Unmarshal(output, &listed); err != nil {
		return fmt.Errorf("read the doubtful e-mails: %w", err)
	}
	// An e-mail that a client has given up may still arrive in the log.
	for !d.mail.idle() {
		if err := rest(ctx); err != nil {
			return err
		}
	}
	logged := make(map[string]bool)
	for _, r := range d.mail.receipts() {
		logged[r.MessageID] = true
	}
	there, missing := 0, 0
	for _, e := range listed {
		decision, count := "retry", &missing
		if logged[e.ID] {
			decision, count = "sent", &there
		}
		if _, err := d.askGateway(ctx, "doubtful", decision, e.ID); err != nil {
			return err
		}
		d.doubts[e.ID] = logged[e.ID]
		*count++
	}
	if len(listed) > 0 {
		d.show.event("the operator looks up %d doubtful e-mails in the mail server's log:", len(listed))
		d.show.event("  %d are there (doubtful sent), %d are not (doubtful retry)", there, missing)
	}
	return nil
}
