// A library that enters contexts itself, as event loops in C do. NAME: that of the module.
#include <Python.h>

#define TEXT(name) #name
#define NAMED(name) TEXT(name)
#define JOIN(first, second) first##second
#define INIT(name) JOIN(PyInit_, name)

static PyObject *run(PyObject *module, PyObject *arguments) {
    PyObject *context, *function;
    if (!PyArg_ParseTuple(arguments, "OO", &context, &function) || PyContext_Enter(context))
        return NULL;
    PyObject *result = PyObject_CallObject(function, NULL);
    if (PyContext_Exit(context))
        Py_CLEAR(result);
    return result;
}

static PyMethodDef methods[] = {{"run", run, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, NAMED(NAME), NULL, 0, methods};

PyMODINIT_FUNC INIT(NAME)(void) { return PyModule_Create(&definition); }
