// A shop: threads that serve requests, and publish which trace and which route each is working on.
// `./shop`, and beside it `otelctx top --name shop`. It ends with its standard input.

#include <otelctx.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using std::chrono::microseconds;
using std::chrono::steady_clock;

// Keeps the CPU busy.
[[gnu::noinline]] uint64_t compute(microseconds time, uint64_t value) {
  const auto end = steady_clock::now() + time;
  while (steady_clock::now() < end) {
    for (int i = 0; i < 1000; ++i) value = value * 6364136223846793005u + 1;
    asm volatile("" : "+r"(value));
  }
  return value;
}

[[gnu::noinline]] uint64_t rank_products(uint64_t words) { return compute(microseconds(2000), words) % 100; }

[[gnu::noinline]] uint64_t price(uint64_t item) { return compute(microseconds(300), item) % 900; }

template <typename Id>
Id random_id(std::mt19937_64 &random) {
  Id id;
  for (size_t at = 0; at < id.size(); at += 8) {
    const uint64_t word = random();
    std::memcpy(id.data() + at, &word, 8);
  }
  return id;
}

void search(uint64_t number) { rank_products(number); }

// The items are loaded on another thread, which works on the same request.
void cart(const otelctx::Context &request, uint64_t number) {
  auto shared = request.share();
  auto loaded = std::async(std::launch::async, [shared = std::move(shared), number]() {
    auto scope = shared.attach();
    return compute(microseconds(200), number) % 5 + 1;
  });
  const uint64_t items = loaded.get();
  for (uint64_t item = 0; item < items; ++item) price(item);
}

void serve(const std::atomic<bool> &ends, unsigned seed) {
  static const otelctx::Key route("http.route");
  std::mt19937_64 random(seed);
  for (uint64_t number = 0; !ends; ++number) {
    // A tracer would generate these.
    otelctx::Context request(random_id<otelctx::TraceId>(random), random_id<otelctx::SpanId>(random),
                            OTELCTX_SAMPLED);
    const bool is_search = number % 3 == 0;
    request.append(route, is_search ? "/search/{words}" : "/cart/{id}");
    auto scope = request.attach();
    if (is_search) {
      search(number);
    } else {
      cart(request, number);
    }
  }
}

}  // namespace

int main() {
  auto published = otelctx::Process::detect().with_service_name("shop").publish();
  std::string why;
  if (!otelctx::is_exported(&why)) {
    std::fprintf(stderr, "thread contexts are not visible: %s\n", why.c_str());
    return 1;
  }
  std::atomic<bool> ends = false;
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 2; ++seed) {
    threads.emplace_back([&ends, seed]() { serve(ends, seed); });
  }
  std::puts("ready");
  std::fflush(stdout);
  while (std::getchar() != EOF) continue;
  ends = true;
  for (auto &thread : threads) thread.join();
}
