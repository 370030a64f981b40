package otelctx

import (
	"net/url"
	"strings"
	"unicode/utf8"
)

// The environment variables that describe a service (OpenTelemetry specification, "Resource SDK" and "General SDK
// Configuration").
const (
	serviceNameVariable = "OTEL_SERVICE_NAME"
	resourceVariable    = "OTEL_RESOURCE_ATTRIBUTES"
	// maxPairs is the number of pairs that readers take from the second one.
	maxPairs = 4096
)

// resourceOf returns the attributes that the values of the two variables describe, each name once. An empty value counts as
// unset. As the specification requires, a malformed list is ignored as a whole.
func resourceOf(name, pairs string) ([]Attribute, error) {
	name = strings.ToValidUTF8(name, "\uFFFD")
	var named, resource []Attribute
	if name != "" {
		named = []Attribute{String(serviceName, name)}
	}
	for _, pair := range strings.Split(pairs, ",") {
		pair = trim(pair)
		if pair == "" {
			continue
		}
		key, value, isPair := strings.Cut(pair, "=")
		key, isKey := percentDecode(key)
		value, isValue := percentDecode(value)
		if !isPair || !isKey || !isValue || key == "" || len(resource) == maxPairs {
			return named, &MalformedVariableError{}
		}
		resource = append(resource, String(key, value))
	}
	// The last of several pairs with a name counts, as in the SDKs; OTEL_SERVICE_NAME before all.
	return set(set(named, resource), named), nil
}

// percentDecode returns false if the encoding is malformed or the result is not UTF-8.
func percentDecode(text string) (string, bool) {
	decoded, err := url.PathUnescape(trim(text))
	return decoded, err == nil && utf8.ValidString(decoded)
}

// trim removes ASCII's white space.
func trim(text string) string { return strings.Trim(text, " \t\n\f\r") }
