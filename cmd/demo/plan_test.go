package main

import (
	"reflect"
	"testing"
	"time"
)

func TestPlan(t *testing.T) {
	p := plan{Seed: 1, Orders: 4001, Workers: 6, Holders: 6, Hold: 5 * time.Second}
	orders, rolledBack, deaths, held := 0, 0, map[ending]int{}, 0
	for worker := range p.Workers {
		baskets := p.baskets(worker)
		if !reflect.DeepEqual(baskets, p.baskets(worker)) {
			t.Fatal("a process that replaces another one would have another plan")
		}
		for _, b := range baskets {
			orders += b.Orders
			deaths[b.End]++
			if b.End == rollsBack {
				rolledBack += b.Orders
			}
			if b.Hold > 0 {
				held++
				if b.Hold < p.Hold/2 || b.Hold > p.Hold {
					t.Errorf("held for %v", b.Hold)
				}
			}
		}
	}
	if orders != p.Orders {
		t.Errorf("%d orders", orders)
	}
	if share := float64(rolledBack) / float64(orders); share < 0.15 || share > 0.25 {
		t.Errorf("%.2f roll back, not a fifth", share)
	}
	if deaths[diesUncommitted] != 6 || deaths[diesCommitted] != 6 || held != 6 {
		t.Errorf("deaths %v, held open %d", deaths, held)
	}
}

func TestPlanOfFewOrders(t *testing.T) {
	for orders := range 30 {
		p := plan{Orders: orders, Workers: 4, Holders: 3, Hold: time.Second}
		n := 0
		for worker := range p.Workers {
			for _, b := range p.baskets(worker) {
				n += b.Orders
			}
		}
		if n != orders {
			t.Errorf("%d orders of %d", n, orders)
		}
	}
}
