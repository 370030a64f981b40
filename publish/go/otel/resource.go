package otelctxotel

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"

	otelctx "repository.invalid/publish/go"
)

// Publish publishes the process context with what can be detected, and with the attributes of a resource, which replace
// detected ones. If package otelctx has published a context already, as its package auto does, the attributes are added to that.
// See [otelctx.Publish].
func Publish(resource *resource.Resource) error {
	attributes := Attributes(resource)
	err := otelctx.Publish(otelctx.Detect().With(attributes...))
	if err != otelctx.ErrAlreadyPublished {
		return err
	}
	return otelctx.Modify(func(context otelctx.ProcessContext) otelctx.ProcessContext { return context.With(attributes...) })
}

// Attributes returns the attributes of a resource. Values keep their types.
func Attributes(resource *resource.Resource) []otelctx.Attribute {
	return converted(resource.Attributes())
}

func converted(attributes []attribute.KeyValue) []otelctx.Attribute {
	found := make([]otelctx.Attribute, 0, len(attributes))
	for _, attribute := range attributes {
		found = append(found, otelctx.Attribute{Key: string(attribute.Key), Value: convertedValue(attribute.Value)})
	}
	return found
}

// convertedValue converts a value. Bytes, lists of values and maps are newer than the oldest OpenTelemetry that this module supports.
func convertedValue(value attribute.Value) otelctx.Value {
	// The one that was not set is the first type, whose name differs by version.
	if value.Type() == 0 {
		return otelctx.Value{}
	}
	switch found := value.AsInterface().(type) {
	case bool:
		return otelctx.BoolValue(found)
	case int64:
		return otelctx.Int64Value(found)
	case float64:
		return otelctx.Float64Value(found)
	case string:
		return otelctx.StringValue(found)
	case []byte:
		return otelctx.BytesValue(found)
	case []bool:
		return list(found, otelctx.BoolValue)
	case []int64:
		return list(found, otelctx.Int64Value)
	case []float64:
		return list(found, otelctx.Float64Value)
	case []string:
		return list(found, otelctx.StringValue)
	case []attribute.Value:
		return list(found, convertedValue)
	case []attribute.KeyValue:
		return otelctx.MapValue(converted(found)...)
	}
	// A type that a later OpenTelemetry has: as text.
	return otelctx.StringValue(value.Emit())
}

func list[T any](items []T, convert func(T) otelctx.Value) otelctx.Value {
	values := make([]otelctx.Value, 0, len(items))
	for _, item := range items {
		values = append(values, convert(item))
	}
	return otelctx.ArrayValue(values...)
}
