/*
 * mix LIBRARY: this library, and a Rust library that has a copy of otelctx of its own, as commands
 * say: "c publish SERVICE", "c update SERVICE", "c attach KEY VALUE", or "rust ..." for the other
 * one. Answers "result CODE" and "done".
 */
#include <otelctx.h>

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static otelctx_published *published;

static int publish(const char *service, otelctx_result (*how)(otelctx_process *, otelctx_error *))
{
    otelctx_error error;
    otelctx_process *process = otelctx_process_new();
    otelctx_process_service_name(process, service);
    otelctx_result result = how(process, &error);
    otelctx_process_free(process);
    return result;
}

static otelctx_result publish_again(otelctx_process *process, otelctx_error *error)
{
    otelctx_published *again = otelctx_publish(process, error);
    /* Has no effect on the new one. */
    otelctx_unpublish(published, NULL);
    published = again;
    return error->code;
}

static otelctx_result instead(otelctx_process *process, otelctx_error *error)
{
    return otelctx_replace(published, process, error);
}

static int attach(const char *name, const char *value)
{
    static const uint8_t trace_id[16] = {1}, span_id[8] = {2};
    const otelctx_attribute attribute = {otelctx_key_get(name, NULL), value, strlen(value)};
    return otelctx_thread_set(trace_id, span_id, OTELCTX_SAMPLED, &attribute, 1);
}

int main(int argc, char **argv)
{
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library == NULL)
        return 1;
    int (*rust)(const char *, size_t) = (int (*)(const char *, size_t))dlsym(library, "execute");
    char line[200], what[50], first[50], second[50];
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = 0;
        int result = -1;
        if (sscanf(line, "c publish %49s", first) == 1)
            result = publish(first, publish_again);
        else if (sscanf(line, "c update %49s", first) == 1)
            result = publish(first, instead);
        else if (sscanf(line, "c attach %49s %49s", first, second) == 2)
            result = attach(first, second);
        else if (sscanf(line, "rust %49s", what) == 1) {
            for (char *space = line + 5; (space = strchr(space, ' ')) != NULL;)
                *space = '\t';
            result = rust(line + 5, strlen(line + 5));
        }
        printf("result %d\ndone\n", result);
        fflush(stdout);
    }
    return 0;
}
