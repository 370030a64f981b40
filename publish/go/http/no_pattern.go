//go:build !go1.23

package otelctxhttp

import "net/http"

// Requests do not know the pattern that they match.
func matchedPattern(*http.Request) string { return "" }
