// A service with a few threads that publishes what each works on: `./shop`, and beside it
// `otelctx dump $(pgrep shop)`.
//
//     c++ -std=c++17 shop.cpp $(pkg-config --cflags --libs otelctx) -pthread -o shop
#include <otelctx.hpp>

#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

// Works until the end of the standard input: as long as the program is inspected.
static void work() {
  while (std::getchar() != EOF) continue;
}

int main() {
  std::string why;
  if (!otelctx::is_exported(&why)) {
    std::fprintf(stderr, "thread contexts are not visible: %s\n", why.c_str());
  }
  auto published = otelctx::Process::detect().with_service_name("shop").publish();
  static const otelctx::Key route("http.route");

  std::vector<std::thread> threads;
  for (const char *path : {"/cart", "/checkout", "/items/{id}"}) {
    const auto number = static_cast<uint8_t>(threads.size() + 1);
    threads.emplace_back([path, number]() {
      otelctx::Context context(otelctx::TraceId{0x4b, number}, otelctx::SpanId{0xf0, number},
                               OTELCTX_SAMPLED);
      context.append(route, path);
      auto scope = context.attach();
      work();
    });
  }
  std::puts("ready");
  std::fflush(stdout);
  for (auto &thread : threads) thread.join();
}
