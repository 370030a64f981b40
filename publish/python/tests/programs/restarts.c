// Runs each argument in an interpreter of its own, one after the other.
void Py_Initialize(void);
int PyRun_SimpleString(const char *);
int Py_FinalizeEx(void);

int main(int count, char **arguments) {
    for (int each = 1; each < count; each++) {
        Py_Initialize();
        int failed = PyRun_SimpleString(arguments[each]);
        if (Py_FinalizeEx() || failed)
            return each;
    }
    return 0;
}
