/* This library as one of the publishers of testing/fixtures/programs/publishers.c. */
#include <otelctx.h>
#include <stdio.h>

void publisher_publish(void);
void publisher_publish(void)
{
    otelctx_process *process = otelctx_process_new();
    otelctx_process_service_name(process, "own");
    const char *const names[] = {"http.route", "user"};
    for (int i = 0; i < 2; i++)
        otelctx_key_get(names[i], NULL);
    otelctx_error error;
    if (otelctx_publish(process, &error) == NULL)
        printf("refused %d\n", (int)error.code);
    fflush(stdout);
    otelctx_process_free(process);
}

/* Prints whether there is another process context. */
void publisher_search(void);
void publisher_search(void)
{
    otelctx_error error;
    otelctx_result found = otelctx_find_other(&error);
    printf("other %d %.47s\n", (int)found, error.message);
    fflush(stdout);
}

/* The value of each attribute is its name. */
void publisher_attach(void);
void publisher_attach(void)
{
    const uint8_t trace_id[16] = {1}, span_id[8] = {1};
    otelctx_thread_set(trace_id, span_id, OTELCTX_SAMPLED, NULL, 0);
    otelctx_thread_append(otelctx_key_get("http.route", NULL), "http.route", OTELCTX_NUL_TERMINATED);
    otelctx_thread_append(otelctx_key_get("user", NULL), "user", OTELCTX_NUL_TERMINATED);
}
