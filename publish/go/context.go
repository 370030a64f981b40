package otelctx

import "runtime"

// ProcessContext has the attributes of the process's OpenTelemetry resource, and attributes of the process context itself.
// Methods return a changed copy.
//
// Setting an attribute again replaces it. Attributes that are set precede detected ones.
type ProcessContext struct {
	resource, attributes []Attribute
	randomInstanceID     bool
	// maxPayloadSize is 0 for the default.
	maxPayloadSize int
	isMalformed    bool
}

// With sets attributes of the resource.
func (c ProcessContext) With(attributes ...Attribute) ProcessContext {
	c.resource = set(c.resource, attributes)
	return c
}

// Resource returns a copy of the attributes of the resource. A random service.instance.id is not among them.
func (c ProcessContext) Resource() []Attribute {
	return append([]Attribute(nil), c.resource...)
}

// Without removes an attribute of the resource.
func (c ProcessContext) Without(key string) ProcessContext {
	var kept []Attribute
	for _, attribute := range c.resource {
		if attribute.Key != key {
			kept = append(kept, attribute)
		}
	}
	c.resource = kept
	return c
}

// WithServiceName sets service.name.
func (c ProcessContext) WithServiceName(name string) ProcessContext {
	return c.With(String(serviceName, name))
}

// WithContextAttributes sets attributes of the process context itself, which are not part of the resource. Names that start
// with "threadlocal." are reserved for this package.
func (c ProcessContext) WithContextAttributes(attributes ...Attribute) ProcessContext {
	c.attributes = set(c.attributes, attributes)
	return c
}

// WithMaxPayloadSize sets the maximum size of the encoded context, in bytes. The default is 65,536; readers may reject larger
// contexts.
func (c ProcessContext) WithMaxPayloadSize(size int) ProcessContext {
	c.maxPayloadSize = size
	return c
}

// MalformedVariable returns why OTEL_RESOURCE_ATTRIBUTES was ignored, if it was: a [*MalformedVariableError].
func (c ProcessContext) MalformedVariable() error {
	if c.isMalformed {
		return &MalformedVariableError{}
	}
	return nil
}

// encode checks and encodes a context.
func (c ProcessContext) encode() ([]byte, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	attributes := c.attributes
	// Other compilers keep labels elsewhere, or have none.
	if runtime.Compiler == "gc" {
		attributes = set(attributes, []Attribute{String(schemaVersion, schema)})
	}
	payload := encodePayload(c.resource, attributes)
	limit := c.maxPayloadSize
	if limit <= 0 {
		limit = defaultMaxPayloadSize
	}
	if len(payload) == 0 {
		return nil, ErrEmpty
	}
	if len(payload) > limit {
		return nil, &TooLargeError{len(payload), limit}
	}
	return payload, nil
}

// find returns the value of an attribute of the resource.
func (c ProcessContext) find(key string) (Value, bool) {
	for _, attribute := range c.resource {
		if attribute.Key == key {
			return attribute.Value, true
		}
	}
	return Value{}, false
}
