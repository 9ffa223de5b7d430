package main

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// scanned are tables that may be scanned: they have one row, or one row for each version.
var scanned = []string{"bridge_identity", "bridge_watermark", "bridge_ledger_version", "bridge_inbox_version"}

// plans examines the plans in the server's cache. The statements that scan have not run by then.
func plans(ctx context.Context, w *world) (string, error) {
	rows, err := w.db.QueryContext(ctx, `SELECT t.text, p.query_plan FROM sys.dm_exec_query_stats s
CROSS APPLY sys.dm_exec_sql_text(s.sql_handle) t CROSS APPLY sys.dm_exec_query_plan(s.plan_handle) p
WHERE t.text LIKE '%bridge[_]%' AND t.text NOT LIKE '%dm[_]exec%' AND p.query_plan IS NOT NULL`)
	if err != nil {
		return "", err
	}
	defer rows.Close()
	var bad []string
	seen := 0
	for rows.Next() {
		var text, plan string
		if err := rows.Scan(&text, &plan); err != nil {
			return "", err
		}
		seen++
		found, err := operators(plan)
		if err != nil {
			return "", err
		}
		for _, o := range found {
			scans := strings.HasSuffix(o.name, "Scan") && strings.HasPrefix(o.table, "bridge_") && !slices.Contains(scanned, o.table)
			if scans || o.name == "Sort" && strings.Contains(text, "UPDLOCK") {
				bad = append(bad, fmt.Sprintf("%s %s: %.80s", o.name, o.table, strings.Join(strings.Fields(text), " ")))
			}
		}
	}
	switch {
	case rows.Err() != nil:
		return "", rows.Err()
	case seen == 0:
		return "", errors.New("the server shows no plans of ours")
	case len(bad) > 0:
		slices.Sort(bad)
		return strings.Join(slices.Compact(bad), "; "), nil
	}
	return "none does", nil
}

// plansOfMany fills the tables, has every statement compiled again, and examines the plans.
func plansOfMany(ctx context.Context, w *world) (string, error) {
	for _, statement := range []string{
		fmt.Sprintf("INSERT INTO bridge_ledger (id) SELECT TOP (%d) NEWID() FROM sys.all_columns a CROSS JOIN sys.all_columns b", rows),
		fmt.Sprintf("INSERT INTO bridge_inbox (consumer, [key]) SELECT TOP (%d) 0x6F757273, CAST(NEWID() AS varbinary(16)) FROM sys.all_columns a CROSS JOIN sys.all_columns b", rows),
		fmt.Sprintf(`INSERT INTO bridge_inbox_pending (consumer, message_key, state, run, attempts, since_ms, due_ms, error)
SELECT TOP (%d) 0x6F757273, CAST(NEWID() AS varbinary(16)), 'ready', '', 0, 0, 9000000000000000, '' FROM sys.all_columns a CROSS JOIN sys.all_columns b`, rows),
		"UPDATE STATISTICS bridge_ledger", "UPDATE STATISTICS bridge_inbox", "UPDATE STATISTICS bridge_inbox_pending",
		"ALTER DATABASE SCOPED CONFIGURATION CLEAR PROCEDURE_CACHE",
	} {
		if _, err := w.db.ExecContext(ctx, statement); err != nil {
			return "", err
		}
	}
	for _, again := range []func(context.Context, *world) (string, error){besideOpen, settleWaits, prove, carried, delayed, inboxSeeks, twoTakersOf("many")} {
		if _, err := again(ctx, w); err != nil {
			return "", err
		}
	}
	return plans(ctx, w)
}

// operator is an operator of a plan, with the table that it reads.
type operator struct{ name, table string }

// operators returns the operators of a plan in XML.
func operators(plan string) (all []operator, err error) {
	d := xml.NewDecoder(strings.NewReader(plan))
	var open []int // indexes of the open operators in all
	for {
		token, err := d.Token()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read a plan: %w", err)
		}
		switch e := token.(type) {
		case xml.StartElement:
			switch e.Name.Local {
			case "RelOp":
				open = append(open, len(all))
				all = append(all, operator{name: attribute(e, "PhysicalOp")})
			case "Object":
				if len(open) > 0 {
					all[open[len(open)-1]].table = strings.Trim(attribute(e, "Table"), "[]")
				}
			}
		case xml.EndElement:
			if e.Name.Local == "RelOp" {
				open = open[:len(open)-1]
			}
		}
	}
}

func attribute(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}
