package tests

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime/pprof"
	"strconv"
	"strings"
	"testing"

	"github.com/DataDog/dd-trace-go/v2/ddtrace/ext"
	"github.com/DataDog/dd-trace-go/v2/ddtrace/tracer"
	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	otelctx "repository.invalid/publish/go"
	"repository.invalid/publish/go/internal/labelstest"
	otelctxotel "repository.invalid/publish/go/otel"
)

// Labels of dd-trace-go: its span, and the resource of its root span.
const (
	ddSpan     = "span id"
	ddEndpoint = "trace endpoint"
)

func startDatadog(t *testing.T) {
	t.Helper()
	t.Setenv("DD_TRACE_AGENT_URL", "unix:///nonexistent.socket")
	t.Setenv("DD_INSTRUMENTATION_TELEMETRY_ENABLED", "false")
	err := tracer.Start(tracer.WithProfilerCodeHotspots(true), tracer.WithProfilerEndpoints(true), tracer.WithLogger(silent{}),
		tracer.WithService("shop"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tracer.Stop)
}

type silent struct{}

func (silent) Log(string) {}

func decimal(number uint64) string { return strconv.FormatUint(number, 10) }

func TestDatadogsLabelsStayBesideOurs(t *testing.T) {
	startDatadog(t)
	provider := sdk.NewTracerProvider()
	labelstest.InGoroutine(func() {
		web := []tracer.StartSpanOption{tracer.SpanType(ext.SpanTypeWeb), tracer.ResourceName("GET /cart")}
		root, ctx := tracer.StartSpanFromContext(context.Background(), "request", web...)
		datadog := labels{ddSpan: decimal(root.Context().SpanID()), ddEndpoint: "GET /cart"}
		labelstest.Expect(t, "Datadog's span", datadog)

		ctx, span := provider.Tracer("").Start(ctx, "work")
		route := attribute.String("http.route", "/cart")
		otelctxotel.Do(ctx, func(ctx context.Context) {
			both := with(span, ddSpan, datadog[ddSpan], ddEndpoint, "GET /cart", "http.route", "/cart")
			labelstest.Expect(t, "both", both)

			child, childCtx := tracer.StartSpanFromContext(ctx, "child")
			labelstest.Expect(t, "Datadog's child in ours", with(span, ddSpan, decimal(child.Context().SpanID()), ddEndpoint, "GET /cart",
				"http.route", "/cart"))
			otelctxotel.Do(childCtx, func(context.Context) {}, route)
			child.Finish()
			labelstest.Expect(t, "after its child", both)

			// Their labels are not in the context that ours gets here; they are hidden, and come back.
			otelctxotel.Do(context.Background(), func(context.Context) {
				labelstest.Expect(t, "without their context", labels{"a": "b"})
			}, attribute.String("a", "b"))
			labelstest.Expect(t, "after that", both)
		}, route)
		labelstest.Expect(t, "after ours", datadog)
		span.End()
		root.Finish()
		labelstest.Expect(t, "after theirs", nil)
	})
}

func TestDatadogsLabelsStayBesideTheProcessors(t *testing.T) {
	startDatadog(t)
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(otelctxotel.NewSpanProcessor()))
	labelstest.InGoroutine(func() {
		root, ctx := tracer.StartSpanFromContext(context.Background(), "request")
		datadog := labels{ddSpan: decimal(root.Context().SpanID()), ddEndpoint: "request"}
		if _, isSet := pprof.Label(ctx, ddEndpoint); !isSet {
			delete(datadog, ddEndpoint)
		}
		ctx, span := provider.Tracer("").Start(ctx, "work")
		both := with(span)
		for key, value := range datadog {
			both[key] = value
		}
		labelstest.Expect(t, "both", both)
		_, inner := provider.Tracer("").Start(ctx, "inner")
		inner.End()
		labelstest.Expect(t, "after an inner span", both)
		span.End()
		labelstest.Expect(t, "after ours", datadog)
		root.Finish()
		labelstest.Expect(t, "after theirs", nil)
	})
}

// What dd-trace-go does by itself, and README.md says: a resource that is set later sets the labels of its own context.
func TestDatadogHidesOurLabelsWhenAResourceIsSetLater(t *testing.T) {
	startDatadog(t)
	labelstest.InGoroutine(func() {
		root, ctx := tracer.StartSpanFromContext(context.Background(), "request", tracer.SpanType(ext.SpanTypeWeb))
		otelctx.Do(ctx, otelctx.TraceID{1}, otelctx.SpanID{2}, func(context.Context) {
			root.SetTag(ext.ResourceName, "GET /late")
			labelstest.Expect(t, "a later resource", labels{ddSpan: decimal(root.Context().SpanID()), ddEndpoint: "GET /late"})
		})
		root.Finish()
	})
}

// Each in a process of its own: dd-trace-go publishes a process context, and removes it never.
func TestTwoPublishersOfProcessContexts(t *testing.T) {
	if order := os.Getenv("ORDER"); order != "" {
		publishBoth(t, order)
		return
	}
	for _, order := range []string{"datadog first", "otelctx first"} {
		command := exec.Command(os.Args[0], "-test.run=TestTwoPublishersOfProcessContexts", "-test.v")
		command.Env = append(os.Environ(), "ORDER="+order)
		output, err := command.CombinedOutput()
		if err != nil || !strings.Contains(string(output), "--- PASS") {
			t.Errorf("%s: %v: %s", order, err, output)
		}
	}
}

func publishBoth(t *testing.T, order string) {
	ours := otelctx.ProcessContext{}.WithServiceName("shop")
	if order == "datadog first" {
		startDatadog(t)
		var foreign *otelctx.ForeignError
		if err := otelctx.Publish(ours); !errors.As(err, &foreign) || contexts(t) != 1 {
			t.Errorf("%v; %d contexts", err, contexts(t))
		}
		return
	}
	if err := otelctx.Publish(ours); err != nil {
		t.Fatal(err)
	}
	startDatadog(t)
	if found := contexts(t); found != 2 {
		t.Errorf("%d contexts", found)
	}
}

// contexts returns the number of mappings with a process context.
func contexts(t *testing.T) int {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(maps), "OTEL_CTX")
}
