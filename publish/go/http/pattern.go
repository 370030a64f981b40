//go:build go1.23

package otelctxhttp

import "net/http"

func matchedPattern(request *http.Request) string { return request.Pattern }
