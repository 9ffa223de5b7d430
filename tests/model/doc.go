// Package model has the protocol as a small formal model, in Promela, and has SPIN check every run
// of it. With all rules on, nothing is lost, nothing is invented, nothing takes effect twice and
// nothing is left over. With any one rule switched off, SPIN finds a run that breaks the promise.
// README.md explains the model. -model.long searches with more simultaneous faults than are needed
// to break any rule.
package model
