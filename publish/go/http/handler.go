// Package otelctxhttp sets profiler labels while handlers of net/http run: the route, the method, and the IDs of the request's
// span.
//
//	mux := http.NewServeMux()
//	mux.HandleFunc("GET /items/{id}", item)
//	http.ListenAndServe(":8080", otelctxhttp.Handler(mux, otelctxhttp.WithSpan(otelctxotel.SpanIDs)))
//
// The span must be in the request's context: within otelhttp's or another tracer's handler, not around it.
package otelctxhttp

import (
	"context"
	"net/http"
	"strings"

	otelctx "repository.invalid/publish/go"
)

// Names of labels, as in OpenTelemetry's semantic conventions.
const (
	RouteLabel  = "http.route"
	MethodLabel = "http.request.method"
)

// Option configures [Handler].
type Option func(*handler)

// WithSpan sets how the span of a request is found: for OpenTelemetry, SpanIDs of the module publish/go/otel. Without it, the
// labels have no IDs.
func WithSpan(ids func(context.Context) (otelctx.TraceID, otelctx.SpanID)) Option {
	return func(handler *handler) { handler.ids = ids }
}

// WithRoute sets how the route of a request is found, for routers other than [http.ServeMux]. If it returns "", the request has
// no label for its route.
func WithRoute(route func(*http.Request) string) Option {
	return func(handler *handler) { handler.route = route }
}

// Handler returns a handler that calls next with labels set, and restores the earlier ones.
//
// The route is known if next is a [http.ServeMux], whose patterns are then matched twice, or if the handler is in one (since Go
// 1.23). With other routers, use [WithRoute], or [SetRoute] in handlers.
func Handler(next http.Handler, options ...Option) http.Handler {
	handler := &handler{next: next}
	mux, _ := next.(*http.ServeMux)
	handler.route = func(request *http.Request) string { return routeOf(patternOf(mux, request)) }
	for _, option := range options {
		option(handler)
	}
	return handler
}

type handler struct {
	next  http.Handler
	ids   func(context.Context) (otelctx.TraceID, otelctx.SpanID)
	route func(*http.Request) string
}

func (h *handler) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	var trace otelctx.TraceID
	var span otelctx.SpanID
	if h.ids != nil {
		trace, span = h.ids(request.Context())
	}
	labels := [4]string{MethodLabel, methodOf(request.Method)}
	count := 2
	if route := h.route(request); route != "" {
		labels[2], labels[3] = RouteLabel, route
		count = 4
	}
	ctx, attached := otelctx.Attach(request.Context(), trace, span, labels[:count]...)
	defer attached.Detach()
	h.next.ServeHTTP(response, request.WithContext(ctx))
}

// SetRoute adds the route to the labels of a context and of the goroutine, where it becomes known only within [Handler]:
//
//	otelctxhttp.SetRoute(request.Context(), chi.RouteContext(request.Context()).RoutePattern())
func SetRoute(ctx context.Context, route string) context.Context {
	return otelctx.AddLabels(ctx, RouteLabel, route)
}

// patternOf returns the pattern of a mux that a request matches.
func patternOf(mux *http.ServeMux, request *http.Request) string {
	if mux == nil {
		return matchedPattern(request)
	}
	_, pattern := mux.Handler(request)
	return pattern
}

// routeOf returns the path of a pattern, which may start with a method and a host.
func routeOf(pattern string) string {
	if slash := strings.IndexByte(pattern, '/'); slash > 0 {
		return pattern[slash:]
	}
	return pattern
}

// methodOf returns a method, or what the semantic conventions say for one that is not known: a client can send any, and a label
// must have few values.
func methodOf(method string) string {
	switch method {
	case http.MethodConnect, http.MethodDelete, http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPatch,
		http.MethodPost, http.MethodPut, http.MethodTrace:
		return method
	case "":
		return http.MethodGet
	}
	return "_OTHER"
}
