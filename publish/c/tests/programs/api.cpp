// The C++ wrapper: scopes, moves, exceptions. Prints "ok".
#include <otelctx.hpp>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#define CHECK(condition)                                                     \
  do {                                                                       \
    if (!(condition)) {                                                      \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);   \
      std::exit(1);                                                          \
    }                                                                        \
  } while (0)

static const otelctx::TraceId trace{1, 2, 3};
static const otelctx::TraceId other{9};
static const otelctx::SpanId span{4, 5};

static_assert(!std::is_copy_constructible_v<otelctx::Published>);
static_assert(!std::is_copy_constructible_v<otelctx::Context>);
static_assert(!std::is_copy_constructible_v<otelctx::Attached>);
static_assert(!std::is_copy_constructible_v<otelctx::Scope>);
static_assert(std::is_nothrow_move_constructible_v<otelctx::Context>);
static_assert(std::is_nothrow_move_constructible_v<otelctx::Attached>);
static_assert(std::is_nothrow_move_constructible_v<otelctx::Scope>);
static_assert(std::is_copy_constructible_v<otelctx::SharedContext>);

template <typename T, typename = void>
struct can_attach : std::false_type {};
template <typename T>
struct can_attach<T, std::void_t<decltype(std::declval<T>().attach())>> : std::true_type {};
// A temporary record is destroyed before its scope; a shared one lives as long as it is attached.
static_assert(can_attach<otelctx::Context &>::value && !can_attach<otelctx::Context>::value);
static_assert(can_attach<otelctx::SharedContext>::value);

static int first_byte() {
  const auto context = otelctx::DecodedContext::visible_to_readers();
  return context ? context->trace_id()[0] : -1;
}

int main() {
  std::string why;
  CHECK(otelctx::is_exported(&why) && why.empty());
  CHECK(!otelctx::has_other(&why) && why.empty());

  const std::vector<int> ports{80, 443};
  auto process = otelctx::Process::detect();
  process.with_service_name("cpp")
      .with_attribute("ports", otelctx::Value::array(ports))
      .with_attribute("nested", otelctx::Value::map().set("a", 1.5).set("b", true))
      .with_attribute("bytes", otelctx::Value::bytes("\0\1", 2))
      .with_attribute("signed", -7LL)
      .with_attribute("size", ports.size())
      .with_attribute("largest", uint64_t{INT64_MAX})
      .with_attribute("small", uint8_t{200})
      .with_attribute("float", 0.5f)
      .with_context_attribute("own", false)
      .with_schema_attribute("threadlocal.more", 2.5)
      .with_schema("tls_v1")
      .with_max_size(100000);
  CHECK(otelctx::version() == std::string("0.1.0"));
  CHECK(!process.malformed_environment());
  auto published = process.publish();
  try {
    (void)process.publish();
    CHECK(false);
  } catch (const otelctx::Error &error) {
    CHECK(error.code() == OTELCTX_ALREADY_PUBLISHED);
    CHECK(std::string(error.what()).find("otelctx_modify") != std::string::npos);
  }
  published.replace(process);
  otelctx::modify([](otelctx::Process &context) { context.with_attribute("job.name", "nightly"); });
  try {
    otelctx::modify([](otelctx::Process &context) {
      context.with_attribute("job.name", "lost");
      throw 7;
    });
    CHECK(false);
  } catch (int number) {
    CHECK(number == 7);
  }
  try {
    otelctx::Value invalid("\xff");
    CHECK(false);
  } catch (const otelctx::Error &error) {
    CHECK(error.code() == OTELCTX_INVALID_UTF8);
  }
  try {
    otelctx::Value too_large(uint64_t{INT64_MAX} + 1);
    CHECK(false);
  } catch (const otelctx::Error &error) {
    CHECK(error.code() == OTELCTX_INVALID_ARGUMENT);
  }
  published.republish_after_fork();

  static const otelctx::Key route("http.route");
  CHECK(route.index() == 0);
  try {
    otelctx::Key empty("");
    CHECK(false);
  } catch (const otelctx::Error &error) {
    CHECK(error.code() == OTELCTX_KEY_REFUSED);
  }

  otelctx::Context record(trace, span, OTELCTX_SAMPLED);
  CHECK(record.append(route, "/cart") == OTELCTX_OK);
  CHECK(record.append(route, std::string(300, 'x')) == OTELCTX_TRUNCATED && record.is_truncated());
  CHECK(record.shrink_to(7) == OTELCTX_OK && record.attributes_size() == 7);
  {
    auto scope = record.attach();
    CHECK(scope && first_byte() == 1);
    CHECK(otelctx::DecodedContext::visible_to_readers()->attribute("http.route") == "/cart");
    CHECK(!otelctx::DecodedContext::visible_to_readers()->attribute("absent"));
    using Attributes = std::vector<std::pair<std::string, std::string>>;
    CHECK(otelctx::DecodedContext::visible_to_readers()->attributes() == (Attributes{{"http.route", "/cart"}}));
    CHECK(otelctx::DecodedContext::visible_to_readers()->trace_id() == trace);
    CHECK(otelctx::DecodedContext::visible_to_readers()->span_id() == span);
    CHECK(otelctx::DecodedContext::visible_to_readers()->flags() == 1);
    auto again = record.attach();
    CHECK(!again);
    // The handle may move while the record is attached.
    otelctx::Context moved = std::move(record);
    CHECK(first_byte() == 1);
    auto child = moved.copy(other, span, 0);
    CHECK(child.remove(route) == OTELCTX_OK && child.attributes_size() == 0);
    auto inner = child.attach();
    CHECK(first_byte() == 9);
    CHECK(child.remove(route) == OTELCTX_ATTACHED);
    // In the wrong order.
    auto outer = std::move(scope);
    CHECK(!scope);
    outer.detach();
    CHECK(first_byte() == 9);
    inner.detach();
    CHECK(first_byte() == -1);
    record = std::move(moved);
  }
  try {
    auto scope = record.attach();
    throw 1;
  } catch (int) {
    CHECK(first_byte() == -1);
  }

  otelctx::SharedContext shared = record.share();
  CHECK(shared && shared.is_truncated());  // like the record, above
  CHECK(shared.trace_id() == trace && shared.span_id() == span && shared.flags() == 1);
  CHECK(shared.record()[1] == 2 && otelctx::SharedContext().record() == nullptr);
  CHECK(otelctx::SharedContext().trace_id() == otelctx::TraceId{});
  CHECK(otelctx::SharedContext().flags() == 0 && !otelctx::shared_current());
  std::thread([copy = shared]() {
    auto scope = copy.attach();
    CHECK(scope && first_byte() == 1);
    CHECK(scope.append(route, "/late") == OTELCTX_OK);
    CHECK(otelctx::DecodedContext::visible_to_readers()->attribute("http.route") == "/late");
    auto moved = std::move(scope);
    CHECK(!scope && scope.append(route, "/no") == OTELCTX_NOT_ATTACHED);
    CHECK(first_byte() == 1);
    moved = copy.copy(other, span, 0).share().attach();
    CHECK(first_byte() == 9);
  }).join();
  CHECK(first_byte() == -1);
  // On another thread, a scope is not attached, and its record says why.
  std::thread([&record]() {
    CHECK(!record.attach());
    CHECK(record.append(route, "/") == OTELCTX_WRONG_THREAD);
  }).join();
  auto previous = otelctx::swap_current(shared);
  CHECK(!previous && first_byte() == 1);
  CHECK(otelctx::append_current(route, "/added") == OTELCTX_OK);
  CHECK(otelctx::shared_current().get() == shared.get());
  previous = otelctx::swap_current({});
  CHECK(previous.get() == shared.get() && first_byte() == -1);

  const otelctx_attribute attribute{route.get(), "/x", 2};
  CHECK(otelctx::thread::set(other, span, 1, &attribute, 1) == OTELCTX_OK);
  CHECK(otelctx::DecodedContext::visible_to_readers()->attribute("http.route") == "/x");
  const size_t mark = otelctx::thread::attributes_size();
  CHECK(mark == 4 && otelctx::thread::append(route, "/y") == OTELCTX_OK);
  CHECK(otelctx::DecodedContext::visible_to_readers()->attribute("http.route") == "/y");
  otelctx::thread::shrink_to(mark);
  CHECK(otelctx::DecodedContext::visible_to_readers()->attribute("http.route") == "/x");
  CHECK(!otelctx::thread::is_truncated());
  CHECK(otelctx::thread::append(route, std::string(300, 'x')) == OTELCTX_TRUNCATED);
  CHECK(otelctx::thread::is_truncated());
  CHECK(*otelctx::thread::slot() == otelctx::thread::record() && otelctx::thread::record()[0] == 9);
  otelctx::thread::detach();
  CHECK(first_byte() == -1);
  try {
    otelctx::Context zero(otelctx::TraceId{}, span);
    CHECK(false);
  } catch (const otelctx::Error &error) {
    CHECK(error.code() == OTELCTX_ZERO_ID);
  }
  otelctx::Context without_ids;
  CHECK(without_ids.attach());

  std::puts("ready");
  std::fflush(stdout);
  while (std::getchar() != EOF) continue;
  CHECK(!otelctx::withdraw());
  published.unpublish();
}
