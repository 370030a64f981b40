// Shop is a service as docs/go.md and README.md show it: spans of OpenTelemetry, published for profilers.
package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log"
	"net/http"
	_ "net/http/pprof"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	otelctxhttp "repository.invalid/publish/go/http"
	otelctxotel "repository.invalid/publish/go/otel"
)

func main() {
	res, err := resource.New(context.Background(), resource.WithFromEnv(), resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.version", "1.2")))
	if err != nil {
		log.Fatal(err)
	}
	otel.SetTracerProvider(sdk.NewTracerProvider(sdk.WithResource(res)))
	if err := otelctxotel.Publish(res); err != nil {
		log.Print(err) // The service runs as it would without.
	}
	http.HandleFunc("GET /download/{file}", download)
	handler := otelctxhttp.Handler(http.DefaultServeMux, otelctxhttp.WithSpan(otelctxotel.SpanIDs))
	log.Fatal(http.ListenAndServe("127.0.0.1:8090", otelhttp.NewHandler(handler, "shop")))
}

// download hashes a file that takes long.
func download(response http.ResponseWriter, request *http.Request) {
	sum := sha256.Sum256([]byte(request.PathValue("file")))
	for round := 0; round < 2_000_000; round++ {
		sum = sha256.Sum256(sum[:])
	}
	fmt.Fprintf(response, "%x\n", sum)
}
