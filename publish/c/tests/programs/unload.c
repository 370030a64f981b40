/*
 * unload LIBRARY HOW: a thread works while the program unloads the library that it has attached with, by
 * a "record", a "scope", a "swap" or in its "own" record. When the thread has ended, prints whether the
 * library is still "loaded" after it is unloaded once more, or "gone". Then loads it again, and prints what
 * publishing results in.
 */
#include <dlfcn.h>
#include <otelctx.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *library;
static const char *how;
static sem_t attached, unloaded;

#define F(name) ((__typeof__(&name))dlsym(library, #name))

static const uint8_t trace_id[16] = {5}, span_id[8] = {6};

/* On a thread of its own: what a thread has of the library keeps it loaded. */
static void *share(void *unused)
{
    (void)unused;
    otelctx_context *record = F(otelctx_context_new)(trace_id, span_id, OTELCTX_SAMPLED);
    otelctx_shared *shared = F(otelctx_context_share)(record);
    F(otelctx_context_free)(record);
    return shared;
}

static void *work(void *shared)
{
    otelctx_scope scope;
    if (strcmp(how, "record") == 0)
        F(otelctx_context_attach)(F(otelctx_context_new)(trace_id, span_id, OTELCTX_SAMPLED));
    else if (strcmp(how, "scope") == 0)
        F(otelctx_shared_attach)(shared, &scope);
    else if (strcmp(how, "swap") == 0)
        F(otelctx_swap_current)(F(otelctx_shared_retain)(shared));
    else
        F(otelctx_thread_set)(trace_id, span_id, OTELCTX_SAMPLED, NULL, 0);
    F(otelctx_shared_release)(shared);
    sem_post(&attached);
    sem_wait(&unloaded);
    /* The library frees what the thread has of it when it ends. */
    return NULL;
}

static void *nothing(void *unused)
{
    return unused;
}

int main(int argc, char **argv)
{
    library = argc == 3 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library == NULL)
        return 1;
    how = argv[2];
    otelctx_process *process = F(otelctx_process_new)();
    F(otelctx_process_service_name)(process, "unloaded");
    otelctx_published *published = F(otelctx_publish)(process, NULL);
    F(otelctx_republish_after_fork)(published, NULL);
    pthread_t thread;
    void *shared = NULL;
    pthread_create(&thread, NULL, share, NULL);
    pthread_join(thread, &shared);
    pthread_create(&thread, NULL, work, shared);
    sem_wait(&attached);
    if (dlclose(library) != 0)
        return 1;
    puts("ready");
    fflush(stdout);
    char line[20];
    if (fgets(line, sizeof line, stdin) == NULL)
        return 1;
    sem_post(&unloaded);
    pthread_join(thread, NULL);
    /* Threads keep it, so the C library unloads it only now. */
    library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL || dlclose(library) != 0)
        return 1;
    const char *state = dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) == NULL ? "gone" : "loaded";
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    int status = 1;
    waitpid(child, &status, 0);
    pthread_create(&thread, NULL, nothing, NULL);
    pthread_join(thread, NULL);
    printf("%s\ndone\n", state);
    fflush(stdout);
    if (fgets(line, sizeof line, stdin) == NULL)
        return 1;
    library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return 1;
    otelctx_error error;
    process = F(otelctx_process_new)();
    F(otelctx_process_service_name)(process, "again");
    F(otelctx_publish)(process, &error);
    printf("published %d\ndone\n", error.code);
    fflush(stdout);
    while (getchar() != EOF)
        continue;
    return status;
}
