/* Loads the two libraries and has them work in turn: host OURS LIBDD WORKS ROUNDS ROUND_NS.
 * Prints, for each round, the index of the work and what a call took on each side, in
 * nanoseconds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef void (*run_function)(size_t work, uint64_t count);

static run_function load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    ((void (*)(void))dlsym(library, "bench_set_up"))();
    return (run_function)dlsym(library, "bench_run");
}

static double run(run_function side, size_t work, uint64_t count)
{
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    side(work, count);
    clock_gettime(CLOCK_MONOTONIC, &end);
    return ((end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec)) / (double)count;
}

static uint64_t count_for(run_function side, size_t work, double ns)
{
    run(side, work, 10000);
    double count = ns / run(side, work, 10000);
    return count < 1 ? 1 : (uint64_t)count;
}

int main(int argc, char **argv)
{
    if (argc != 6)
        return 2;
    run_function ours = load(argv[1]), libdd = load(argv[2]);
    size_t works = strtoul(argv[3], 0, 10), rounds = strtoul(argv[4], 0, 10);
    double ns = strtod(argv[5], 0);
    for (size_t work = 0; work < works; work++) {
        uint64_t ours_count = count_for(ours, work, ns);
        uint64_t libdd_count = count_for(libdd, work, ns);
        for (size_t round = 0; round < rounds; round++) {
            double ours_ns, libdd_ns;
            if (round % 2 == 0) {
                ours_ns = run(ours, work, ours_count);
                libdd_ns = run(libdd, work, libdd_count);
            } else {
                libdd_ns = run(libdd, work, libdd_count);
                ours_ns = run(ours, work, ours_count);
            }
            printf("%zu %f %f\n", work, ours_ns, libdd_ns);
        }
    }
    return 0;
}
