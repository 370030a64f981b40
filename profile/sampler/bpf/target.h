/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The program's data about a process; shared with src/ebpf/abi.rs. */
#ifndef TARGET_H
#define TARGET_H

/* How to get from the thread pointer to the variable. */
enum storage {
    STORAGE_NONE = 0,
    STORAGE_STATIC = 1, /* at a fixed distance */
    STORAGE_GLIBC = 2,  /* in a block of glibc's dynamic thread vector */
    STORAGE_MUSL = 3,   /* in a block of musl's */
};

/* Definitions of the variable that are read in one process. */
#define MAX_PLACES 4

struct place {
    __u64 offset;     /* from the thread pointer, or in the module's block */
    __u64 module;     /* index in the thread's vector */
    __u64 generation; /* the least that the thread's vector must have seen; 0 for any */
    /* Where the dynamic linker notes what module the index belongs to, 0 if that is not known,
     * and what it noted when this was looked up: generation and link map. Any other words mean
     * that the module was closed. */
    __u64 slot;
    __u64 slot_words[2];
    __u32 storage;
    __u32 reserved;
};

struct target {
    __u32 serial;
    __u32 places; /* how many of the following count */
    __u32 steps;  /* enum step, a byte each: the first lowest, zeroes behind the last */
    __u32 reserved;
    struct place place[MAX_PLACES];
};

#endif
