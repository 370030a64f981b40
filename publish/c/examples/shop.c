/*
 * A service that publishes what it works on: `./shop`, and beside it `otelctx dump $(pgrep shop)`.
 *
 *     cc shop.c $(pkg-config --cflags --libs otelctx) -pthread -o shop
 */
#include <otelctx.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const otelctx_key *route;

static const uint8_t TRACE_ID[16] = {0x4b, 0xf9, 0x2f, 0x35, 0x77, 0xb3, 0x4d, 0xa6,
                                     0xa3, 0xce, 0x92, 0x9d, 0x0e, 0x0e, 0x47, 0x36};
static const uint8_t SPAN_ID[8] = {0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7};

/* Waits for the end of the standard input: as long as the program is inspected. */
static void work(void)
{
    char byte;
    while (read(0, &byte, 1) > 0)
        continue;
}

/* Continues a request on another thread. */
static void *background(void *shared)
{
    otelctx_scope scope;
    otelctx_shared_attach(shared, &scope);
    otelctx_scope_append(&scope, route, "/cart/background", OTELCTX_NUL_TERMINATED);
    work();
    otelctx_scope_detach(&scope);
    return NULL;
}

int main(void)
{
    otelctx_error error;
    if (otelctx_is_exported(&error) != OTELCTX_OK)
        fprintf(stderr, "thread contexts are not visible: %s\n", error.message);

    otelctx_process *process = otelctx_process_detect(OTELCTX_DETECT_DEFAULT);
    otelctx_process_service_name(process, "shop");
    otelctx_process_set_int(process, "shop.shelves", 12);
    otelctx_published *published = otelctx_publish(process, &error);
    otelctx_process_free(process);
    if (published == NULL)
        fprintf(stderr, "no process context: %s\n", error.message);
    route = otelctx_key_get("http.route", &error);

    otelctx_context *context = otelctx_context_new(TRACE_ID, SPAN_ID, OTELCTX_SAMPLED);
    otelctx_context_append(context, route, "/cart", OTELCTX_NUL_TERMINATED);
    otelctx_context_attach(context);
    otelctx_shared *shared = otelctx_context_share(context);
    pthread_t thread;
    pthread_create(&thread, NULL, background, shared);

    puts("ready");
    fflush(stdout);
    work();

    pthread_join(thread, NULL);
    otelctx_shared_release(shared);
    otelctx_context_free(context);
    otelctx_unpublish(published, NULL);
    return 0;
}
