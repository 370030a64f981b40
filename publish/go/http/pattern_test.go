//go:build go1.23

// As in programs whose go.mod says 1.22 or later.
//go:debug httpmuxgo121=0

package otelctxhttp

import (
	"net/http"
	"net/http/httptest"
	"runtime/pprof"
	"testing"
)

func TestAHandlerInAMuxKnowsItsPattern(t *testing.T) {
	var route string
	mux := http.NewServeMux()
	mux.Handle("GET /items/{id}", Handler(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		route, _ = pprof.Label(request.Context(), RouteLabel)
		if request.PathValue("id") != "7" {
			t.Error("the request has lost its values")
		}
	})))
	for _, handler := range []http.Handler{mux, Handler(mux)} {
		route = ""
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/items/7", nil))
		if route != "/items/{id}" {
			t.Error(route)
		}
	}
}
