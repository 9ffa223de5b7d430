// Package program builds and runs the project's commands for tests, as users run them: real
// binaries, with an environment, arguments and signals.
//
//	func TestMain(m *testing.M) { program.Main(m) }
//
//	p := program.Start(t, "verifier", "BRIDGE_AMQP_URL="+broker)
//	p.Hear("session started")
//	p.Signal(syscall.SIGTERM)
//	code := p.Await()
//
// A process is killed when its test ends, and by the kernel when the test binary dies. The end of
// its output is logged, only if the test fails.
package program
