package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// results is the parsed content of results.md. The pictures are drawn from it.
type results struct {
	machine string
	values  []result
}

// A result is the median of a metric, with its lowest and its highest round.
type result struct {
	scenario, what, contender, metric string
	low, middle, high                 float64
}

func readResults(name string) (results, error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return results{}, err
	}
	r, err := parseResults(string(content))
	if err != nil {
		return results{}, fmt.Errorf("read %s: %w", name, err)
	}
	return r, nil
}

// parseResults parses the output of report.write.
func parseResults(content string) (results, error) {
	var r results
	var scenario string
	var metrics []string // of the current table
	for line := range strings.Lines(content) {
		line = strings.TrimSpace(line)
		switch {
		case strings.Contains(line, machineEnd):
			r.machine, _, _ = strings.Cut(line, machineEnd)
			r.machine += "."
		case strings.HasPrefix(line, "## "):
			scenario, metrics = strings.TrimPrefix(line, "## "), nil
		case strings.HasPrefix(line, "|---"):
		case strings.HasPrefix(line, "| "):
			cells := strings.Split(strings.Trim(line, "|"), "|")
			if metrics == nil {
				metrics = cells
				continue
			}
			for i := 2; i < min(len(cells), len(metrics)); i++ {
				one := result{scenario: scenario, what: strings.TrimSpace(cells[0]), contender: strings.TrimSpace(cells[1]), metric: strings.TrimSpace(metrics[i])}
				there, err := one.parse(strings.TrimSpace(cells[i]))
				if err != nil {
					return results{}, fmt.Errorf("%s, %s, %s: %w", scenario, one.what, one.contender, err)
				}
				if there {
					r.values = append(r.values, one)
				}
			}
		}
	}
	return r, nil
}

// parse reads a cell that spread has written: empty, one value, or a value with its lowest and its
// highest in brackets.
func (r *result) parse(cell string) (there bool, err error) {
	middle, reach, _ := strings.Cut(cell, " ")
	if middle == "" || middle == "–" || middle == "never" {
		return false, nil
	}
	if r.middle, err = strconv.ParseFloat(middle, 64); err != nil {
		return false, err
	}
	r.low, r.high = r.middle, r.middle
	low, high, ok := strings.Cut(strings.Trim(reach, "()"), "–")
	if !ok || low == "" || high == "" || high == "never" {
		return true, nil
	}
	if r.low, err = strconv.ParseFloat(low, 64); err != nil {
		return false, err
	}
	r.high, err = strconv.ParseFloat(high, 64)
	return err == nil, err
}
