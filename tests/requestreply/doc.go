// Package requestreply shows a request and its reply between two services, a shop and
// a bank, each with a database, a ledger, an inbox, a staging queue and a verifier of
// its own: the shop's order and its request are one fact, the bank's payment and its
// reply are one, and so are the shop's receipt and the end of the order. Each happens
// once, whichever service is killed at whatever moment.
package requestreply
