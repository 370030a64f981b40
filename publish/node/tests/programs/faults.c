/* Preloaded into Node.js: has the addon find another V8 than the one that is there. The environment variable FAULT says what is
 * wrong, and with which function:
 *
 *   missing NAME    it is not exported
 *   null NAME       it does nothing, and returns 0
 *   once NAME       it does its work once, and then nothing
 *   moved NAME      it does its work three times, and then nothing
 *   hash NAME       it returns another number
 *   elsewhere NAME  it returns a word that V8 does not have
 *   changing NAME   the same, from its fourth call on
 *   pipe            no pipe can be made
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uintptr_t (*function)(uintptr_t, uintptr_t, uintptr_t, uintptr_t);

static function real;
static int calls;

static uintptr_t null(void)
{
    return 0;
}

static uintptr_t once(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d)
{
    return calls++ < 1 ? real(a, b, c, d) : 0;
}

static uintptr_t moved(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d)
{
    return calls++ < 3 ? real(a, b, c, d) : 0;
}

static uintptr_t hash(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d)
{
    return real(a, b, c, d) ^ 1;
}

static uintptr_t elsewhere(void)
{
    /* A reference to an object. */
    static uintptr_t word = 1;
    word += 8;
    return (uintptr_t)&word;
}

static uintptr_t changing(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d)
{
    return calls++ < 3 ? real(a, b, c, d) : elsewhere();
}

static const struct {
    const char *fault;
    void *function;
} FAULTS[] = {
    {"missing ", NULL},          {"null ", null},           {"once ", once},         {"moved ", moved},
    {"hash ", hash},             {"elsewhere ", elsewhere}, {"changing ", changing},
};

void *dlsym(void *handle, const char *name)
{
    static void *(*next)(void *, const char *);
    if (!next)
        next = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!next)
        next = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    const char *wanted = getenv("FAULT");
    for (size_t i = 0; wanted && handle == RTLD_DEFAULT && i < sizeof FAULTS / sizeof *FAULTS; i++) {
        size_t length = strlen(FAULTS[i].fault);
        if (strncmp(wanted, FAULTS[i].fault, length) != 0 || strcmp(wanted + length, name) != 0)
            continue;
        real = (function)next(handle, name);
        return FAULTS[i].function;
    }
    return next(handle, name);
}

int pipe2(int ends[2], int flags)
{
    static int (*next)(int *, int);
    if (!next)
        next = (int (*)(int *, int))dlsym(RTLD_NEXT, "pipe2");
    const char *wanted = getenv("FAULT");
    if (!wanted || strcmp(wanted, "pipe") != 0)
        return next(ends, flags);
    errno = EMFILE;
    return -1;
}
