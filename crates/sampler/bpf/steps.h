/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Steps of runtimes: whatever looks deeper into a process than its native context and its stacks.
 *
 * A step is a function and a line STEP(...) in sampler.bpf.c, and adds one part, of kind PART_STEP
 * and its number, with an outcome. Each is a program of its own, reached by a tail call, that only
 * targets pay for whose `steps` name it. One that fails, or was not loaded, leaves the sample
 * standing, with the reason.
 */
#ifndef STEPS_H
#define STEPS_H

#include "sample.h"

/* Parts begin below this, and none takes more than PART_LIMIT with its head. */
#define PARTS_LIMIT 8192
#define PART_LIMIT (sizeof(struct part_head) + RECORD_ROOM)

/* What is in the ring can't be passed on by a tail call: samples with steps are put together here.
 * A program can be interrupted by one of another type: each type has memory of its own. */
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

/* Goes on to the next step, which does not return, or tells the sample. */
static __always_inline void go_on(void *context, struct scratch *scratch, void *programs)
{
    for (__u32 i = 0; i < sizeof scratch->steps; i++) {
        __u32 step = scratch->steps & 0xff;
        if (step == STEP_NONE)
            break;
        scratch->steps >>= 8;
        bpf_tail_call(context, programs, step);
        struct part_head *part = next_part(scratch);
        if (!part)
            break;
        part->kind = PART_STEP + step;
        part->size = 0;
        part->outcome = STEP_ABSENT;
        end_part(scratch, part);
    }
    __u32 size = scratch->head.size;
    HIDE(size);
    if (size > sizeof scratch->parts ||
        bpf_ringbuf_output(&events, scratch, sizeof scratch->head + size, BPF_RB_NO_WAKEUP))
        count_lost(COUNTER_SAMPLES);
}

/* Fills the bytes behind the part's head, and sets its size. */
typedef enum step_outcome (*step_function)(void *context, struct scratch *scratch,
                                           struct part_head *part);

static __always_inline int run_step(void *context, void *scratches, void *programs, __u32 step,
                                    step_function function)
{
    __u32 zero = 0;
    struct scratch *scratch = bpf_map_lookup_elem(scratches, &zero);
    if (!scratch)
        return 0;
    struct part_head *part = next_part(scratch);
    if (part) {
        part->kind = PART_STEP + step;
        part->size = 0;
        part->outcome = function(context, scratch, part);
        end_part(scratch, part);
    }
    go_on(context, scratch, programs);
    return 0;
}

/* A program array holds programs of one type: a step is there once for each. */
#define STEP(number, function)                                                      \
    SEC("perf_event")                                                               \
    int function##_sample(void *context)                                            \
    {                                                                               \
        return run_step(context, &sample_scratch, &sample_steps, number, function); \
    }                                                                               \
    SEC("tp_btf/sched_switch")                                                      \
    int function##_switch(void *context)                                            \
    {                                                                               \
        return run_step(context, &switch_scratch, &switch_steps, number, function); \
    }

/* Puts a sample of the running thread together, and tells it. */
static __always_inline void take(void *context, void *scratches, void *programs,
                                 struct task_struct *task, const struct target *target, __u32 pid,
                                 __u32 tid, __u8 kind, __u8 flags)
{
    struct scratch *scratch = 0;
    struct event_head *head;
    /* The recorder may change it at any time. */
    __u32 places = target ? *(volatile const __u32 *)&target->places : 0;
    if (target && target->steps) {
        __u32 zero = 0;
        scratch = bpf_map_lookup_elem(scratches, &zero);
        if (!scratch)
            return;
        scratch->steps = target->steps;
        head = &scratch->head;
    } else {
        head = bpf_ringbuf_reserve(&events, sizeof *head + largest(places, flags), 0);
        if (!head) {
            count_lost(COUNTER_SAMPLES);
            return;
        }
    }
    begin(head, task, target, pid, tid, kind, flags);
    head->size = add_parts(context, head, task, target, places, flags);
    /* Waking the recorder each time would cost more than all of the above. */
    if (scratch)
        go_on(context, scratch, programs);
    else
        bpf_ringbuf_submit(head, BPF_RB_NO_WAKEUP);
}

#endif
