package tests

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/test/bufconn"

	otelctx "repository.invalid/publish/go"
	otelctxgrpc "repository.invalid/publish/go/grpc"
	otelctxhttp "repository.invalid/publish/go/http"
	"repository.invalid/publish/go/internal/labelstest"
	otelctxotel "repository.invalid/publish/go/otel"
)

func TestAHandlerInOtelhttpHasItsSpan(t *testing.T) {
	var within, expected labels
	mux := http.NewServeMux()
	mux.HandleFunc("GET /items/{id}", func(_ http.ResponseWriter, request *http.Request) {
		within = labelstest.Current()
		expected = with(trace.SpanFromContext(request.Context()), "http.route", "/items/{id}", "http.request.method", "GET")
	})
	handler := otelctxhttp.Handler(mux, otelctxhttp.WithSpan(otelctxotel.SpanIDs))
	server := httptest.NewServer(otelhttp.NewHandler(handler, "shop", otelhttp.WithTracerProvider(sdk.NewTracerProvider())))
	defer server.Close()
	response, err := http.Get(server.URL + "/items/7")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if !reflect.DeepEqual(within, expected) || within["trace_id"] == "00000000000000000000000000000000" {
		t.Errorf("%v, not %v", within, expected)
	}
}

// service says what labels its handler has, and what they should be.
type service struct {
	*health.Server
	within, expected labels
}

func (s *service) Check(ctx context.Context, request *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	s.within = labelstest.Current()
	s.expected = with(trace.SpanFromContext(ctx), "rpc.method", "grpc.health.v1.Health/Check", "rpc.system.name", "grpc")
	return s.Server.Check(ctx, request)
}

func TestAHandlerInOtelgrpcHasItsSpan(t *testing.T) {
	server := grpc.NewServer(
		grpc.StatsHandler(otelgrpc.NewServerHandler(otelgrpc.WithTracerProvider(sdk.NewTracerProvider()))),
		grpc.ChainUnaryInterceptor(otelctxgrpc.UnaryServerInterceptor(otelctxgrpc.WithSpan(otelctxotel.SpanIDs))))
	service := &service{Server: health.NewServer()}
	healthpb.RegisterHealthServer(server, service)
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
	if _, err := healthpb.NewHealthClient(connection).Check(context.Background(), new(healthpb.HealthCheckRequest)); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(service.within, service.expected) || service.within["trace_id"] == "00000000000000000000000000000000" {
		t.Errorf("%v, not %v", service.within, service.expected)
	}
}

// Types that are newer than the oldest OpenTelemetry that the module supports.
func TestValuesOfNewTypesKeepTheirTypes(t *testing.T) {
	found := otelctxotel.Attributes(resource.NewSchemaless(
		attribute.ByteSlice("a", []byte{0xff, 0}),
		attribute.KeyValue{Key: "b", Value: attribute.SliceValue(attribute.StringValue("x"), attribute.IntValue(1))},
		attribute.KeyValue{Key: "c", Value: attribute.MapValue(attribute.Bool("d", true))},
	))
	expected := []otelctx.Attribute{
		otelctx.Bytes("a", []byte{0xff, 0}),
		otelctx.Array("b", otelctx.StringValue("x"), otelctx.IntValue(1)),
		otelctx.Map("c", otelctx.Bool("d", true)),
	}
	if !reflect.DeepEqual(found, expected) {
		t.Errorf("%+v\nnot %+v", found, expected)
	}
}

func TestTheProcessorWorksWithTheNewestSDK(t *testing.T) {
	tracer := sdk.NewTracerProvider(sdk.WithSpanProcessor(otelctxotel.NewSpanProcessor("http.route"))).Tracer("")
	labelstest.InGoroutine(func() {
		ctx, outer := tracer.Start(context.Background(), "outer", trace.WithAttributes(attribute.String("http.route", "/cart")))
		_, inner := tracer.Start(ctx, "inner")
		labelstest.Expect(t, "inner", with(inner, "http.route", "/cart"))
		inner.End()
		labelstest.Expect(t, "outer", with(outer, "http.route", "/cart"))
		outer.End()
		labelstest.Expect(t, "after", nil)
	})
}
