/*
 * Calls functions that panic while an environment variable is set, and then without it. Prints how many
 * panicked. For a library that is built with the feature test-panic.
 */
#define _GNU_SOURCE
#include <otelctx.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUL OTELCTX_NUL_TERMINATED

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);    \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

static int panics;

/* A call that panics, and what it returns then. */
#define PANICS(condition)                                                      \
    do {                                                                       \
        panics++;                                                              \
        CHECK(condition);                                                      \
    } while (0)

static const uint8_t TRACE[16] = {1}, SPAN[8] = {2};

static void change(otelctx_process *process, void *data)
{
    otelctx_process_set_string(process, "job.name", data);
}

int main(void)
{
    otelctx_error error;
    otelctx_process *process = otelctx_process_new();
    otelctx_process_service_name(process, "panic");
    otelctx_published *published = otelctx_publish(process, &error);
    const otelctx_key *route = otelctx_key_get("http.route", &error);
    otelctx_context *record = otelctx_context_new(TRACE, SPAN, OTELCTX_SAMPLED);
    otelctx_shared *shared = otelctx_context_share(record);
    otelctx_scope scope, other;
    CHECK(published != NULL && route != NULL && shared != NULL);
    CHECK(otelctx_shared_attach(shared, &scope) == OTELCTX_OK);

    setenv("OTELCTX_TEST_PANIC", "1", 1);
    PANICS(otelctx_process_new() == NULL);
    PANICS(otelctx_process_detect(OTELCTX_DETECT_DEFAULT) == NULL);
    PANICS(otelctx_process_service_name(process, "other") == OTELCTX_INTERNAL);
    PANICS(otelctx_value_int(1) == NULL);
    PANICS(otelctx_publish(process, &error) == NULL);
    PANICS(otelctx_replace(published, process, &error) == OTELCTX_INTERNAL);
    PANICS(otelctx_modify(change, "lost", &error) == OTELCTX_INTERNAL);
    PANICS(otelctx_key_get("user.id", &error) == NULL);
    PANICS(otelctx_key_index(route) == -1);
    PANICS(otelctx_context_new(TRACE, SPAN, 0) == NULL);
    PANICS(otelctx_context_append(record, route, "/", NUL) == OTELCTX_INTERNAL);
    PANICS(otelctx_context_remove(record, route) == OTELCTX_INTERNAL);
    PANICS(otelctx_context_copy(record, TRACE, SPAN, 0) == NULL);
    PANICS(otelctx_context_share(record) == NULL);
    PANICS(otelctx_context_free(record) == OTELCTX_INTERNAL);
    PANICS(otelctx_scope_append(&scope, route, "/", NUL) == OTELCTX_INTERNAL);
    PANICS(otelctx_append_current(route, "/", NUL) == OTELCTX_INTERNAL);
    PANICS(otelctx_thread_set(TRACE, SPAN, 0, NULL, 0) == OTELCTX_INTERNAL);
    PANICS(otelctx_visible_to_readers() == NULL);
    PANICS(otelctx_swap_current(NULL) == NULL);
    PANICS(otelctx_shared_attach(shared, &other) == OTELCTX_INTERNAL);
    PANICS(otelctx_scope_detach(&scope) == OTELCTX_INTERNAL);
    unsetenv("OTELCTX_TEST_PANIC");

    /* Nothing has changed, and all of it works. */
    otelctx_decoded *context = otelctx_visible_to_readers();
    CHECK(memcmp(otelctx_decoded_trace_id(context), TRACE, sizeof TRACE) == 0);
    CHECK(otelctx_decoded_attributes(context) == 0);
    otelctx_decoded_free(context);
    CHECK(otelctx_scope_detach(&other) == OTELCTX_NOT_ATTACHED);
    CHECK(otelctx_scope_detach(&scope) == OTELCTX_OK);
    CHECK(otelctx_context_append(record, route, "/", NUL) == OTELCTX_OK);
    CHECK(otelctx_context_attach(record) == OTELCTX_OK);
    CHECK(otelctx_context_free(record) == OTELCTX_OK);
    otelctx_shared_release(shared);
    CHECK(otelctx_modify(change, "kept", &error) == OTELCTX_OK);
    CHECK(otelctx_replace(published, process, &error) == OTELCTX_OK);
    otelctx_process_free(process);
    CHECK(otelctx_unpublish(published, &error) == OTELCTX_OK);
    printf("%d panics\n", panics);
    return 0;
}
