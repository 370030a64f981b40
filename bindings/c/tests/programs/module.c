/* A library for a language runtime to load: publishes through the shared library. */
#include <otelctx.h>

#include <stdlib.h>

/* Publishes a context of this service; returns the code. */
int publish_as(const char *service)
{
    otelctx_error error;
    otelctx_process *process = otelctx_process_new();
    otelctx_process_service_name(process, service);
    static otelctx_published *published;
    if (published != NULL && otelctx_update(published, process, &error) == OTELCTX_OK) {
        otelctx_process_free(process);
        return OTELCTX_OK;
    }
    published = otelctx_publish(process, &error);
    otelctx_process_free(process);
    return error.code;
}

#ifdef NODE
static void rename_service(otelctx_process *process, void *service)
{
    otelctx_process_service_name(process, service);
}

/* Node.js calls this when it loads the file. */
void *napi_register_module_v1(void *environment, void *exports)
{
    (void)environment;
    char *service = getenv("MIX_SERVICE");
    /* Another file of this kind may have published. */
    if (publish_as(service) == OTELCTX_ALREADY_PUBLISHED)
        otelctx_modify(rename_service, service, NULL);
    return exports;
}
#endif
