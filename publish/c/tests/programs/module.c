/*
 * A library for a language runtime to load: publishes through the shared library, or with -DRUST through
 * a Rust library that has a copy of otelctx of its own.
 */
#include <stdio.h>
#include <stdlib.h>

#ifdef RUST
extern int execute(const char *command, size_t length);

static int command(const char *verb, const char *service)
{
    char text[200];
    return execute(text, (size_t)snprintf(text, sizeof text, "%s\t%s", verb, service));
}

/* Publishes a context of this service; returns 0 for success. */
int publish_as(const char *service)
{
    /* It has published none, or another publisher has taken over. */
    const int not_published = 2;
    int result = command("modify", service);
    return result == not_published ? command("publish", service) : result;
}
#else
#include <otelctx.h>

static void rename_service(otelctx_process *process, void *service)
{
    otelctx_process_service_name(process, service);
}

/* Publishes a context of this service; returns the code. */
int publish_as(const char *service)
{
    otelctx_error error;
    otelctx_process *process = otelctx_process_new();
    otelctx_process_service_name(process, service);
    static otelctx_published *published;
    if (published != NULL && otelctx_replace(published, process, &error) == OTELCTX_OK) {
        otelctx_process_free(process);
        return OTELCTX_OK;
    }
    published = otelctx_publish(process, &error);
    otelctx_process_free(process);
    /* Another file of this kind may have published. */
    if (error.code == OTELCTX_ALREADY_PUBLISHED)
        return otelctx_modify(rename_service, (void *)service, &error);
    return error.code;
}
#endif

#ifdef NODE
/* Node.js calls this when it loads the file. */
void *napi_register_module_v1(void *environment, void *exports)
{
    (void)environment;
    if (publish_as(getenv("MIX_SERVICE")) != 0)
        abort();
    return exports;
}
#endif
