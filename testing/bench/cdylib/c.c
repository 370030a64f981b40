/* A library with the first work of this project's side in C, through libotelctx.so, for a C program
 * to load. */
#include <otelctx.h>

#include <stdlib.h>

static const uint8_t TRACE_ID[16] = {1, 2, 3}, SPAN_ID[8] = {4, 5};

void bench_set_up(void)
{
    otelctx_process *process = otelctx_process_new();
    otelctx_process_service_name(process, "bench");
    if (otelctx_publish(process, NULL) == NULL)
        abort();
    otelctx_process_free(process);
}

void bench_run(size_t work, uint64_t count)
{
    (void)work;
    otelctx_context *context = otelctx_context_new(TRACE_ID, SPAN_ID, OTELCTX_SAMPLED);
    /* Once; in a program, as here in the loop, nothing is left to do about it. */
    if (otelctx_context_attach(context) != OTELCTX_OK || otelctx_context_detach(context) != OTELCTX_OK)
        abort();
    for (uint64_t i = 0; i < count; i++) {
        otelctx_context_attach(context);
        otelctx_context_detach(context);
    }
    otelctx_context_free(context);
}
