/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* From a thread's pointer to the record of its context. The conditions are those of
 * inspect/remote/src/{tls.rs,libc}. The including file says how a program reads the process:
 *
 *     static int read_user(void *to, __u32 size, __u64 from, void *task);
 */
#ifndef VARIABLE_H
#define VARIABLE_H

#include "event.h"
#include "target.h"

/* Record: OTEP 4947. */
#define RECORD_HEADER 28
#define RECORD_VALID 24
#define RECORD_ATTRIBUTES_SIZE 26
#define RECORD_LIMIT 4096
/* Of a record this much is read at once, as most have no more: one read costs what two bytes do. */
#define RECORD_FIRST 64
/* What the verifier sees that a record takes. */
#define RECORD_ROOM (RECORD_FIRST + RECORD_LIMIT)

/* No more of the kernel's types than are used, instead of all of them: their layouts come from the
 * running kernel's BTF when the program is loaded. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
#if defined(__TARGET_ARCH_x86)
struct thread_struct {
    unsigned long fsbase;
};
#elif defined(__TARGET_ARCH_arm64)
struct thread_struct {
    struct {
        unsigned long tp_value;
    } uw;
};
#endif
typedef struct {
    int counter;
} atomic_t;
struct pid;
struct signal_struct {
    atomic_t live;
    struct pid *pids[4]; /* by enum pid_type, whose second one is the process */
};
struct uprobe_task;
struct ns_common {
    unsigned int inum;
};
struct pid_namespace {
    struct ns_common ns;
};
struct upid {
    int nr;
    struct pid_namespace *ns;
};
struct pid {
    unsigned int level;
    struct upid numbers[];
};
struct mm_struct {
    unsigned long start_stack;
};
struct task_struct {
    void *stack;
    unsigned int flags;
    int pid;
    int tgid;
    struct pid *thread_pid;
    struct mm_struct *mm;
    struct signal_struct *signal;
    struct uprobe_task *utask;
    struct thread_struct thread;
    char comm[16];
};
#pragma clang attribute pop

#if defined(__TARGET_ARCH_x86)
#define THREAD_POINTER thread.fsbase
#elif defined(__TARGET_ARCH_arm64)
#define THREAD_POINTER thread.uw.tp_value
#endif

/* Where the thread keeps its dynamic thread vector, from the thread pointer. */
#if defined(__TARGET_ARCH_x86)
#define GLIBC_VECTOR 8
#define MUSL_VECTOR 8
#elif defined(__TARGET_ARCH_arm64)
#define GLIBC_VECTOR 0
#define MUSL_VECTOR -8
#endif

static int read_user(void *to, __u32 size, __u64 from, void *task);

/* The address of the variable, 0 with an outcome if there is none. */
static __always_inline __u64 variable(const struct place *place, __u64 tp, void *task,
                                      __u8 *outcome)
{
    *outcome = OUTCOME_SLOT;
    if (place->slot) {
        __u64 words[2];
        if (read_user(words, sizeof words, place->slot, task))
            return 0;
        if (words[0] != place->slot_words[0] || words[1] != place->slot_words[1]) {
            *outcome = OUTCOME_MOVED;
            return 0;
        }
    }
    if (place->storage == STORAGE_STATIC)
        return tp + place->offset;

    __u64 vector = 0, block = 0;
    if (place->storage == STORAGE_GLIBC) {
        if (read_user(&vector, sizeof vector, tp + GLIBC_VECTOR, task))
            return 0;
        __u64 head[3]; /* length, unused, generation */
        if (vector && read_user(head, sizeof head, vector - 16, task))
            return 0;
        if (vector && place->module <= head[0] && head[2] >= place->generation) {
            if (read_user(&block, sizeof block, vector + place->module * 16, task))
                return 0;
            if (block == ~0ULL)
                block = 0;
        }
    } else if (place->storage == STORAGE_MUSL) {
        __u64 length;
        if (read_user(&vector, sizeof vector, tp + MUSL_VECTOR, task))
            return 0;
        if (vector && read_user(&length, sizeof length, vector, task))
            return 0;
        if (vector && place->module <= length) {
            if (read_user(&block, sizeof block, vector + place->module * 8, task))
                return 0;
        }
    } else {
        return 0;
    }
    if (!block) {
        *outcome = OUTCOME_DETACHED;
        return 0;
    }
    return block + place->offset;
}

/* Reads what the variable points at: 0 with an outcome if that is nothing. */
static __always_inline __u64 pointer(const struct place *place, __u64 tp, void *task,
                                     __u8 *outcome)
{
    __u64 record, address = variable(place, tp, task, outcome);
    if (!address)
        return 0;
    if (read_user(&record, sizeof record, address, task)) {
        *outcome = OUTCOME_SLOT;
        return 0;
    }
    /* A record's address is even. */
    *outcome = record & 1 ? OUTCOME_RECORD : OUTCOME_DETACHED;
    return record & 1 ? 0 : record;
}

static __always_inline __u32 padded(__u32 size)
{
    return (size + 7) & ~7U;
}

/* Reads a record of at most `limit` bytes into a part that has room for them and for RECORD_FIRST;
 * `limit` is RECORD_LIMIT at most. */
static __always_inline __u8 read_record(struct part_head *part, __u64 record, __u64 limit, void *task)
{
    __u8 *bytes = (__u8 *)(part + 1);
    /* What the rest depends on is read to the stack: memory of the ring has not been
     * touched for long, and it takes a while until it can be read back. */
    __u64 first[RECORD_FIRST / sizeof(__u64)];
    __u8 *header = (__u8 *)first;
    /* In 64 bits, so that the verifier follows. */
    __u64 have = RECORD_FIRST;
    if (read_user(first, RECORD_FIRST, record, task)) {
        /* It may be a short one at the end of what is mapped. */
        have = RECORD_HEADER;
        if (read_user(first, RECORD_HEADER, record, task))
            return OUTCOME_RECORD;
    }
    if (header[RECORD_VALID] != 1)
        return OUTCOME_NOT_VALID;
    __u64 *to = (__u64 *)bytes;
#pragma unroll
    for (__u32 i = 0; i < RECORD_FIRST / sizeof *to; i++)
        to[i] = first[i];
    __u64 size = RECORD_HEADER + *(__u16 *)(header + RECORD_ATTRIBUTES_SIZE);
    if (size > limit)
        size = limit;
    if (size > have) {
        __u64 more = size - have;
        HIDE(more);
        if (more > limit - have)
            return OUTCOME_RECORD;
        if (read_user(bytes + have, more, record + have, task))
            return OUTCOME_RECORD;
    }
    part->kind = PART_RECORD;
    part->size = size;
    part->room = padded(size);
    part->outcome = 0;
    return OUTCOME_ATTACHED;
}

#endif
