// Package property runs random interleavings of all actions of a sender in its transactions, and
// of all events that a verifier can meet, against real servers. It checks that exactly the
// committed messages are delivered. By default there are few runs; -rapid.checks 1000 is the long
// form.
package property
