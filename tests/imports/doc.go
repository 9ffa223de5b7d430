// Package imports checks which packages import each other against the rules, and the modules that
// the library's users inherit against a list.
package imports
