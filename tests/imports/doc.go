// Package imports holds the packages against the rules of who may import whom, and
// against the list of what a user of the library inherits.
package imports
