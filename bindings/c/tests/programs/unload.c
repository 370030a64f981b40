/* unload LIBRARY: a thread works while the program unloads the library that it has attached with. */
#include <dlfcn.h>
#include <otelctx.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void *library;
static sem_t attached, unloaded;

#define F(name) ((__typeof__(&name))dlsym(library, #name))

static void *work(void *unused)
{
    static const uint8_t trace_id[16] = {5}, span_id[8] = {6};
    otelctx_record *record = F(otelctx_record_new)(trace_id, span_id, OTELCTX_SAMPLED);
    F(otelctx_record_attach)(record);
    sem_post(&attached);
    sem_wait(&unloaded);
    /* The library frees the thread's records when it ends. */
    return unused;
}

int main(int argc, char **argv)
{
    library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library == NULL)
        return 1;
    otelctx_process *process = F(otelctx_process_new)();
    F(otelctx_process_service_name)(process, "unloaded");
    otelctx_published *published = F(otelctx_publish)(process, NULL);
    F(otelctx_republish_after_fork)(published, NULL);
    pthread_t thread;
    pthread_create(&thread, NULL, work, NULL);
    sem_wait(&attached);
    if (dlclose(library) != 0)
        return 1;
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF)
        continue;
    sem_post(&unloaded);
    pthread_join(thread, NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    int status = 1;
    waitpid(child, &status, 0);
    return status;
}
