// Package inspect has the interfaces for operators' questions to a database: whether its settings
// are right, whose open transaction a message waits for, which rows carry messages, and which of
// these are delayed. Packages postgresinspect, mysqlinspect, sqlserverinspect and sqliteinspect
// implement them. The command bridgectl uses them, and so does the worker, for its log and its
// status page. No answer decides about a message. The only change that the interfaces offer
// makes a delayed message due at once. An application that sends or receives links none of these
// packages.
package inspect
