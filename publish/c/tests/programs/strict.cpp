// The wrapper in code with strict warnings, with and without exceptions: `strict` changes a context, and prints what
// is published; `strict fail` fails to set up.
#include <otelctx.hpp>

#include <cstdio>

static int fail() {
  otelctx::Key without_name("");
  return without_name.index() ? 1 : 0;
}

int main(int count, char **) {
  if (count > 1) {
#ifdef __cpp_exceptions
    try {
      return fail();
    } catch (const otelctx::Error &error) {
      std::fprintf(stderr, "thrown: %s\n", error.what());
      return 0;
    }
#else
    return fail();
#endif
  }
  auto published = otelctx::Process().with_service_name("strict").publish();
  otelctx::modify([](otelctx::Process &context) {
    context.with_attribute("job.name", "nightly").with_attribute("job.size", sizeof(int));
  });
  std::puts("ready");
  std::fflush(stdout);
  while (std::getchar() != EOF) continue;
}
