package otelctx

import "encoding/binary"

// Field numbers of opentelemetry.proto.processcontext.v1development.ProcessContext,
// opentelemetry.proto.resource.v1.Resource and opentelemetry.proto.common.v1.
const (
	contextResource    = 1
	contextAttributes  = 2
	resourceAttributes = 1
	keyValueKey        = 1
	keyValueValue      = 2
	anyString          = 1
	anyBool            = 2
	anyInt             = 3
	anyDouble          = 4
	anyArray           = 5
	anyMap             = 6
	anyBytes           = 7
	// ArrayValue.values and KeyValueList.values.
	listValues = 1
)

// Wire types of Protocol Buffers.
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireLength  = 2
)

// encodePayload returns ProcessContext { Resource resource = 1; repeated KeyValue attributes = 2; }. Empty fields are omitted,
// as usual in Protocol Buffers.
func encodePayload(resource, attributes []Attribute) []byte {
	var payload []byte
	if len(resource) > 0 {
		payload = putField(payload, contextResource, putAttributes(nil, resourceAttributes, resource))
	}
	return putAttributes(payload, contextAttributes, attributes)
}

func putKey(output []byte, field, wireType byte) []byte {
	return append(output, field<<3|wireType)
}

// putField writes a length-delimited field.
func putField[T string | []byte](output []byte, field byte, content T) []byte {
	output = putKey(output, field, wireLength)
	output = binary.AppendUvarint(output, uint64(len(content)))
	return append(output, content...)
}

// putAttributes writes each attribute as a field of type KeyValue.
func putAttributes(output []byte, field byte, attributes []Attribute) []byte {
	for _, attribute := range attributes {
		var pair []byte
		if attribute.Key != "" {
			pair = putField(pair, keyValueKey, attribute.Key)
		}
		pair = putField(pair, keyValueValue, attribute.Value.encode())
		output = putField(output, field, pair)
	}
	return output
}

// encode returns an AnyValue. Unlike elsewhere, false, 0 and empty are written: they differ from a value that was not set.
func (v Value) encode() []byte {
	switch v.kind {
	case KindString:
		return putField(nil, anyString, v.text)
	case KindBool:
		return append(putKey(nil, anyBool, wireVarint), byte(v.number))
	case KindInt64:
		return binary.AppendUvarint(putKey(nil, anyInt, wireVarint), v.number)
	case KindFloat64:
		return binary.LittleEndian.AppendUint64(putKey(nil, anyDouble, wireFixed64), v.number)
	case KindArray:
		var list []byte
		for _, item := range v.items {
			list = putField(list, listValues, item.encode())
		}
		return putField(nil, anyArray, list)
	case KindMap:
		return putField(nil, anyMap, putAttributes(nil, listValues, v.pairs))
	case KindBytes:
		return putField(nil, anyBytes, v.text)
	}
	return nil
}
