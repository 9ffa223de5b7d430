package email

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Bounds of a body's JSON, well above the schema's. They bound the cost of a hostile body.
const (
	maxDepth  = 16
	maxFields = 64 // of one object
	maxField  = 64 // bytes of a field's name
)

// decode decodes the body as one JSON value. The schema is checked against this value, and the e-mail
// is made from it, so no second decoder can understand the body differently. A field that occurs
// twice in one object, regardless of case, is an error, since decoders differ in which one counts.
func decode(body []byte) (any, error) {
	tokens := json.NewDecoder(bytes.NewReader(body))
	tokens.UseNumber()
	value, err := decodeValue(tokens, "", 0)
	if err != nil {
		return nil, err
	}
	if _, err := tokens.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("not JSON: more than one value")
	}
	return value, nil
}

func decodeValue(tokens *json.Decoder, place string, depth int) (any, error) {
	token, err := tokens.Token()
	if err != nil {
		return nil, notJSON(err)
	}
	if depth > maxDepth {
		return nil, fmt.Errorf("%s: is nested more than %d deep", place, maxDepth)
	}
	switch token {
	case json.Delim('{'):
		return decodeObject(tokens, place, depth)
	case json.Delim('['):
		return decodeArray(tokens, place, depth)
	}
	return token, nil
}

func decodeObject(tokens *json.Decoder, place string, depth int) (any, error) {
	object := make(map[string]any)
	for tokens.More() {
		token, err := tokens.Token()
		if err != nil {
			return nil, notJSON(err)
		}
		name, _ := token.(string)
		if len(name) > maxField || len(object) == maxFields {
			return nil, fmt.Errorf("%s/: has a field with a name of more than %d bytes, or more than %d fields", place, maxField, maxFields)
		}
		for other := range object {
			if strings.EqualFold(other, name) {
				return nil, fmt.Errorf("%s/: %q occurs twice", place, name)
			}
		}
		if object[name], err = decodeValue(tokens, place+"/"+name, depth+1); err != nil {
			return nil, err
		}
	}
	if _, err := tokens.Token(); err != nil { // the closing bracket
		return nil, notJSON(err)
	}
	return object, nil
}

func decodeArray(tokens *json.Decoder, place string, depth int) (any, error) {
	array := []any{}
	for tokens.More() {
		value, err := decodeValue(tokens, fmt.Sprintf("%s/%d", place, len(array)), depth+1)
		if err != nil {
			return nil, err
		}
		array = append(array, value)
	}
	if _, err := tokens.Token(); err != nil { // the closing bracket
		return nil, notJSON(err)
	}
	return array, nil
}

// notJSON wraps a decoder's error. The decoder returns EOF for a truncated body.
func notJSON(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("not JSON: %w", err)
}
