/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Steps of runtimes: each reads what a runtime knows of the thread beyond its native context and stacks.
 *
 * A step is a function NAME_step in a file NAME.step.h in the folder `bpf` of the runtime's crate. The crate that
 * assembles a command compiles this crate's programs with the steps of its runtimes: STEPS_LIST names a file
 * that includes each step, followed by a line STEP(...) or STEP_WITH_LOOPS(...) with its number.
 * A step adds one part to the sample, of kind PART_STEP and its number, with an outcome. Each is a program of its
 * own, reached by a tail call, which only samples of targets run whose `steps` name it. A step that fails or is not loaded leaves the sample as it is, with the reason.
 */
#ifndef STEPS_H
#define STEPS_H

#include "sample.h"

/* Parts begin below this, and none takes more than PART_LIMIT with its head: 512 frames of a runtime, and what its step
 * needs beside them. */
#define PARTS_LIMIT 8192
#define PART_LIMIT 13312

/* What is in the ring can't be passed on by a tail call: samples with steps are put together here, and
 * those of CPUs without a ring. A program can be interrupted by one of another type: each type has memory
 * of its own. */
struct scratch {
    struct event_head head;
    __u8 parts[PARTS_LIMIT + PART_LIMIT];
    __u32 steps; /* that are still to come, as in struct target */
    __u32 reserved;
};

/* Where the next part goes; none if the sample is full. */
static __always_inline struct part_head *next_part(struct scratch *scratch)
{
    __u32 at = scratch->head.size;
    if (at >= PARTS_LIMIT)
        return 0;
    HIDE(at);
    return (void *)(scratch->parts + (at & (PARTS_LIMIT - 1)));
}

static __always_inline void end_part(struct scratch *scratch, struct part_head *part)
{
    part->room = padded(part->size);
    scratch->head.size += sizeof *part + part->room;
}

/* What a step has to know of a process, in its own layout. */
struct step_key {
    __u32 pid;
    __u32 step;
};

#define STEP_CONFIGURATION_SIZE 384

/* Its size is set when the program is loaded. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 1);
    __type(key, struct step_key);
    __type(value, __u8[STEP_CONFIGURATION_SIZE]);
} step_configurations SEC(".maps");

/* A child has its parent's memory, and with it what steps read, until it executes another program. It does not run
 * yet. */
static __always_inline void inherit_steps(__u32 steps, __u32 parent, __u32 child)
{
    struct target *target = bpf_map_lookup_elem(&targets, &child);
    if (!target)
        return;
    target->steps = steps;
#pragma unroll
    for (__u32 i = 0; i < sizeof steps; i++) {
        struct step_key key = {.pid = parent, .step = steps >> 8 * i & 0xff};
        const void *configuration = bpf_map_lookup_elem(&step_configurations, &key);
        key.pid = child;
        if (configuration)
            bpf_map_update_elem(&step_configurations, &key, configuration, BPF_ANY);
    }
}

/* A thread, for a step. */
struct thread_key {
    __u32 pid;
    __u32 tid;
    __u32 step;
};

/* What steps cannot find in a thread itself, such as the address of its state: the recorder finds it in the
 * runtime's list of threads, once the step has asked for it (STEP_UNKNOWN_THREAD). The thread runs meanwhile, and
 * its ID may be used again: a step checks each word. The size is set when the program is loaded. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 1);
    __type(key, struct thread_key);
    __type(value, __u64);
} thread_words SEC(".maps");

/* The thread's word; 0 if the recorder has found none yet. */
static __always_inline __u64 thread_word(const struct thread_key *thread)
{
    const __u64 *word = bpf_map_lookup_elem(&thread_words, thread);
    return word ? *word : 0;
}

/* Asks the recorder for the thread's word, in the place of the step's part. */
static __always_inline enum step_outcome unknown_thread(struct part_head *part, __u64 thread_pointer)
{
    *(__u64 *)(part + 1) = thread_pointer;
    part->size = sizeof thread_pointer;
    return STEP_UNKNOWN_THREAD;
}

_Static_assert(PART_LIMIT >= sizeof(struct part_head) + RECORD_ROOM, "a record");
_Static_assert(SAMPLE_LIMIT >= sizeof(struct event_head) + PARTS_LIMIT + PART_LIMIT, "the largest sample");

/* Copies the sample to where the recorder reads it; false if there is no room. */
static __always_inline int submit(struct scratch *scratch, int may_have_ring)
{
    __u64 size = scratch->head.size;
    HIDE(size);
    if (size > sizeof scratch->parts)
        return 0;
    struct cpu *cpu = may_have_ring ? this_cpu() : 0;
    if (!cpu || !has_ring(cpu))
        return !bpf_ringbuf_output(&events, scratch, sizeof scratch->head + size, BPF_RB_NO_WAKEUP);
    __u64 position;
    struct event_head *head = reserve(cpu, &position);
    if (!head || bpf_probe_read_kernel(head, sizeof *head + size, scratch))
        return 0;
    publish(cpu, position, size);
    return 1;
}

/* Calls the next step, which does not return, or submits the sample. */
static __always_inline void go_on(void *context, struct scratch *scratch, void *programs,
                                  int may_have_ring)
{
    for (__u32 i = 0; i < sizeof scratch->steps; i++) {
        __u32 step = scratch->steps & 0xff;
        if (step == STEP_NONE)
            break;
        scratch->steps >>= 8;
        bpf_tail_call(context, programs, step);
        struct part_head *part = next_part(scratch);
        if (!part) {
            scratch->head.flags |= EVENT_CUT_STEPS;
            break;
        }
        part->kind = PART_STEP + step;
        part->size = 0;
        part->outcome = STEP_ABSENT;
        end_part(scratch, part);
    }
    if (!submit(scratch, may_have_ring))
        count(COUNTER_SAMPLES);
}

/* Fills the bytes behind the part's head (STEP_ROOM at most) and sets its size. */
#define STEP_ROOM (PART_LIMIT - sizeof(struct part_head))
typedef enum step_outcome (*step_function)(void *context, struct part_head *part,
                                           const void *configuration,
                                           const struct thread_key *thread, int has_loops);

static __always_inline int run_step(void *context, void *scratches, void *programs,
                                    int may_have_ring, __u32 step, step_function function,
                                    int has_loops)
{
    __u32 zero = 0;
    struct scratch *scratch = bpf_map_lookup_elem(scratches, &zero);
    if (!scratch)
        return 0;
    struct part_head *part = next_part(scratch);
    if (part) {
        part->kind = PART_STEP + step;
        part->size = 0;
        struct step_key key = {.pid = scratch->head.pid, .step = step};
        struct thread_key thread = {.pid = scratch->head.pid, .tid = scratch->head.tid, .step = step};
        const void *configuration = bpf_map_lookup_elem(&step_configurations, &key);
        part->outcome =
            configuration ? function(context, part, configuration, &thread, has_loops) : STEP_UNCONFIGURED;
        end_part(scratch, part);
    } else {
        scratch->head.flags |= EVENT_CUT_STEPS;
    }
    go_on(context, scratch, programs, may_have_ring);
    return 0;
}

/* A program array holds programs of one type: each step is loaded once for each. Only the clock's
 * programs have rings: one of another type can interrupt them. The loader knows number and name by the
 * programs' names (src/ebpf/load.rs). */
#define STEP(number, name)                                                                \
    SEC("perf_event")                                                                     \
    int step_##number##_##name##_sample(void *context)                                    \
    {                                                                                     \
        return run_step(context, &sample_scratch, &sample_steps, 1, number, name##_step, 0); \
    }                                                                                     \
    SEC("tp_btf/sched_switch")                                                            \
    int step_##number##_##name##_switch(void *context)                                    \
    {                                                                                     \
        return run_step(context, &switch_scratch, &switch_steps, 0, number, name##_step, 0); \
    }

/* The same for a step that uses bpf_loop where it can: there the verifier follows the body of a loop once, and else
 * each turn. The loader prefers the program with loops. */
#define STEP_WITH_LOOPS(number, name)                                                     \
    STEP(number, name)                                                                    \
    SEC("perf_event")                                                                     \
    int step_##number##_##name##_looped(void *context)                                    \
    {                                                                                     \
        return run_step(context, &sample_scratch, &sample_steps, 1, number, name##_step, 1); \
    }

/* Builds a sample of the running thread, and submits it. */
static __always_inline void take(void *context, void *scratches, void *programs, struct cpu *cpu,
                                 struct task_struct *task, __u64 found, __u32 pid, __u32 tid,
                                 __u8 kind, __u8 flags)
{
    struct scratch *scratch = 0;
    struct event_head *head;
    const struct target *target = known_target(found, pid);
    /* The recorder may change it at any time. */
    __u32 places = target ? *(volatile const __u32 *)&target->places : 0;
    __u32 steps = target ? target->steps : 0;
    __u32 serial = target ? target->serial : 0;
    __u64 position = 0;
    if (has_ring(cpu) && !steps) {
        head = reserve(cpu, &position);
        if (!head) {
            count(COUNTER_SAMPLES);
            return;
        }
    } else {
        __u32 zero = 0;
        scratch = bpf_map_lookup_elem(scratches, &zero);
        if (!scratch)
            return;
        scratch->steps = steps;
        head = &scratch->head;
    }
    begin(head, task, serial, pid, tid, kind, flags);
    __u64 size = add_parts(context, head, task, target, places, flags);
    head->size = size;
    if (scratch)
        go_on(context, scratch, programs, 1);
    else
        publish(cpu, position, size);
}

#endif
