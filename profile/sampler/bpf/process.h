/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Events of processes: fork, exec, exit. */
#ifndef PROCESS_H
#define PROCESS_H

#include "process_code.h"
#include "sample.h"
#include "steps.h"

/* Set before the program is loaded. */
volatile const __u32 with_children = 0; /* processes that a target forks become targets */

static __always_inline void tell(__u8 kind, __u32 pid, __u32 tid, __u64 detail)
{
    struct event_head head = {
        .time = bpf_ktime_get_ns(),
        .detail = detail,
        .cpu = bpf_get_smp_processor_id(),
        .pid = pid,
        .tid = tid,
        .kind = kind,
    };
    bpf_get_current_comm(head.comm, sizeof head.comm);
    if (bpf_ringbuf_output(&events, &head, sizeof head, BPF_RB_NO_WAKEUP))
        count(COUNTER_PROCESSES);
}

/* The id of a new process as the recorder sees it; 0 for one that it can't see. */
static __always_inline __u32 new_id(struct task_struct *child)
{
    if (!namespace_inode)
        return BPF_CORE_READ(child, tgid);
    __u64 level = namespace_level;
    struct pid *ids = BPF_CORE_READ(child, thread_pid);
    return level && is_in_namespace(ids, level) ? BPF_CORE_READ(id_at(ids, level), nr) : 0;
}

/* struct task_struct *task, u64 clone_flags; in the context of the parent. */
SEC("raw_tp/task_newtask")
int task_newtask(struct bpf_raw_tracepoint_args *context)
{
    /* From <linux/sched.h>. */
    const __u64 clone_thread = 0x00010000;
    __u32 parent, tid;
    learn_level(current_task());
    if (!(with_children || whole_machine) || context->args[1] & clone_thread ||
        !ids(current_task(), &parent, &tid))
        return 0;
    __u32 child = new_id((struct task_struct *)context->args[0]);
    if (!child)
        return 0;
    inherit_code(parent, child);
    const struct target *target = with_children ? bpf_map_lookup_elem(&targets, &parent) : 0;
    if (!target)
        return 0;
    __u32 steps = target->steps;
    add_child(child);
    inherit_steps(steps, parent, child);
    tell(EVENT_FORK, child, child, parent);
    return 0;
}

/* struct task_struct *task, pid_t old_pid, struct linux_binprm *program */
SEC("raw_tp/sched_process_exec")
int sched_process_exec(void *context __attribute__((unused)))
{
    __u32 pid, tid;
    if (!ids(current_task(), &pid, &tid))
        return 0;
    forget_code(pid);
    struct target *target = bpf_map_lookup_elem(&targets, &pid);
    if (target) {
        forget_contexts(target);
        change_few_target(pid, 0);
    } else if (!whole_machine) {
        return 0;
    }
    tell(EVENT_EXEC, pid, tid, 0);
    return 0;
}

/* struct task_struct *task; more behind it in later kernels. */
SEC("raw_tp/sched_process_exit")
int sched_process_exit(struct bpf_raw_tracepoint_args *context)
{
    __u32 pid, tid;
    struct task_struct *task = (void *)context->args[0];
    if (BPF_CORE_READ(task, signal, live.counter) != 0 || !ids(current_task(), &pid, &tid))
        return 0;
    forget_code(pid);
    if (!whole_machine && !bpf_map_lookup_elem(&targets, &pid))
        return 0;
    bpf_map_delete_elem(&targets, &pid);
    change_few_target(pid, 1);
    tell(EVENT_EXIT, pid, tid, 0);
    return 0;
}

#endif
