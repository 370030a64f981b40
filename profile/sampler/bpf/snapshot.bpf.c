/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Reads the contexts of all threads of one process while they run.
 *
 * An iterator over the machine's threads that may sleep, so that pages which are not in memory are
 * read, too. Needs Linux 5.18. A thread may rewrite its record meanwhile, so each is read twice:
 * only what is the same both times counts. `cargo xtask bpf` builds it.
 */
#include <linux/bpf.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "variable.h"

/* bpf_copy_from_user_task is for programs under the GPL alone. */
char LICENSE[] SEC("license") = "GPL";

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct bpf_iter_meta {
    struct seq_file *seq;
};
struct bpf_iter__task {
    struct bpf_iter_meta *meta;
    struct task_struct *task;
};
#pragma clang attribute pop

volatile const __u32 max_record = 640; /* bytes, header included, RECORD_LIMIT at most */

/* The process, and where its threads keep their contexts. */
struct wanted {
    __u32 pid; /* as the first PID namespace has it */
    __u32 reserved;
    struct target target;
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct wanted);
} wanted SEC(".maps");

struct scratch {
    struct event_head head;
    __u8 part[sizeof(struct part_head) + RECORD_ROOM];
    __u8 again[sizeof(struct part_head) + RECORD_ROOM];
};

/* One run at a time: its loader reads it from one descriptor. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct scratch);
} snapshot_scratch SEC(".maps");

static __always_inline int read_user(void *to, __u32 size, __u64 from, void *task)
{
    return bpf_copy_from_user_task(to, size, (const void *)from, task, 0);
}

static __always_inline void write_part(struct seq_file *seq, void *part)
{
    __u32 size = sizeof(struct part_head) + ((struct part_head *)part)->room;
    HIDE(size);
    size &= 2 * RECORD_LIMIT - 1;
    if (size <= sizeof(struct part_head) + RECORD_LIMIT)
        bpf_seq_write(seq, part, size);
}

/* An event a thread, of no kind; the record's part follows twice. */
SEC("iter.s/task")
int snapshot(struct bpf_iter__task *context)
{
    __u32 zero = 0;
    struct seq_file *seq = context->meta->seq;
    struct task_struct *task = context->task;
    const struct wanted *process = bpf_map_lookup_elem(&wanted, &zero);
    struct scratch *scratch = bpf_map_lookup_elem(&snapshot_scratch, &zero);
    if (!task || !process || !scratch || (__u32)task->tgid != process->pid)
        return 0;
    const struct target *target = &process->target;
    struct event_head *head = &scratch->head;
    __u64 tp = task->THREAD_POINTER;
    head->time = bpf_ktime_get_ns();
    head->pid = task->tgid;
    head->tid = task->pid;
    head->size = 0;
    head->outcome = OUTCOME_DETACHED;
    head->source = SOURCE_NONE;
    bpf_probe_read_kernel(head->comm, sizeof head->comm, task->comm);
    for (__u32 i = 0; tp && i < MAX_PLACES; i++) {
        if (i >= target->places)
            break;
        __u8 found, again;
        struct part_head *part = (void *)scratch->part, *second = (void *)scratch->again;
        __u64 record = pointer(&target->place[i], tp, task, &found);
        if (record)
            found = read_record(part, record, max_record, task);
        if (found == OUTCOME_ATTACHED) {
            /* Any difference means that it is torn: both reads are reported. */
            __u64 second_record = pointer(&target->place[i], tp, task, &again);
            again = second_record == record ? read_record(second, record, max_record, task)
                                            : OUTCOME_NOT_VALID;
            if (again != OUTCOME_ATTACHED)
                second->size = second->room = 0;
            part->outcome = i;
            head->size = 2 * sizeof *part + part->room + second->room;
            head->source = SOURCE_NATIVE;
        }
        if (head->outcome == OUTCOME_DETACHED || found == OUTCOME_ATTACHED)
            head->outcome = found;
        if (found == OUTCOME_ATTACHED)
            break;
    }
    bpf_seq_write(seq, head, sizeof *head);
    if (head->outcome == OUTCOME_ATTACHED) {
        write_part(seq, scratch->part);
        write_part(seq, scratch->again);
    }
    return 0;
}
