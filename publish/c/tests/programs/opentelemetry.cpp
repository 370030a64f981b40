// opentelemetry-cpp's API with the storage: what each attach and detach shows. Prints "ok".
#include <otelctx_opentelemetry.hpp>

#include <opentelemetry/baggage/baggage.h>
#include <opentelemetry/trace/default_span.h>
#include <opentelemetry/trace/scope.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

namespace context = opentelemetry::context;
namespace nostd = opentelemetry::nostd;
namespace trace = opentelemetry::trace;

#define CHECK(condition)                                                     \
  do {                                                                       \
    if (!(condition)) {                                                      \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);   \
      std::exit(1);                                                          \
    }                                                                        \
  } while (0)

static nostd::shared_ptr<trace::Span> span_of(uint8_t number) {
  const uint8_t trace_id[16] = {7, number};
  const uint8_t span_id[8] = {number};
  return nostd::shared_ptr<trace::Span>(new trace::DefaultSpan(trace::SpanContext(
      trace::TraceId(trace_id), trace::SpanId(span_id), trace::TraceFlags(number), false)));
}

// The span that readers see, by the first byte of its ID; 0 for none.
static int shown() {
  const auto current = otelctx::DecodedContext::visible_to_readers();
  if (!current) return 0;
  CHECK(current->trace_id()[0] == 7 && current->trace_id()[1] == current->span_id()[0]);
  CHECK(current->flags() == current->span_id()[0]);
  return current->span_id()[0];
}

static std::string tenant() {
  return otelctx::DecodedContext::visible_to_readers()->attribute("tenant.id").value_or("none");
}

// A context's attributes are those of the spans in it, and of its request alone.
static void attributes() {
  const auto shown_route = [] {
    return otelctx::DecodedContext::visible_to_readers()->attribute("http.route").value_or("none");
  };
  const auto attach = [](const char *name, const char *value) {
    auto current = context::RuntimeContext::GetCurrent();
    return context::RuntimeContext::Attach(otelctx::with_attribute(current, name, value));
  };
  trace::Scope outer(span_of(1));
  {
    auto route = attach("http.route", "/cart");
    CHECK(shown() == 1 && shown_route() == "/cart" && tenant() == "none");
    {
      trace::Scope inner(span_of(2));
      CHECK(shown() == 2 && shown_route() == "/cart");
      auto other = attach("tenant.id", "acme");
      CHECK(shown() == 2 && shown_route() == "/cart" && tenant() == "acme");
      auto again = attach("http.route", "/cart/{id}");
      CHECK(shown() == 2 && shown_route() == "/cart/{id}" && tenant() == "acme");
      auto unnamed = attach("unnamed", "x");
      CHECK(otelctx::DecodedContext::visible_to_readers()->attributes().size() == 2);
      // Before the baggage, which other processes send.
      auto baggage = opentelemetry::baggage::Baggage::GetDefault()->Set("tenant.id", "sent");
      auto current = context::RuntimeContext::GetCurrent();
      auto sent =
          context::RuntimeContext::Attach(opentelemetry::baggage::SetBaggage(current, baggage));
      CHECK(tenant() == "acme");
      CHECK(opentelemetry::baggage::GetBaggage(context::RuntimeContext::GetCurrent())->ToHeader() ==
            "tenant.id=sent");
      auto captured = context::RuntimeContext::GetCurrent();
      std::thread([&captured, &shown_route]() {
        auto here = context::RuntimeContext::Attach(captured);
        CHECK(shown() == 2 && shown_route() == "/cart/{id}" && tenant() == "acme");
      }).join();
    }
    CHECK(shown() == 1 && shown_route() == "/cart" && tenant() == "none");
  }
  CHECK(shown() == 1 && shown_route() == "none");
}

int main() {
  auto published = otelctx::Process::detect().with_service_name("spans").publish();
  context::RuntimeContext::SetRuntimeContextStorage(otelctx::storage({"tenant.id", "http.route"}));
  static const otelctx::Key route("http.route");

  CHECK(shown() == 0);
  {
    trace::Scope outer(span_of(1));
    CHECK(shown() == 1 && tenant() == "none");
    CHECK(otelctx::append_current(route, "/cart") == OTELCTX_OK);
    {
      trace::Scope inner(span_of(2));
      CHECK(shown() == 2);
      // A context of another kind keeps the span.
      auto with_value =
          context::RuntimeContext::Attach(context::RuntimeContext::SetValue("key", true));
      CHECK(shown() == 2);
      auto baggage = opentelemetry::baggage::Baggage::GetDefault()->Set("tenant.id", "acme");
      auto current = context::RuntimeContext::GetCurrent();
      auto with_baggage =
          context::RuntimeContext::Attach(opentelemetry::baggage::SetBaggage(current, baggage));
      CHECK(shown() == 2 && tenant() == "acme");
    }
    CHECK(shown() == 1 && tenant() == "none");
    std::thread([]() {
      CHECK(shown() == 0);
      trace::Scope scope(span_of(3));
      CHECK(shown() == 3);
    }).join();
    CHECK(shown() == 1);
    // No context.
    auto root = context::RuntimeContext::Attach(context::Context());
    CHECK(shown() == 0);
  }
  CHECK(shown() == 0);
  attributes();
  CHECK(shown() == 0);

  // Detaching the first one detaches all above it.
  context::Context empty;
  auto first = context::RuntimeContext::Attach(trace::SetSpan(empty, span_of(1)));
  auto second = context::RuntimeContext::Attach(trace::SetSpan(empty, span_of(2)));
  auto third = context::RuntimeContext::Attach(trace::SetSpan(empty, span_of(3)));
  CHECK(shown() == 3);
  second.reset();
  CHECK(shown() == 1);
  // Its token means nothing any more.
  third.reset();
  CHECK(shown() == 1);
  first.reset();
  CHECK(shown() == 0);
  // An invalid span is none.
  trace::Scope invalid(
      nostd::shared_ptr<trace::Span>(new trace::DefaultSpan(trace::SpanContext::GetInvalid())));
  CHECK(shown() == 0);
  trace::Scope last(span_of(4));

  std::puts("ready");
  std::fflush(stdout);
  while (std::getchar() != EOF) continue;
}
