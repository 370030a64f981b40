//! Another process seen from outside: memory, mappings, ELF modules, thread-local variables, threads.
