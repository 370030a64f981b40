/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* How a sample is put together: its head, and parts behind it.
 *
 * That is done where the recorder reads it, in the ring: memory that is touched for the first time in
 * a long while is what costs most here, so each byte is written once. The ring wants to know the size
 * beforehand; each part gets room for the largest that it can be.
 */
#ifndef SAMPLE_H
#define SAMPLE_H

#include "stack.h"
#include "variable.h"

/* Set before the program is loaded. */
volatile const __u32 whole_machine = 0; /* else the processes of `targets` alone */
volatile const __u32 user_stacks = 0;
volatile const __u32 kernel_stacks = 0;
volatile const __u32 max_record = 640; /* bytes, header included, RECORD_LIMIT at most */
volatile const __u32 record_room = 640; /* the same or RECORD_FIRST, a multiple of 8 */
/* The recorder's PID namespace, 0 for the first one. */
volatile const __u64 namespace_device = 0;
volatile const __u64 namespace_inode = 0;

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 16384);
    __type(key, __u32);
    __type(value, struct target);
} targets SEC(".maps");

/* Its size is set when the program is loaded. */
struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 1 << 20);
} events SEC(".maps");

/* Events that found the ring full: samples, and those of processes. */
enum counter { COUNTER_SAMPLES = 0, COUNTER_PROCESSES = 1, COUNTERS };

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, COUNTERS);
    __type(key, __u32);
    __type(value, __u64);
} lost SEC(".maps");

static __always_inline void count_lost(__u32 which)
{
    __u64 *counter = bpf_map_lookup_elem(&lost, &which);
    if (counter)
        *counter += 1;
}

/* Process and thread id of the running thread in the recorder's PID namespace; false for a process
 * outside of it, and for an idle CPU: `exclude_idle` was seen not to hold on the first one. */
static __always_inline int ids(struct task_struct *task, __u32 *pid, __u32 *tid)
{
    if (namespace_inode) {
        struct bpf_pidns_info info = {};
        if (bpf_get_ns_current_pid_tgid(namespace_device, namespace_inode, &info, sizeof info))
            return 0;
        *pid = info.tgid;
        *tid = info.pid;
    } else {
        *pid = OF_TASK(task, tgid);
        *tid = OF_TASK(task, pid);
    }
    return *pid != 0;
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
                                  const struct target *target, __u32 pid, __u32 tid, __u8 kind,
                                  __u8 flags)
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
    head->serial = target ? target->serial : 0;
    copy_name(head, task);
}

static __always_inline struct part_head *part_at(struct event_head *head, __u32 at)
{
    return (void *)(head + 1) + at;
}

/* The most that a sample takes of the parts below. */
static __always_inline __u32 largest(__u64 has_record, __u8 flags)
{
    const __u32 stack = sizeof(struct part_head) + STACK_SIZE;
    __u32 size = 0;
    if (has_record)
        size += sizeof(struct part_head) + record_room;
    /* Deeper stacks are put together elsewhere: take() in steps.h. */
    if (user_stacks)
        size += stack;
    if (kernel_stacks && !(flags & EVENT_USER_MODE))
        size += stack;
    return size;
}

/* Adds the record of the native context. Of several definitions the first with a valid record
 * counts, else the first that says anything. */
static __always_inline __u32 add_native_context(struct event_head *head, __u32 at,
                                                struct task_struct *task,
                                                const struct target *target, __u32 places)
{
    struct part_head *part = part_at(head, at);
    __u64 tp = OF_TASK(task, THREAD_POINTER);
    __u8 outcome = OUTCOME_DETACHED;
    /* A thread that has none yet has no thread-local storage. */
    for (__u32 i = 0; tp && i < MAX_PLACES; i++) {
        if (i >= places)
            break;
        __u8 found;
        __u64 record = pointer(&target->place[i], tp, task, &found);
        if (record)
            found = read_record(part, record, max_record, task);
        if (found == OUTCOME_ATTACHED) {
            part->room = record_room;
            head->outcome = found;
            head->source = SOURCE_NATIVE;
            return at + sizeof *part + record_room;
        }
        if (outcome == OUTCOME_DETACHED)
            outcome = found;
    }
    head->outcome = outcome;
    return at;
}

/* `room` is in bytes, STACK_SIZE or USER_STACK_SIZE. */
static __always_inline __u32 add_user_stack(void *context, struct event_head *head, __u32 at,
                                            __u64 room)
{
    struct part_head *part = part_at(head, at);
    __u16 end = STACK_BY_FRAME_POINTERS;
    long size = walked_stack(part + 1, room, &end);
    if (size == 0)
        size = bpf_get_stack(context, part + 1, STACK_SIZE, BPF_F_USER_STACK);
    if (size <= 0) {
        head->flags |= EVENT_NO_USER_STACK;
        return at;
    }
    part->kind = PART_USER_STACK;
    part->size = size;
    part->room = room;
    part->outcome = end;
    return at + sizeof *part + room;
}

static __always_inline __u32 add_kernel_stack(void *context, struct event_head *head, __u32 at)
{
    struct part_head *part = part_at(head, at);
    long size = bpf_get_stack(context, part + 1, STACK_SIZE, 0);
    if (size <= 0)
        return at;
    part->kind = PART_KERNEL_STACK;
    part->size = size;
    part->room = STACK_SIZE;
    part->outcome = STEP_DONE;
    return at + sizeof *part + STACK_SIZE;
}

/* Adds what every sample has; the size of the parts. */
static __always_inline __u32 add_parts(void *context, struct event_head *head,
                                       struct task_struct *task, const struct target *target,
                                       __u64 has_record, __u32 places, __u8 flags,
                                       __u64 stack_room)
{
    __u32 at = 0;
    if (has_record)
        at = add_native_context(head, at, task, target, places);
    if (user_stacks && (flags & EVENT_USER_MODE || !(OF_TASK(task, flags) & PF_KTHREAD)))
        at = add_user_stack(context, head, at, stack_room);
    if (kernel_stacks && !(flags & EVENT_USER_MODE))
        at = add_kernel_stack(context, head, at);
    return at;
}

#endif
