// Package inspect is what people ask of a database: whether its settings are right, and
// whose open transaction a message waits for. The ledgers of packages postgres,
// sqlserver, mysql and sqlite answer; bridgectl, the verifier's log and its status page
// ask. No answer decides about a message.
package inspect
