/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The running thread, as the kernel keeps it. */
#ifndef TASK_H
#define TASK_H

#include <linux/bpf.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "variable.h"

/* What the kernel has of Linux 5.11 on: its own structures, loaded from without a call. */
enum bpf_func_id___task { BPF_FUNC_get_current_task_btf___task = 158 };
#define CAN_LOAD \
    bpf_core_enum_value_exists(enum bpf_func_id___task, BPF_FUNC_get_current_task_btf___task)

/* In a task's flags: it is a thread of the kernel, which has no stack in a process
 * (include/linux/sched.h). */
#define PF_KTHREAD 0x00200000

/* The running thread, and a member of its structure. */
static __always_inline struct task_struct *current_task(void)
{
    return CAN_LOAD ? bpf_get_current_task_btf() : (struct task_struct *)bpf_get_current_task();
}
#define OF_TASK(task, member) (CAN_LOAD ? (task)->member : BPF_CORE_READ(task, member))

#endif
