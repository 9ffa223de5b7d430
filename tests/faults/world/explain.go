package world

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
)

// Explain reports the progress of a world in which nothing moves any more, with the last lines of
// the diary. It also has the verifiers write their goroutines into the diary and end.
func (w *World) Explain() string {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var out strings.Builder
	for table, db := range map[string]*sql.DB{"orders": w.shop.DB, "bridge_ledger": w.shop.DB,
		"arrivals": w.post.DB, "effects": w.post.DB} {
		n, err := count(ctx, db, "SELECT count(*) FROM "+table)
		fmt.Fprintf(&out, "%s: %d rows, error %v\n", table, n, err)
	}
	for _, p := range w.Processes() {
		fmt.Fprintf(&out, "%s: ended %v\n", p.Name, p.Ended())
	}
	const last = 80
	fmt.Fprintf(&out, "the last %d lines of the diary that are about no single message:\n%s", last, w.Diary.tail(last))
	for _, p := range w.Verifiers {
		p.signal(syscall.SIGQUIT)
	}
	return out.String()
}

// tail returns the last lines of the diary, without lines about single messages and without the
// broker's lines.
func (d *Diary) tail(most int) string {
	var last []string
	err := d.scan(func(line string, _ time.Time, writer string, id uuid.UUID, what string) {
		if id != uuid.Nil || writer == "RabbitMQ" || strings.Contains(what, "level=DEBUG") {
			return
		}
		if last = append(last, line[:min(len(line), 300)]); len(last) > most {
			last = last[1:]
		}
	})
	if err != nil {
		last = append(last, err.Error())
	}
	return strings.Join(last, "\n")
}
