package otelctx

import "math"

// Kind is the type of a [Value].
type Kind int

// The types of OTLP's AnyValue.
const (
	KindEmpty Kind = iota
	KindString
	KindBool
	KindInt64
	KindFloat64
	KindArray
	KindMap
	KindBytes
)

// Value is an attribute's value: OTLP's AnyValue. The zero Value is one that was not set.
type Value struct {
	kind Kind
	// number has the bits of a bool, an int64 or a float64.
	number uint64
	// text has a string, or bytes.
	text  string
	items []Value
	pairs []Attribute
}

// Attribute is a name with a value.
type Attribute struct {
	Key   string
	Value Value
}

// Kind returns the type of the value.
func (v Value) Kind() Kind { return v.kind }

// StringValue returns a Value with a string, which must be UTF-8.
func StringValue(text string) Value { return Value{kind: KindString, text: text} }

// BoolValue returns a Value with a bool.
func BoolValue(truth bool) Value {
	v := Value{kind: KindBool}
	if truth {
		v.number = 1
	}
	return v
}

// IntValue returns a Value with an int.
func IntValue(number int) Value { return Int64Value(int64(number)) }

// Int64Value returns a Value with an int64.
func Int64Value(number int64) Value { return Value{kind: KindInt64, number: uint64(number)} }

// Float64Value returns a Value with a float64.
func Float64Value(number float64) Value {
	return Value{kind: KindFloat64, number: math.Float64bits(number)}
}

// BytesValue returns a Value with a copy of bytes.
func BytesValue(bytes []byte) Value { return Value{kind: KindBytes, text: string(bytes)} }

// ArrayValue returns a Value with a copy of a list.
func ArrayValue(items ...Value) Value {
	return Value{kind: KindArray, items: append([]Value(nil), items...)}
}

// MapValue returns a Value with a copy of names and values.
func MapValue(pairs ...Attribute) Value {
	return Value{kind: KindMap, pairs: append([]Attribute(nil), pairs...)}
}

// String returns an attribute with a string, which must be UTF-8.
func String(key, text string) Attribute { return Attribute{key, StringValue(text)} }

// Bool returns an attribute with a bool.
func Bool(key string, truth bool) Attribute { return Attribute{key, BoolValue(truth)} }

// Int returns an attribute with an int.
func Int(key string, number int) Attribute { return Attribute{key, IntValue(number)} }

// Int64 returns an attribute with an int64.
func Int64(key string, number int64) Attribute { return Attribute{key, Int64Value(number)} }

// Float64 returns an attribute with a float64.
func Float64(key string, number float64) Attribute { return Attribute{key, Float64Value(number)} }

// Bytes returns an attribute with a copy of bytes.
func Bytes(key string, bytes []byte) Attribute { return Attribute{key, BytesValue(bytes)} }

// Array returns an attribute with a copy of a list.
func Array(key string, items ...Value) Attribute { return Attribute{key, ArrayValue(items...)} }

// Map returns an attribute with a copy of names and values.
func Map(key string, pairs ...Attribute) Attribute { return Attribute{key, MapValue(pairs...)} }

// set sets attributes in a new list; setting a name again replaces its value, at its place.
func set(known []Attribute, attributes []Attribute) []Attribute {
	list := make([]Attribute, len(known), len(known)+len(attributes))
	copy(list, known)
	places := make(map[string]int, cap(list))
	for place, attribute := range list {
		places[attribute.Key] = place
	}
	for _, attribute := range attributes {
		if place, isKnown := places[attribute.Key]; isKnown {
			list[place] = attribute
			continue
		}
		places[attribute.Key] = len(list)
		list = append(list, attribute)
	}
	return list
}
