module github.com/twoqueue/twoqueue/sender/bunsender

go 1.26.0

replace github.com/twoqueue/twoqueue => ../..

require (
	github.com/google/uuid v1.6.0
	github.com/twoqueue/twoqueue v0.0.0-00010101000000-000000000000
	github.com/uptrace/bun v1.3.0
)

require (
	github.com/cenkalti/backoff/v5 v5.0.3 // indirect
	github.com/jinzhu/inflection v1.0.0 // indirect
	github.com/puzpuzpuz/xsync/v3 v3.5.1 // indirect
	github.com/rabbitmq/amqp091-go v1.16.0 // indirect
	github.com/tmthrgd/go-hex v0.0.0-20190904060850-447a3041c3bc // indirect
	github.com/vmihailenco/msgpack/v5 v5.4.1 // indirect
	github.com/vmihailenco/tagparser/v2 v2.0.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
)
