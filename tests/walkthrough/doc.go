// Package walkthrough goes through cmd/bridgectl/WALKTHROUGH.md as a new user would: it
// types every command, and holds what comes out against what the page shows.
package walkthrough
