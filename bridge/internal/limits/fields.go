package limits

// Width is how many bytes a value in the headers has, behind its type, as RabbitMQ and amqp091-go
// write it. It is false for a type whose values tell their length themselves (S, x, F, A), and for
// one that the library does not know.
func Width(kind byte) (bytes uint64, fixed bool) {
	switch kind {
	case 'V':
		return 0, true
	case 't', 'b', 'B':
		return 1, true
	case 's', 'u':
		return 2, true
	case 'I', 'i', 'f':
		return 4, true
	case 'D':
		return 5, true
	case 'l', 'd', 'T':
		return 8, true
	}
	return 0, false
}
