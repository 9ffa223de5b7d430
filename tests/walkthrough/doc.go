// Package walkthrough follows cmd/bridgectl/WALKTHROUGH.md as a new user would: it types every
// command and compares the output with the page.
package walkthrough
