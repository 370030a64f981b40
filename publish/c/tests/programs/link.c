/*
 * One thread with a context, for each way of linking: prints what otelctx_is_exported() says and
 * "ready", and waits. Without -DMAIN, a library that another program loads.
 */
#include <otelctx.h>

#include <stdio.h>
#include <unistd.h>

static const uint8_t TRACE_ID[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const uint8_t SPAN_ID[8] = {21, 22, 23, 24, 25, 26, 27, 28};

int run(void)
{
    /* First of all, as a program does at start-up, and again at the end. */
    otelctx_error error;
    otelctx_result first = otelctx_is_exported(&error);
    otelctx_process *process = otelctx_process_new();
    otelctx_process_service_name(process, "linked");
    otelctx_published *published = otelctx_publish(process, &error);
    otelctx_process_free(process);
    if (published == NULL) {
        printf("not published: %s\n", error.message);
        return 1;
    }
    const otelctx_key *key = otelctx_key_get("http.route", &error);
    otelctx_context *record = otelctx_context_new(TRACE_ID, SPAN_ID, OTELCTX_SAMPLED);
    otelctx_context_append(record, key, "/cart/\xc3\xa9", OTELCTX_NUL_TERMINATED);
    otelctx_context_attach(record);

    otelctx_result exported = otelctx_is_exported(&error);
    if (first != exported)
        printf("exported %d at first\n", first);
    printf("exported %d %s\n", exported, error.message);
    printf("ready\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0)
        continue;
    otelctx_context_free(record);
    return otelctx_unpublish(published, &error);
}

#ifdef MAIN
int main(void)
{
    return run();
}
#endif
