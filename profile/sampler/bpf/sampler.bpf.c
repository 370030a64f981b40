/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Samples the thread that runs when a CPU's clock ticks: what it works on, and its stack.
 *
 * Attached to one perf event (PERF_COUNT_SW_CPU_CLOCK) a processor. The thread is interrupted while
 * this runs, so nothing of its own changes meanwhile. Needs Linux 5.10. `cargo xtask bpf` builds it.
 */
#include <linux/bpf.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "copy.h"
#include "process.h"
#include "sample.h"
#include "steps.h"
#include "unwind.h"

/* bpf_get_stack and bpf_probe_read_* are for programs under the GPL alone. */
char LICENSE[] SEC("license") = "GPL";

/* Of each type of program: scratch memory, and the steps that follow. */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct scratch);
} sample_scratch SEC(".maps"), switch_scratch SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
    __uint(max_entries, MAX_STEPS + 1);
    __type(key, __u32);
    __type(value, __u32);
} sample_steps SEC(".maps"), switch_steps SEC(".maps");

/* Whether the registers are those of the process: their layout is part of the kernel's interface
 * (arch/{x86,arm64}/include/uapi/asm/ptrace.h). */
static __always_inline int user_mode(void *context)
{
#if defined(__TARGET_ARCH_x86)
    return ((__u64 *)context)[17] & 3; /* cs: the privilege level */
#elif defined(__TARGET_ARCH_arm64)
    return (((__u64 *)context)[33] & 0xf) == 0; /* pstate: EL0 */
#endif
}

/* The running thread, if it is to be sampled. */
struct sampled {
    struct task_struct *task;
    struct cpu *cpu;
    __u64 target; /* where it is found */
    __u32 pid;
    __u32 tid;
    __u8 flags;
};

static __always_inline int find_sampled(void *context, struct sampled *sampled)
{
    struct task_struct *task = current_task();
    if (!ids(task, &sampled->pid, &sampled->tid)) {
        if (whole_machine)
            count(COUNTER_OUTSIDE);
        return 0;
    }
    sampled->task = task;
    sampled->cpu = this_cpu();
    if (!sampled->cpu)
        return 0;
    sampled->target = find_target(sampled->cpu, sampled->pid);
    if (sampled->target == NO_TARGET && !whole_machine)
        return 0;
    __u8 flags = user_mode(context) ? EVENT_USER_MODE : 0;
    /* Else the compiler asks for the mode again each time, and Linux 5.10 does not see that it is the
     * same. */
    HIDE(flags);
    sampled->flags = flags;
    return 1;
}

static __always_inline void take_sample(void *context, const struct sampled *sampled)
{
    take(context, &sample_scratch, &sample_steps, sampled->cpu, sampled->task, sampled->target,
         sampled->pid, sampled->tid, EVENT_ON_CPU, sampled->flags);
}

/* Stacks by frame pointers alone. */
SEC("perf_event")
int sample(void *context)
{
    struct sampled sampled;
    if (!find_sampled(context, &sampled))
        return 0;
    if (user_stacks) {
        forget_stack();
        walk_stack(context, sampled.task, sampled.flags, 0);
    }
    take_sample(context, &sampled);
    return 0;
}

/* The same with stacks by unwind tables; loaded in the place of `sample` from Linux 5.17 on. */
SEC("perf_event")
int sample_by_tables(void *context)
{
    struct sampled sampled;
    if (!find_sampled(context, &sampled))
        return 0;
    forget_stack();
    if (!unwind(context, sampled.task, sampled.pid, sampled.flags))
        walk_stack(context, sampled.task, sampled.flags, 1);
    note_freed_stack(sampled.flags);
    copy_stack(context, sampled.task, sampled.flags, 1);
    take_sample(context, &sampled);
    return 0;
}

/* The programs that `sample_by_tail_calls` continues with: their places in the array. */
enum tail_call { CALL_NEXT_FRAMES, CALL_END_SAMPLE, TAIL_CALLS };

struct {
    __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
    __uint(max_entries, TAIL_CALLS);
    __type(key, __u32);
    __type(value, __u32);
} tail_calls SEC(".maps");

/* The same without bpf_loop, before Linux 5.17: some frames, and then the next program. */
SEC("perf_event")
int sample_by_tail_calls(void *context)
{
    struct sampled sampled;
    if (!find_sampled(context, &sampled))
        return 0;
    struct walk walk;
    forget_stack();
    if (begin_walk(context, sampled.task, sampled.pid, sampled.flags, &walk, 0))
        bpf_tail_call(context, &tail_calls, CALL_NEXT_FRAMES);
    walk_stack(context, sampled.task, sampled.flags, 0);
    bpf_tail_call(context, &tail_calls, CALL_END_SAMPLE);
    count(COUNTER_SAMPLES);
    return 0;
}

SEC("perf_event")
int next_frames(void *context)
{
    if (unwind_further())
        bpf_tail_call(context, &tail_calls, CALL_NEXT_FRAMES);
    bpf_tail_call(context, &tail_calls, CALL_END_SAMPLE);
    count(COUNTER_SAMPLES);
    return 0;
}

SEC("perf_event")
int end_sample(void *context)
{
    struct sampled sampled;
    if (!find_sampled(context, &sampled))
        return 0;
    note_freed_stack(sampled.flags);
    copy_stack(context, sampled.task, sampled.flags, 0);
    take_sample(context, &sampled);
    return 0;
}

/* The steps of the runtimes that a command registers: docs/runtimes.md. */
#ifdef STEPS_LIST
#include STEPS_LIST
#endif
