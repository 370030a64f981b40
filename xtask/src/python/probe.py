# Prints the version of CPython, whether it is free-threaded, and its path. Fails without pip.
import pip, sys, sysconfig

assert sys.implementation.name == "cpython"
flag = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else "-"
print(*sys.version_info[:2], flag, sys.executable)
