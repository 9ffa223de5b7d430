package servers_test
import ("testing";"time";"fmt";"github.com/twoqueue/twoqueue/tests/servers/servertest")
func TestZZ(t *testing.T){
	for _, d := range []time.Duration{300*time.Millisecond, 600*time.Millisecond, time.Second} { for i := range 2 { t.Run(fmt.Sprint(d,i), func(t *testing.T) {
	server := servertest.StartRabbitMQ(t, nil)
	publishConfirmed(t, server.URL(), "kept", "confirmed")
	time.Sleep(d)
	server.Kill()
	server.Restart(t.Context())
	got := make(chan bool, 1); ch := open(t, server.URL())
	go func() { _, ok, _ := ch.Get("kept", true); got <- ok }()
	select { case ok := <-got: t.Log(d, ok); case <-time.After(8*time.Second): t.Log(d, "no leader") }
	})}}
}
