// A library that enters contexts itself, as event loops in C do.
#include <Python.h>

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
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "native_library", NULL, 0, methods};

PyMODINIT_FUNC PyInit_native_library(void) { return PyModule_Create(&definition); }
