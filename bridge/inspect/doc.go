// Package inspect has the interfaces for operators' questions to a database: whether its settings
// are right, whose open transaction a message waits for, which rows carry messages, and which of
// these are delayed. Function Inspect of packages postgres, mysql, sqlserver and sqlite returns an
// implementation. The command bridgectl uses it, and so does the worker, for its log and its status
// page. No answer decides about a message. The only change that the interfaces offer makes a
// delayed message due at once. The linker leaves the implementation out of a program that does not
// call Inspect.
package inspect
