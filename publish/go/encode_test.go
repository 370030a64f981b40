package otelctx

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
)

// jsonValue is an AnyValue in OTLP's JSON.
type jsonValue struct {
	StringValue *string
	BoolValue   *bool
	IntValue    *json.Number
	DoubleValue any
	BytesValue  *string
	ArrayValue  *struct{ Values []jsonValue }
	KvlistValue *struct{ Values []jsonAttribute }
}

type jsonAttribute struct {
	Key   string
	Value jsonValue
}

func (v jsonValue) value(t *testing.T) Value {
	switch {
	case v.StringValue != nil:
		return StringValue(*v.StringValue)
	case v.BoolValue != nil:
		return BoolValue(*v.BoolValue)
	case v.IntValue != nil:
		number, err := strconv.ParseInt(v.IntValue.String(), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return Int64Value(number)
	case v.DoubleValue != nil:
		switch number := v.DoubleValue.(type) {
		case float64:
			return Float64Value(number)
		case string:
			if number == "NaN" {
				// Go's own NaN has another bit set.
				return Float64Value(math.Float64frombits(0x7ff8000000000000))
			}
			parsed, err := strconv.ParseFloat(number, 64)
			if err != nil {
				t.Fatal(err)
			}
			return Float64Value(parsed)
		}
	case v.BytesValue != nil:
		bytes, err := base64.StdEncoding.DecodeString(*v.BytesValue)
		if err != nil {
			t.Fatal(err)
		}
		return BytesValue(bytes)
	case v.ArrayValue != nil:
		var items []Value
		for _, item := range v.ArrayValue.Values {
			items = append(items, item.value(t))
		}
		return ArrayValue(items...)
	case v.KvlistValue != nil:
		return MapValue(attributes(t, v.KvlistValue.Values)...)
	}
	return Value{}
}

func attributes(t *testing.T, list []jsonAttribute) (found []Attribute) {
	for _, attribute := range list {
		found = append(found, Attribute{attribute.Key, attribute.Value.value(t)})
	}
	return found
}

// The vectors of testing/conformance, with which the publisher in Rust is tested, too: both write the same bytes.
func TestPayloadsAreThoseOfTheConformanceVectors(t *testing.T) {
	text, err := os.ReadFile("../../testing/conformance/vectors/payloads.json")
	if err != nil {
		t.Skip("the module is not in its repository: ", err)
	}
	var file struct {
		Vectors []struct {
			Name      string
			Hex       any
			Canonical bool
			Payload   struct {
				Resource   struct{ Attributes []jsonAttribute }
				Attributes []jsonAttribute
			}
		}
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	kinds := make(map[Kind]int)
	compared := 0
	for _, vector := range file.Vectors {
		if !vector.Canonical {
			continue
		}
		resource := attributes(t, vector.Payload.Resource.Attributes)
		context := attributes(t, vector.Payload.Attributes)
		for _, attribute := range append(append([]Attribute(nil), context...), resource...) {
			kinds[attribute.Value.Kind()]++
		}
		if found := hex.EncodeToString(encodePayload(resource, context)); found != vector.Hex {
			t.Errorf("%s: %s, not %s", vector.Name, found, vector.Hex)
		}
		compared++
	}
	if len(kinds) != int(KindBytes)+1 || compared < 10 {
		t.Errorf("only %d vectors, with values of %v", compared, kinds)
	}
}

func TestNumbersKeepTheirBits(t *testing.T) {
	for _, case_ := range []struct {
		value Value
		hex   string
	}{
		{Int64Value(math.MinInt64), "1880808080808080808001"},
		{Int64Value(-1), "18ffffffffffffffffff01"},
		{IntValue(0), "1800"},
		{Float64Value(math.Inf(-1)), "21000000000000f0ff"},
		{Float64Value(math.Copysign(0, -1)), "210000000000000080"},
		{BoolValue(false), "1000"},
		{StringValue(""), "0a00"},
		{BytesValue(nil), "3a00"},
		{ArrayValue(), "2a00"},
		{MapValue(), "3200"},
		{Value{}, ""},
	} {
		if found := hex.EncodeToString(case_.value.encode()); found != case_.hex {
			t.Errorf("%+v: %s, not %s", case_.value, found, case_.hex)
		}
	}
}

func nested(depth int) Value {
	value := BoolValue(true)
	for ; depth > 0; depth-- {
		if depth%2 == 0 {
			value = ArrayValue(value)
		} else {
			value = MapValue(Attribute{"inner", value})
		}
	}
	return value
}

func TestWhatReadersRejectIsAnError(t *testing.T) {
	context := ProcessContext{}.WithServiceName("shop")
	many := func(count int) Attribute { return Array("list", make([]Value, count)...) }
	for _, case_ := range []struct {
		name    string
		context ProcessContext
		err     error
		message string
	}{
		{"an empty key", context.With(String("", "x")), ErrEmptyKey, "an attribute has an empty key"},
		{"an empty key of the context", context.WithContextAttributes(String("", "x")), ErrEmptyKey, "an empty key"},
		{"a reserved key", context.WithContextAttributes(String("threadlocal.x", "")), ErrReservedKey, `"threadlocal.x"`},
		{"a key that is not UTF-8", context.With(String("\xff", "")), ErrNotUTF8, `"\xff"`},
		{"a string that is not UTF-8", context.With(String("a", "\xff")), ErrNotUTF8, `attribute "a"`},
		{"in a list", context.With(Array("a", StringValue("\xff"))), ErrNotUTF8, `attribute "a"`},
		{"a key in a map", context.With(Map("a", String("\xff", ""))), ErrNotUTF8, `attribute "a"`},
		{"deep", context.With(Attribute{"deep", nested(33)}), ErrTooDeep, "deeper than 32"},
		{"many", context.With(many(65_536 - 2)).WithMaxPayloadSize(1 << 20), ErrTooManyValues, "65536"},
	} {
		_, err := case_.context.encode()
		if !errors.Is(err, case_.err) || !strings.Contains(err.Error(), case_.message) {
			t.Errorf("%s: %v", case_.name, err)
		}
	}
	for _, allowed := range []ProcessContext{
		context.With(Attribute{"deep", nested(32)}, Bytes("bytes", []byte{0xff})),
		// One each for the service's name, the list and the schema.
		context.With(many(65_536 - 3)).WithMaxPayloadSize(1 << 20),
		context.With(String("threadlocal.x", "an attribute of the resource")),
	} {
		if _, err := allowed.encode(); err != nil {
			t.Error(err)
		}
	}
}

func TestTheSizeIsLimited(t *testing.T) {
	sized := func(size int) ProcessContext {
		empty, err := ProcessContext{}.With(String("filler", strings.Repeat("x", 65_000))).encode()
		if err != nil {
			t.Fatal(err)
		}
		return ProcessContext{}.With(String("filler", strings.Repeat("x", 65_000+size-len(empty))))
	}
	if bytes, err := sized(65_536).encode(); err != nil || len(bytes) != 65_536 {
		t.Error(len(bytes), err)
	}
	_, err := sized(65_537).encode()
	var tooLarge *TooLargeError
	if !errors.As(err, &tooLarge) || *tooLarge != (TooLargeError{65_537, 65_536}) {
		t.Error(err)
	}
	if _, err := sized(65_537).WithMaxPayloadSize(65_537).encode(); err != nil {
		t.Error(err)
	}
}
