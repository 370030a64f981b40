package otelctx

import (
	"strings"
	"unicode/utf8"
)

const (
	// maxDepth is the nesting of lists and maps that readers accept.
	maxDepth = 32
	// maxValues is the number of attributes and values that readers accept, nested ones included.
	maxValues = 65_536
	// defaultMaxPayloadSize is the size in bytes of the largest payload that readers must accept.
	defaultMaxPayloadSize = 65_536
	// reservedPrefix starts the names of attributes that describe the contexts of threads.
	reservedPrefix = "threadlocal."
	schemaVersion  = reservedPrefix + "schema_version"
	// schema says that contexts are labels of Go's profiler (OTEP 4947). It has no key map.
	schema = "go_pprof_labels_v1"
)

// check returns an error for what a strict reader would reject. Names are not repeated: setting an attribute replaces it.
func (c ProcessContext) check() error {
	for _, attribute := range c.attributes {
		if strings.HasPrefix(attribute.Key, reservedPrefix) {
			return &AttributeError{attribute.Key, ErrReservedKey}
		}
	}
	// One for the schema.
	left := maxValues - 1
	for _, attributes := range [][]Attribute{c.resource, c.attributes} {
		for _, attribute := range attributes {
			if attribute.Key == "" {
				return &AttributeError{"", ErrEmptyKey}
			}
			if !utf8.ValidString(attribute.Key) {
				return &AttributeError{attribute.Key, ErrNotUTF8}
			}
			if err := attribute.Value.check(maxDepth, &left); err != nil {
				return &AttributeError{attribute.Key, err}
			}
		}
	}
	return nil
}

func (v Value) check(depthLeft int, valuesLeft *int) error {
	if *valuesLeft--; *valuesLeft < 0 {
		return ErrTooManyValues
	}
	if v.kind == KindString && !utf8.ValidString(v.text) {
		return ErrNotUTF8
	}
	if v.kind != KindArray && v.kind != KindMap {
		return nil
	}
	if depthLeft == 0 {
		return ErrTooDeep
	}
	for _, item := range v.items {
		if err := item.check(depthLeft-1, valuesLeft); err != nil {
			return err
		}
	}
	for _, pair := range v.pairs {
		if !utf8.ValidString(pair.Key) {
			return ErrNotUTF8
		}
		if err := pair.Value.check(depthLeft-1, valuesLeft); err != nil {
			return err
		}
	}
	return nil
}
