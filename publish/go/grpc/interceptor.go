// Package otelctxgrpc sets profiler labels while handlers of gRPC run: the method, and the IDs of the call's span.
//
//	grpc.NewServer(
//		grpc.StatsHandler(otelgrpc.NewServerHandler()),
//		grpc.ChainUnaryInterceptor(otelctxgrpc.UnaryServerInterceptor(otelctxgrpc.WithSpan(otelctxotel.SpanIDs))),
//		grpc.ChainStreamInterceptor(otelctxgrpc.StreamServerInterceptor(otelctxgrpc.WithSpan(otelctxotel.SpanIDs))),
//	)
//
// The span must be in the call's context: that of a stats handler, or of an interceptor before this one.
package otelctxgrpc

import (
	"context"
	"strings"

	"google.golang.org/grpc"

	otelctx "repository.invalid/publish/go"
)

// Names of labels, as in OpenTelemetry's semantic conventions.
const (
	// MethodLabel has the method with its service: "shop.Cart/Add".
	MethodLabel = "rpc.method"
	SystemLabel = "rpc.system.name"
)

// Option configures the interceptors.
type Option func(*interceptor)

// WithSpan sets how the span of a call is found: for OpenTelemetry, SpanIDs of the module publish/go/otel. Without it, the labels
// have no IDs.
func WithSpan(ids func(context.Context) (otelctx.TraceID, otelctx.SpanID)) Option {
	return func(interceptor *interceptor) { interceptor.ids = ids }
}

type interceptor struct {
	ids func(context.Context) (otelctx.TraceID, otelctx.SpanID)
}

func newInterceptor(options []Option) *interceptor {
	interceptor := new(interceptor)
	for _, option := range options {
		option(interceptor)
	}
	return interceptor
}

// attach sets the labels of a call. Only methods that the server has reach an interceptor, so that labels have few values; clients
// choose them only where grpc.UnknownServiceHandler is used.
func (i *interceptor) attach(ctx context.Context, method string) (context.Context, otelctx.Attached) {
	var trace otelctx.TraceID
	var span otelctx.SpanID
	if i.ids != nil {
		trace, span = i.ids(ctx)
	}
	return otelctx.Attach(ctx, trace, span, MethodLabel, strings.TrimPrefix(method, "/"), SystemLabel, "grpc")
}

// UnaryServerInterceptor returns an interceptor that sets labels while a unary handler runs, and restores the earlier ones.
func UnaryServerInterceptor(options ...Option) grpc.UnaryServerInterceptor {
	interceptor := newInterceptor(options)
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		ctx, attached := interceptor.attach(ctx, info.FullMethod)
		defer attached.Detach()
		return handler(ctx, request)
	}
}

// StreamServerInterceptor returns an interceptor that sets labels while a streaming handler runs, and restores the earlier ones.
func StreamServerInterceptor(options ...Option) grpc.StreamServerInterceptor {
	interceptor := newInterceptor(options)
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx, attached := interceptor.attach(stream.Context(), info.FullMethod)
		defer attached.Detach()
		return handler(server, &labelled{stream, ctx})
	}
}

// labelled is a stream whose context has the labels.
type labelled struct {
	grpc.ServerStream
	ctx context.Context
}

func (l *labelled) Context() context.Context { return l.ctx }
