/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Samples the thread that runs when a CPU's clock ticks: what it works on, and its stack.
 *
 * Attached to one perf event (PERF_COUNT_SW_CPU_CLOCK) a processor. The thread is interrupted while
 * this runs, so nothing of its own changes meanwhile. Needs Linux 5.10. `cargo xtask bpf` builds it.
 */
#include <linux/bpf.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

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

static __always_inline int sample_thread(void *context, int by_tables)
{
    __u32 pid, tid;
    struct task_struct *task = current_task();
    if (!ids(task, &pid, &tid)) {
        if (whole_machine)
            count(COUNTER_OUTSIDE);
        return 0;
    }
    struct cpu *cpu = this_cpu();
    if (!cpu)
        return 0;
    __u64 found = find_target(cpu, pid);
    if (found == NO_TARGET && !whole_machine)
        return 0;
    __u8 flags = user_mode(context) ? EVENT_USER_MODE : 0;
    /* Else the compiler asks for the mode again each time, and Linux 5.10 does not see that it is the
     * same. */
    HIDE(flags);
    if (user_stacks) {
        forget_stack();
        if (!(by_tables && unwind(task, pid)) && flags)
            walk_stack(context, task, by_tables);
    }
    take(context, &sample_scratch, &sample_steps, cpu, task, found, pid, tid, EVENT_ON_CPU, flags);
    return 0;
}

SEC("perf_event")
int sample(void *context)
{
    return sample_thread(context, 0);
}

/* The same with stacks by unwind tables; loaded in the place of `sample` from Linux 5.17 on. */
SEC("perf_event")
int sample_by_tables(void *context)
{
    return sample_thread(context, 1);
}

/* Generated: the steps of the runtimes that are shipped, or those of tests. */
#include STEPS_LIST
