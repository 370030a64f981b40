/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The ids of processes and threads as the recorder sees them. */
#ifndef NAMESPACE_H
#define NAMESPACE_H

#include "task.h"

/* The recorder's PID namespace, 0 for the first one. */
volatile const __u64 namespace_inode = 0;
/* How many namespaces that one is within: 0 until a thread was started in it. */
volatile __u32 namespace_level = 0;

/* A process or thread has an id in its own PID namespace and in each that this one is within: the one at a
 * level. To Linux 6.1, an address that was loaded without a call is nothing to add an unknown number to:
 * `ids` must have been read by one. */
static __always_inline struct upid *id_at(struct pid *ids, __u64 level)
{
    return (void *)ids + bpf_core_field_offset(struct pid, numbers) +
           level * bpf_core_type_size(struct upid);
}

static __always_inline int is_in_namespace(struct pid *ids, __u64 level)
{
    return BPF_CORE_READ(ids, level) >= level &&
           BPF_CORE_READ(id_at(ids, level), ns, ns.inum) == namespace_inode;
}

/* Finds the level of the recorder's namespace: that of a thread which is in no other within it. */
static __always_inline void learn_level(struct task_struct *task)
{
    if (!namespace_inode || namespace_level)
        return;
    struct pid *ids = BPF_CORE_READ(task, thread_pid);
    __u32 level = BPF_CORE_READ(ids, level);
    if (is_in_namespace(ids, level))
        namespace_level = level;
}

/* Process and thread id of the running thread in the recorder's PID namespace; false for a process
 * outside of that. */
static __always_inline int ids(struct task_struct *task, __u32 *pid, __u32 *tid)
{
    if (namespace_inode) {
        __u64 level = namespace_level;
        struct pid *thread = BPF_CORE_READ(task, thread_pid);
        if (!level || !is_in_namespace(thread, level))
            return 0;
        struct pid *process = BPF_CORE_READ(task, signal, pids[1]);
        *tid = BPF_CORE_READ(id_at(thread, level), nr);
        *pid = BPF_CORE_READ(id_at(process, level), nr);
    } else {
        *pid = OF_TASK(task, tgid);
        *tid = OF_TASK(task, pid);
    }
    return *pid != 0;
}

#endif
