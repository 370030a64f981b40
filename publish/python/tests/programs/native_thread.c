// A library that calls a function several times in a thread of its own.
#include <pthread.h>

struct calls {
    void (*function)(int);
    int count;
};

static void *call(void *argument) {
    struct calls *calls = argument;
    for (int number = 0; number < calls->count; number++)
        calls->function(number);
    return 0;
}

int call_in_thread(void (*function)(int), int count) {
    struct calls calls = {function, count};
    pthread_t thread;
    int error = pthread_create(&thread, 0, call, &calls);
    return error ? error : pthread_join(thread, 0);
}
