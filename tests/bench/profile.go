package main

import (
	"fmt"
	"os"
	"os/signal"
	"runtime/pprof"
	"syscall"
)

// Where BENCH_PROFILE names a file, a CPU profile is written from each SIGUSR1 to
// the next SIGUSR2, to that name with a number. This file is compiled into the
// worker too (see buildVerifier), so it must need nothing else of this package.
func init() {
	name := os.Getenv("BENCH_PROFILE")
	if name == "" {
		return
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		for n := 1; ; n++ {
			if err := profileOnce(fmt.Sprintf("%s.%d.pprof", name, n), signals); err != nil {
				fmt.Fprintln(os.Stderr, "profile:", err)
				return
			}
		}
	}()
}

func profileOnce(name string, signals <-chan os.Signal) error {
	for s := range signals {
		if s == syscall.SIGUSR1 {
			break
		}
	}
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return err
	}
	for s := range signals {
		if s == syscall.SIGUSR2 {
			break
		}
	}
	pprof.StopCPUProfile()
	return file.Close()
}
