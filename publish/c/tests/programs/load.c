/* load LIBRARY...: loads the libraries, the first ones for all, and calls the last one's run(). */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    void *library = NULL;
    for (int i = 1; i < argc; i++) {
        library = dlopen(argv[i], RTLD_NOW | (i < argc - 1 ? RTLD_GLOBAL : RTLD_LOCAL));
        if (library == NULL) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
    }
    int (*run)(void) = (int (*)(void))dlsym(library, "run");
    return run == NULL ? 1 : run();
}
