// Package walkthrough goes through the README's walk-through as a new user would: it
// types every command, and holds what comes out against what the README shows.
package walkthrough
