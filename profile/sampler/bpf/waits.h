/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What waits.bpf.c and its loader share: src/ebpf/waits/abi.rs has the same. */
#ifndef WAITS_H
#define WAITS_H

#include "event.h"
#include "target.h"

/* Kinds of events, beside those of event.h. */
enum wait_event_kind {
    EVENT_WAIT = 5,      /* a wait that was not known: its parts say what was read; detail counts the thread's switches */
    EVENT_SAME_WAIT = 6, /* more time of one that is known, and of which nothing was read again */
};

/* Flags of them. */
enum wait_event_flag {
    EVENT_TORN = 8, /* the thread went on meanwhile: nothing that was read counts */
};

/* Kinds of their parts. */
enum wait_part_kind {
    PART_WAIT = 4,        /* struct wait_part */
    PART_TIMES = 5,       /* struct wait_times of the wait that was known before */
    PART_REGISTERS = 6,   /* by DWARF's numbers, and the instruction pointer behind them */
    PART_CALL_MEMORY = 8, /* struct call_memory: what the call's arguments point to */
    PART_STACK_BYTES = 7, /* its lowest address, and the bytes of the stack from there on */
};

/* What keeps a thread off the CPU. */
enum wait_state { WAIT_QUEUED, WAIT_ASLEEP, WAIT_DISK, WAIT_STOPPED, WAIT_STATES };

struct wait_part {
    __u64 since;  /* CLOCK_MONOTONIC, nanoseconds; 0 if it is unknown */
    __u64 weight; /* the time that this scan stands for, nanoseconds */
    __s64 number; /* of the system call; -1 for none */
    __u64 arguments[6];
    __u64 thread_pointer;
    __u32 state; /* enum wait_state */
    __u32 reserved;
};

/* Pieces of memory that a call's arguments point to. */
#define CALL_PIECES 3
#define CALL_PIECE 128
struct call_memory {
    struct call_piece {
        __u64 address; /* 0 for none */
        __u64 size;
        __u8 bytes[CALL_PIECE];
    } piece[CALL_PIECES];
};

struct wait_times {
    __u64 by_state[WAIT_STATES]; /* nanoseconds that were not passed on before */
    __u64 last;                  /* when the thread was last found in the wait, CLOCK_MONOTONIC, nanoseconds */
    __u64 switches;              /* the wait: see `detail` of its first event */
};

struct wait_target {
    struct target target;
    __u32 stack_size; /* bytes to copy of each stack, LONG_STACK at most */
    __u32 version;    /* waits that were read under another one are read again */
};

/* One scan of all threads. */
struct scan {
    __u64 weight;  /* the time since the last one, nanoseconds */
    __u64 started; /* CLOCK_MONOTONIC, nanoseconds */
    __u32 own_pid;
    __u32 is_flush; /* pass on all times */
    __u32 is_check; /* pass on which waits are still the same, and read nothing */
    __u32 reserved;
};

/* Threads that were seen, since the program was loaded. */
struct scan_counts {
    __u64 seen;
    __u64 running;
    __u64 same;
    __u64 read;
    __u64 torn;
    /* The looking thread's own numbers of the scheduler, as of its last turn. */
    __u64 known_arrivals;
    __u64 known_delay;
    __u64 own_delay;
    __u64 barrier;
};

/* A part of a stack behind the first STACK_ROOM bytes: it ends with a page. */
struct stack_piece {
    __u64 detail; /* as the event has it */
    __u32 tid;
    __u32 size;
    __u64 address;
    __u8 bytes[4096];
};

/* The object's type information does not have it: src/ebpf/waits/abi.rs asserts the same. */
_Static_assert(__builtin_offsetof(struct stack_piece, bytes) == 24, "bytes");
_Static_assert(sizeof(struct stack_piece) == 4120, "stack_piece");

#define WAIT_REGISTERS 34
#define STACK_PAGE 4096
#define STACK_PAGES 5
#define STACK_ROOM (STACK_PAGES * STACK_PAGE)
/* What is behind that passes on page by page: an event has to fit the iterator's buffer. */
#define LONG_PAGES 12
#define LONG_STACK (STACK_ROOM + LONG_PAGES * STACK_PAGE)
#define DEFAULT_STACK STACK_PAGE
/* Below the stack pointer: what leaf functions keep there. */
#define BELOW_STACK 256
#define KERNEL_FRAMES 64
/* Time of a wait that is passed on, nanoseconds. */
#define FLUSH_TIME 1000000000ULL
/* A thread that was woken in this time before the tick was woken by it, nanoseconds. */
#define SCAN_SLACK 20000

#endif
