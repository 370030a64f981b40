/*
 * A file for Node.js to load that runs a program in Python, in the same process and thread: the text of
 * MIX_PYTHON. The shared library of Python is MIX_LIBPYTHON.
 */
#include <dlfcn.h>
#include <stdlib.h>

/* Node.js calls this when it loads the file. */
void *napi_register_module_v1(void *environment, void *exports)
{
    (void)environment;
    /* Extension modules find Python's symbols in the global scope. */
    void *python = dlopen(getenv("MIX_LIBPYTHON"), RTLD_NOW | RTLD_GLOBAL);
    if (python == NULL)
        abort();
    int (*is_initialized)(void) = (int (*)(void))dlsym(python, "Py_IsInitialized");
    void (*initialize)(int) = (void (*)(int))dlsym(python, "Py_InitializeEx");
    int (*run)(const char *, void *) = (int (*)(const char *, void *))dlsym(python, "PyRun_SimpleStringFlags");
    if (!is_initialized())
        initialize(0);
    if (run(getenv("MIX_PYTHON"), NULL) != 0)
        abort();
    return exports;
}
