package main

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

func TestBytesOverTheNetworkArriveWholeAndLate(t *testing.T) {
	server, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		conn, err := server.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.Copy(conn, conn)
	}()
	const late = 20 * time.Millisecond
	n, err := newNetwork(server.Addr().String(), late)
	if err != nil {
		t.Fatal(err)
	}
	client, err := net.Dial("tcp4", n.address())
	if err != nil {
		t.Fatal(err)
	}
	sent := []byte(strings.Repeat("twoqueue", 100_000))
	begun := time.Now()
	go func() { _, _ = client.Write(sent) }()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(client, got[:1]); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took < 2*late {
		t.Errorf("the first byte is back after %s, and each way takes %s", took, late)
	}
	if _, err := io.ReadFull(client, got[1:]); err != nil {
		t.Fatal(err)
	}
	if string(got) != string(sent) {
		t.Error("the bytes that came back are not the bytes sent")
	}
	if err := n.close(); err != nil {
		t.Error(err)
	}
	if _, err := client.Read(got); err == nil {
		t.Error("the connection goes on after the network's end")
	}
}
