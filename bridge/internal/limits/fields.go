package limits

// Width returns how many bytes a value in the headers has, after its type, in the encoding of
// RabbitMQ and amqp091-go. fixed is false for a type whose values contain their length (S, x, F,
// A), and for a type that the library does not support.
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
