// Package property runs random interleavings of everything that a sender may do
// with its transactions, and that may happen to a verifier, against real servers,
// and checks that what was delivered is what was committed. Few of them by default;
// -rapid.checks 1000 is the long form.
package property
