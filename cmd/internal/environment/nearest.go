package environment

// nearest returns the name that needs the fewest changes of one character to become text, or "" if
// they are too many for a typing error.
func nearest(text string, names map[string]bool) string {
	const slip = 3
	best, least := "", slip+1
	for name := range names {
		if d := distance(text, name); d < least || d == least && name < best {
			best, least = name, d
		}
	}
	if least > slip {
		return ""
	}
	return best
}

// distance returns the Levenshtein distance.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
