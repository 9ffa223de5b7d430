module github.com/twoqueue/twoqueue/sender/gormsender

go 1.26.0

replace github.com/twoqueue/twoqueue => ../..

require (
	github.com/google/uuid v1.6.0
	github.com/twoqueue/twoqueue v0.0.0-00010101000000-000000000000
	gorm.io/gorm v1.31.2
)

require (
	github.com/cenkalti/backoff/v5 v5.0.3 // indirect
	github.com/jinzhu/inflection v1.0.0 // indirect
	github.com/jinzhu/now v1.1.5 // indirect
	github.com/rabbitmq/amqp091-go v1.16.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)
