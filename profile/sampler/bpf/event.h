/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The program's events: one layout for all events, shared with src/ebpf/abi.rs.
 *
 * A fixed head, and behind it parts, each with a head of its own. A step that looks deeper (a runtime's
 * frames, its labels: steps.h) adds a part of its own kind.
 */
#ifndef EVENT_H
#define EVENT_H

/* Keeps the compiler from dropping a bound that the verifier has to see. */
#define HIDE(value) asm volatile("" : "+r"(value))

/* Kinds of events. */
enum event_kind {
    EVENT_ON_CPU = 1, /* the thread ran when the clock ticked; detail is its copied stack's number (copy.h), or 0 */
    EVENT_FORK = 2,   /* a process began; detail is its parent's id */
    EVENT_EXEC = 3,   /* a process began to run another program */
    EVENT_EXIT = 4,   /* the last thread of a process ends */
};

/* The outcome of searching a context. */
enum outcome {
    OUTCOME_NONE = 0,     /* nothing is known of the process, or it publishes nothing */
    OUTCOME_ATTACHED = 1, /* a part has the record */
    OUTCOME_DETACHED = 2,
    OUTCOME_NOT_VALID = 3, /* the record says not to read it */
    OUTCOME_SLOT = 4,      /* the way to the slot, or the slot, could not be read */
    OUTCOME_RECORD = 5,    /* the record could not be read */
    OUTCOME_MOVED = 6,     /* the module that the slot belonged to is gone */
};

/* By what the context was found. */
enum source {
    SOURCE_NONE = 0,
    SOURCE_NATIVE = 1, /* the thread-local variable */
};

enum event_flag {
    EVENT_USER_MODE = 1,       /* it ran in the process, not in the kernel */
    EVENT_NO_USER_STACK = 2,   /* it could not be walked */
    EVENT_CUT_STEPS = 4,       /* there was no room for the part of a step */
};

/* Why a user stack ended: the outcome of its part. */
enum stack_end {
    STACK_BY_FRAME_POINTERS = 0, /* walked by them, unchecked: nobody knows if it ends here */
    STACK_START = 1,             /* the thread began here */
    STACK_NO_TABLES = 2,         /* no unwind tables, and no frame pointer */
    STACK_BAD_TABLES = 3,        /* unwind tables of an unsupported kind, or wrong ones */
    STACK_UNREADABLE = 4,        /* memory that could not be read */
    STACK_NOT_EXECUTABLE = 5,    /* a return address that is not code */
    STACK_LIMIT = 6,             /* more frames than are kept */
    STACK_GONE = 7,              /* the process executes another program: the kernel has freed the stack */
};

/* Beside the end of a stack: no mapping was missing for lack of room in the lists. */
#define STACK_ALL_MAPPINGS (1 << 8)

/* In a user stack's addresses, where its end is not STACK_BY_FRAME_POINTERS: the frame was interrupted
 * there, by the clock or a signal; else it returns there. */
#define FRAME_INTERRUPTED (1ULL << 63)

enum part_kind {
    PART_RECORD = 1,
    PART_USER_STACK = 2,
    PART_KERNEL_STACK = 3,
    PART_STEP = 256, /* and the step's number: what that has added */
};

/* Steps of runtimes have numbers from 1 on. */
#define STEP_NONE 0
#define MAX_STEPS 31

/* What a step came to: the sample stands in any case. */
enum step_outcome {
    STEP_DONE = 0,
    STEP_ABSENT = 1, /* the step was not loaded */
    STEP_MEMORY = 2, /* what it needs of the process could not be read */
    STEP_UNCONFIGURED = 3, /* it has no configuration for the process */
    STEP_LIMIT = 4, /* a list has more entries than the step visits */
    STEP_UNKNOWN_THREAD = 5, /* the recorder is asked for the thread's word; the part is its thread pointer */
};

struct event_head {
    __u64 time;   /* CLOCK_MONOTONIC, nanoseconds */
    __u64 detail; /* by kind */
    __u32 cpu;
    __u32 pid;
    __u32 tid;
    __u32 size; /* of all parts, bytes */
    __u8 kind;
    __u8 outcome;
    __u8 source;
    __u8 flags;
    __u32 serial; /* of the target's configuration, 0 for none */
    char comm[16];
};

struct part_head {
    __u16 kind;
    __u16 size; /* of what follows, bytes */
    __u16 room; /* from there to the next part's head, a multiple of 8 */
    __u16 outcome; /* of a step; of a user stack, why it ended; of a record, the place of its variable */
};

#endif
