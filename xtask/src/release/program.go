package main

import (
	"context"
	"fmt"
	"net/http"

	"go.opentelemetry.io/otel/sdk/resource"
	"google.golang.org/grpc"

	otelctx "MODULE"
	otelctxgrpc "MODULE/grpc"
	otelctxhttp "MODULE/http"
	otelctxotel "MODULE/otel"
)

func main() {
	grpc.NewServer(grpc.UnaryInterceptor(otelctxgrpc.UnaryServerInterceptor(otelctxgrpc.WithSpan(otelctxotel.SpanIDs))))
	otelctxhttp.Handler(http.NewServeMux())
	if err := otelctxotel.Publish(resource.Empty()); err != nil {
		fmt.Println(err)
		return
	}
	otelctx.Do(context.Background(), otelctx.TraceID{1}, otelctx.SpanID{2}, func(context.Context) { fmt.Println("published") })
}
