package otelctxgrpc

import (
	"context"
	"fmt"
	"net"
	"reflect"
	"runtime/pprof"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/test/bufconn"

	otelctx "repository.invalid/publish/go"
	"repository.invalid/publish/go/internal/labelstest"
)

type labels = map[string]string

// service says what labels its handlers have.
type service struct {
	*health.Server
	within chan labels
}

func (s *service) Check(ctx context.Context, request *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	s.observe(ctx)
	return s.Server.Check(ctx, request)
}

func (s *service) Watch(_ *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	s.observe(stream.Context())
	return stream.Send(new(healthpb.HealthCheckResponse))
}

// observe compares the labels of the goroutine with those of the context, too.
func (s *service) observe(ctx context.Context) {
	found, ofContext := labelstest.Current(), make(labels)
	pprof.ForLabels(ctx, func(key, value string) bool {
		ofContext[key] = value
		return true
	})
	if !reflect.DeepEqual(found, ofContext) {
		found["the context"] = fmt.Sprint(ofContext)
	}
	s.within <- found
}

func ids(context.Context) (otelctx.TraceID, otelctx.SpanID) {
	return otelctx.TraceID{1}, otelctx.SpanID{2}
}

func TestHandlersHaveTheirLabels(t *testing.T) {
	for name, case_ := range map[string]struct {
		options  []Option
		expected labels
	}{
		"without a span": {nil, labels{"rpc.system.name": "grpc"}},
		"with a span": {[]Option{WithSpan(ids)}, labels{
			"rpc.system.name": "grpc", "trace_id": "01000000000000000000000000000000", "span_id": "0200000000000000",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			within, after := make(chan labels, 1), make(chan labels, 1)
			unary := func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				defer func() { after <- labelstest.Current() }()
				return handler(ctx, request)
			}
			streaming := func(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
				defer func() { after <- labelstest.Current() }()
				return handler(server, stream)
			}
			server := grpc.NewServer(
				grpc.ChainUnaryInterceptor(unary, UnaryServerInterceptor(case_.options...)),
				grpc.ChainStreamInterceptor(streaming, StreamServerInterceptor(case_.options...)))
			healthpb.RegisterHealthServer(server, &service{health.NewServer(), within})
			listener := bufconn.Listen(1 << 16)
			go server.Serve(listener)
			defer server.Stop()
			dial := func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }
			connection, err := grpc.NewClient("passthrough:///test", grpc.WithContextDialer(dial),
				grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer connection.Close()
			client := healthpb.NewHealthClient(connection)
			expect := func(method string) {
				t.Helper()
				case_.expected["rpc.method"] = "grpc.health.v1.Health/" + method
				if found := <-within; !reflect.DeepEqual(found, case_.expected) {
					t.Errorf("within: %v", found)
				}
				if found := <-after; found != nil {
					t.Errorf("after: %v", found)
				}
			}
			if _, err := client.Check(context.Background(), new(healthpb.HealthCheckRequest)); err != nil {
				t.Fatal(err)
			}
			expect("Check")
			stream, err := client.Watch(context.Background(), new(healthpb.HealthCheckRequest))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
			expect("Watch")
		})
	}
}

func ExampleUnaryServerInterceptor() {
	grpc.NewServer(
		grpc.ChainUnaryInterceptor(UnaryServerInterceptor()),
		grpc.ChainStreamInterceptor(StreamServerInterceptor()))
}
