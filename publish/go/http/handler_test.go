package otelctxhttp

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime/pprof"
	"strings"
	"testing"

	otelctx "repository.invalid/publish/go"
	"repository.invalid/publish/go/internal/labelstest"
)

type labels = map[string]string

type idsKey struct{}

func ids(ctx context.Context) (otelctx.TraceID, otelctx.SpanID) {
	if ctx.Value(idsKey{}) == nil {
		return otelctx.TraceID{}, otelctx.SpanID{}
	}
	return otelctx.TraceID{1}, otelctx.SpanID{2}
}

const traceDigits, spanDigits = "01000000000000000000000000000000", "0200000000000000"

// request serves a request on a server, and returns the labels within and after the handler.
func request(t *testing.T, method, path string, wrap func(http.Handler) http.Handler) (within, after labels) {
	t.Helper()
	mux := http.NewServeMux()
	work := func(http.ResponseWriter, *http.Request) { within = labelstest.Current() }
	mux.HandleFunc("/items/", work)
	handler := wrap(mux)
	server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		handler.ServeHTTP(response, request.WithContext(context.WithValue(request.Context(), idsKey{}, true)))
		after = labelstest.Current()
	}))
	defer server.Close()
	query, err := http.NewRequest(method, server.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := server.Client().Do(query)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	return within, after
}

func TestHandlersHaveTheirLabels(t *testing.T) {
	for name, case_ := range map[string]struct {
		method, path string
		options      []Option
		expected     labels
	}{
		"a mux": {"POST", "/items/7", nil, labels{"http.route": "/items/", "http.request.method": "POST"}},
		"a span": {"GET", "/items/7", []Option{WithSpan(ids)}, labels{
			"http.route": "/items/", "http.request.method": "GET", "trace_id": traceDigits, "span_id": spanDigits,
		}},
		"another router": {"GET", "/items/7", []Option{WithRoute(func(r *http.Request) string { return "of " + r.URL.Path })},
			labels{"http.route": "of /items/7", "http.request.method": "GET"}},
		"no route": {"GET", "/items/7", []Option{WithRoute(func(*http.Request) string { return "" })},
			labels{"http.request.method": "GET"}},
		"an unknown method": {"FIND", "/items/7", nil, labels{"http.route": "/items/", "http.request.method": "_OTHER"}},
	} {
		t.Run(name, func(t *testing.T) {
			wrap := func(mux http.Handler) http.Handler { return Handler(mux, case_.options...) }
			within, after := request(t, case_.method, case_.path, wrap)
			if !reflect.DeepEqual(within, case_.expected) || after != nil {
				t.Errorf("%v within, %v after", within, after)
			}
		})
	}
}

func TestARouteCanBecomeKnownLate(t *testing.T) {
	route := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
			SetRoute(request.Context(), "/late")
			next.ServeHTTP(response, request)
		})
	}
	within, after := request(t, "GET", "/items/7", func(mux http.Handler) http.Handler { return Handler(route(mux)) })
	if !reflect.DeepEqual(within, labels{"http.route": "/late", "http.request.method": "GET"}) || after != nil {
		t.Errorf("%v within, %v after", within, after)
	}
}

func TestAHandlerThatPanicsLeavesNoLabels(t *testing.T) {
	panics := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	func() {
		defer func() { recover() }()
		Handler(panics).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	}()
	if found := labelstest.Current(); found != nil {
		t.Error(found)
	}
}

func TestRoutesAreThePathsOfPatterns(t *testing.T) {
	for pattern, expected := range map[string]string{
		"/items/{id}": "/items/{id}", "GET /items/{id}": "/items/{id}", "example.com/": "/", "POST example.com/a/{b...}": "/a/{b...}",
		"/{$}": "/{$}", "": "",
	} {
		if found := routeOf(pattern); found != expected {
			t.Errorf("%q: %q, not %q", pattern, found, expected)
		}
	}
}

func ExampleHandler() {
	mux := http.NewServeMux()
	mux.HandleFunc("/items/", func(response http.ResponseWriter, request *http.Request) {
		route, _ := pprof.Label(request.Context(), "http.route")
		fmt.Fprint(response, route)
	})
	server := httptest.NewServer(Handler(mux))
	defer server.Close()
	response, err := http.Get(server.URL + "/items/7")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer response.Body.Close()
	var text strings.Builder
	response.Write(&text)
	fmt.Println(text.String()[strings.LastIndex(text.String(), "\n")+1:])
	// Output: /items/
}
