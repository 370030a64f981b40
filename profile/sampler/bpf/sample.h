/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* How a sample is put together: its head, and parts behind it.
 *
 * That is done where the recorder reads it, in the ring: memory that is touched for the first time in
 * a long while is what costs most here, so each byte is written once.
 */
#ifndef SAMPLE_H
#define SAMPLE_H

#include "namespace.h"
#include "ring.h"
#include "stack.h"
#include "variable.h"

/* Set before the program is loaded. */
volatile const __u32 whole_machine = 0; /* else the processes of `targets` alone */
volatile const __u32 user_stacks = 0;
volatile const __u32 kernel_stacks = 0;
volatile const __u32 max_record = 640; /* bytes, header included, RECORD_LIMIT at most */

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 16384);
    __type(key, __u32);
    __type(value, struct target);
} targets SEC(".maps");

/* Which pids may be targets, by their lowest bits: most threads that run cost no search in the table.
 * Written by the recorder, and for children by the program. */
#define FILTERED_PIDS (1 << 15)
struct target_filter {
    __u8 may_be_target[FILTERED_PIDS];
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct target_filter);
} target_filter SEC(".maps");

static __always_inline __u8 *may_be_target(__u32 pid)
{
    __u32 zero = 0;
    struct target_filter *filter = bpf_map_lookup_elem(&target_filter, &zero);
    return filter ? &filter->may_be_target[pid & (FILTERED_PIDS - 1)] : 0;
}

/* Targets whose pids each CPU has beside its ring. A slot is not used again for a while. */
struct few_targets {
    /* `targets` is not searched for other pids while both are the same: children that the program has added
     * to it, and those of them that the recorder knows. */
    __u64 forks;
    __u64 known_forks;
    __u64 unused[6];
    struct few_target {
        __u32 pid; /* 0 if it has ended */
        __u32 reserved;
        struct target target;
        __u64 unused;
    } at[FEW_TARGETS];
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct few_targets);
} few_targets SEC(".maps");

/* Where a target is found: a slot of few_targets, or one of these. */
enum place_of_target { IN_TARGETS = FEW_TARGETS, NO_TARGET };

static __always_inline __u64 search_target(struct cpu *cpu, __u32 pid)
{
#pragma unroll
    for (int i = 0; i < FEW_TARGETS; i++)
        if (cpu->pids[i] == pid)
            return i;
    __u32 zero = 0;
    const struct few_targets *few = bpf_map_lookup_elem(&few_targets, &zero);
    if (few && few->forks == few->known_forks)
        return NO_TARGET;
    const __u8 *may_be = may_be_target(pid);
    return may_be && *may_be && bpf_map_lookup_elem(&targets, &pid) ? IN_TARGETS : NO_TARGET;
}

static __always_inline __u64 find_target(struct cpu *cpu, __u32 pid)
{
    /* Through memory: else the verifier would follow each number to the end of the program. */
    *(volatile __u64 *)&cpu->found = search_target(cpu, pid);
    return *(volatile __u64 *)&cpu->found;
}

/* The data about a target that was found; 0 if it has ended. */
static __always_inline const struct target *known_target(__u64 found, __u32 pid)
{
    if (found == IN_TARGETS)
        return bpf_map_lookup_elem(&targets, &pid);
    HIDE(found);
    if (found >= FEW_TARGETS)
        return 0;
    __u32 zero = 0;
    const struct few_targets *few = bpf_map_lookup_elem(&few_targets, &zero);
    return few && few->at[found].pid == pid ? &few->at[found].target : 0;
}

static __always_inline void forget_contexts(struct target *target)
{
    target->places = 0;
    target->steps = 0;
    target->serial = 0;
}

/* The target's process executes another program, or ends. */
static __always_inline void change_few_target(__u32 pid, int has_ended)
{
    __u32 zero = 0;
    struct few_targets *few = bpf_map_lookup_elem(&few_targets, &zero);
    for (int i = 0; few && i < FEW_TARGETS; i++)
        if (few->at[i].pid == pid) {
            forget_contexts(&few->at[i].target);
            if (has_ended)
                few->at[i].pid = 0;
        }
}

/* Adds a child of a target. */
static __always_inline void add_child(__u32 child)
{
    /* It inherits no process context: its configuration is set when it publishes. */
    static const struct target nothing = {};
    __u32 zero = 0;
    struct few_targets *few = bpf_map_lookup_elem(&few_targets, &zero);
    __u8 *may_be = may_be_target(child);
    if (!few || !may_be)
        return;
    *may_be = 1;
    if (bpf_map_update_elem(&targets, &child, &nothing, BPF_ANY))
        count(COUNTER_TARGETS);
    __sync_fetch_and_add(&few->forks, 1);
}

static __always_inline int read_user(void *to, __u32 size, __u64 from,
                                     void *task __attribute__((unused)))
{
    return bpf_probe_read_user(to, size, (const void *)from);
}

static __always_inline void copy_name(struct event_head *head, struct task_struct *task)
{
    if (CAN_LOAD) {
        __u64 *to = (void *)head->comm;
        const __u64 *from = (void *)task->comm;
        to[0] = from[0];
        to[1] = from[1];
    } else {
        bpf_get_current_comm(head->comm, sizeof head->comm);
    }
}

/* Fills the head, for a sample of the running thread. */
static __always_inline void begin(struct event_head *head, struct task_struct *task,
                                  __u32 serial, __u32 pid, __u32 tid, __u8 kind, __u8 flags)
{
    head->time = bpf_ktime_get_ns();
    head->detail = 0;
    head->cpu = bpf_get_smp_processor_id();
    head->pid = pid;
    head->tid = tid;
    head->kind = kind;
    head->outcome = OUTCOME_NONE;
    head->source = SOURCE_NONE;
    head->flags = flags;
    head->serial = serial;
    copy_name(head, task);
}

/* Where the parts end that a sample has so far, in bytes. In 64 bits, so that the verifier follows. */
static __always_inline struct part_head *part_at(struct event_head *head, __u64 at)
{
    return (void *)(head + 1) + at;
}

/* Adds the record of the native context. Of several definitions the first with a valid record
 * counts, else the first that says anything. */
static __always_inline __u64 add_native_context(struct event_head *head, __u64 at,
                                                struct task_struct *task,
                                                const struct target *target, __u32 places)
{
    struct part_head *part = part_at(head, at);
    __u64 tp = OF_TASK(task, THREAD_POINTER);
    /* In memory, so that the verifier does not follow each value. */
    head->outcome = OUTCOME_DETACHED;
    /* A thread that has none yet has no thread-local storage. */
    for (__u32 i = 0; tp && i < MAX_PLACES; i++) {
        if (i >= places)
            break;
        __u8 found;
        __u64 record = pointer(&target->place[i], tp, task, &found);
        if (record)
            found = read_record(part, record, max_record, task);
        if (found == OUTCOME_ATTACHED) {
            __u64 room = part->room;
            HIDE(room);
            if (room > RECORD_LIMIT)
                break;
            part->outcome = i;
            head->outcome = found;
            head->source = SOURCE_NATIVE;
            return at + sizeof *part + room;
        }
        if (*(volatile __u8 *)&head->outcome == OUTCOME_DETACHED)
            head->outcome = found;
    }
    return at;
}

/* Ends a part that has this many bytes, a multiple of 8 and `limit` at most. */
static __always_inline __u64 end_stack(struct part_head *part, __u64 at, __u64 size, __u64 limit,
                                       __u16 kind, __u16 outcome)
{
    HIDE(size);
    if (size > limit)
        return at;
    part->kind = kind;
    part->size = size;
    part->room = size;
    part->outcome = outcome;
    return at + sizeof *part + size;
}

static __always_inline __u64 add_user_stack(void *context, struct event_head *head, __u64 at)
{
    struct part_head *part = part_at(head, at);
    __u16 end = STACK_BY_FRAME_POINTERS;
    head->detail = copied_stack();
    long size = walked_stack(part + 1, &end);
    if (size == 0) {
        size = bpf_get_stack(context, part + 1, STACK_SIZE, BPF_F_USER_STACK);
        long max_size = max_stack_size();
        if (size > max_size)
            size = max_size;
    }
    if (size <= 0) {
        head->flags |= EVENT_NO_USER_STACK;
        return at;
    }
    return end_stack(part, at, size, USER_STACK_SIZE, PART_USER_STACK, end);
}

static __always_inline __u64 add_kernel_stack(void *context, struct event_head *head, __u64 at)
{
    struct part_head *part = part_at(head, at);
    long size = bpf_get_stack(context, part + 1, STACK_SIZE, 0);
    if (size <= 0)
        return at;
    return end_stack(part, at, size, STACK_SIZE, PART_KERNEL_STACK, STEP_DONE);
}

/* Adds what every sample has; the size of the parts. */
static __always_inline __u64 add_parts(void *context, struct event_head *head,
                                       struct task_struct *task, const struct target *target,
                                       __u32 places, __u8 flags)
{
    __u64 at = 0;
    if (places)
        at = add_native_context(head, at, task, target, places);
    /* A thread that ends has no memory. */
    if (user_stacks &&
        (flags & EVENT_USER_MODE || (!(OF_TASK(task, flags) & PF_KTHREAD) && OF_TASK(task, mm))))
        at = add_user_stack(context, head, at);
    if (kernel_stacks && !(flags & EVENT_USER_MODE))
        at = add_kernel_stack(context, head, at);
    return at;
}

#endif
