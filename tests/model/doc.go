// Package model has the protocol as a small formal model, in Promela, and has
// SPIN check every run of it: with all rules on nothing is lost, nothing is
// invented, nothing takes effect twice and nothing is left lying; with any one
// rule switched off SPIN finds the run that breaks the promise. README.md says how
// to read the model. -model.long searches with more faults at a time than it takes to
// break any rule.
package model
