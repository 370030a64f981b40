/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Looks at whatever thread runs when a processor's clock ticks: what it works on, and its stack.
 *
 * Attached to one perf event (PERF_COUNT_SW_CPU_CLOCK) a processor. The thread is interrupted while
 * this runs, so nothing of its own changes meanwhile. Needs Linux 5.10. `cargo xtask bpf` builds it.
 */
#include <linux/bpf.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "variable.h"

/* bpf_get_stack and bpf_probe_read_* are for programs under the GPL alone. */
char LICENSE[] SEC("license") = "GPL";

/* Set before the program is loaded. */
volatile const __u32 whole_machine = 0; /* else the processes of `targets` alone */
volatile const __u32 with_children = 0; /* processes that a target forks become targets */
volatile const __u32 user_stacks = 0;
volatile const __u32 kernel_stacks = 0;
volatile const __u32 max_record = 640; /* bytes, header included, RECORD_LIMIT at most */
/* The recorder's PID namespace, 0 for the first one. */
volatile const __u64 namespace_device = 0;
volatile const __u64 namespace_inode = 0;

/* The kernel's default for kernel.perf_event_max_stack. */
#define MAX_FRAMES 127
#define STACK_SIZE (MAX_FRAMES * 8)
/* Parts start below this: a power of two above the largest sum of all parts. */
#define PARTS_LIMIT 8192

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

struct scratch {
    struct event_head head;
    __u8 parts[PARTS_LIMIT + RECORD_LIMIT];
};

/* Of the perf event's programs alone: they interrupt programs of other types. */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct scratch);
} sample_scratch SEC(".maps");

static __always_inline void count_lost(__u32 which)
{
    __u64 *counter = bpf_map_lookup_elem(&lost, &which);
    if (counter)
        *counter += 1;
}

/* Process and thread id as the recorder sees them; false for a process that it can't see. */
static __always_inline int ids(__u32 *pid, __u32 *tid)
{
    if (namespace_inode) {
        struct bpf_pidns_info info = {};
        if (bpf_get_ns_current_pid_tgid(namespace_device, namespace_inode, &info, sizeof info))
            return 0;
        *pid = info.tgid;
        *tid = info.pid;
    } else {
        __u64 both = bpf_get_current_pid_tgid();
        *pid = both >> 32;
        *tid = (__u32)both;
    }
    return 1;
}

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

static __always_inline int read_user(void *to, __u32 size, __u64 from,
                                     void *task __attribute__((unused)))
{
    return bpf_probe_read_user(to, size, (const void *)from);
}

/* The step that finds the native context. Of several definitions the first with a valid record
 * counts, else the first that says anything. */
static __always_inline void native_context(struct scratch *scratch, const struct target *target)
{
    struct event_head *head = &scratch->head;
    struct part_head *part = (void *)scratch->parts;
    struct task_struct *task = (void *)bpf_get_current_task();
    __u64 tp = BPF_CORE_READ(task, THREAD_POINTER);
    __u8 outcome = OUTCOME_DETACHED;
    /* A thread that has none yet has no thread-local storage. */
    for (__u32 i = 0; tp && i < MAX_PLACES; i++) {
        if (i >= target->places)
            break;
        __u8 found;
        __u64 record = pointer(&target->place[i], tp, task, &found);
        if (record)
            found = read_record(part, record, max_record, task);
        if (outcome == OUTCOME_DETACHED || found == OUTCOME_ATTACHED)
            outcome = found;
        if (found == OUTCOME_ATTACHED) {
            head->source = SOURCE_NATIVE;
            head->size = sizeof *part + padded(part->size);
            break;
        }
    }
    head->outcome = outcome;
}

static __always_inline struct part_head *next_part(struct scratch *scratch)
{
    __u32 at = scratch->head.size;
    HIDE(at);
    at &= PARTS_LIMIT - 1;
    return (void *)(scratch->parts + at);
}

static __always_inline long add_stack(void *context, struct scratch *scratch, __u16 kind, __u64 flags)
{
    struct part_head *part = next_part(scratch);
    long size = bpf_get_stack(context, part + 1, STACK_SIZE, flags);
    if (size <= 0)
        return size;
    part->kind = kind;
    part->size = size;
    part->reserved = 0;
    scratch->head.size += sizeof *part + size;
    return size;
}

/* The last step: stacks, and out. */
static __always_inline void finish(void *context, struct scratch *scratch)
{
    struct event_head *head = &scratch->head;
    if (user_stacks) {
        long size = add_stack(context, scratch, PART_USER_STACK, BPF_F_USER_STACK);
        if (size <= 0)
            head->flags |= EVENT_NO_USER_STACK;
        else if (size == STACK_SIZE)
            head->flags |= EVENT_TRUNCATED_STACK;
    }
    if (kernel_stacks && !(head->flags & EVENT_USER_MODE))
        add_stack(context, scratch, PART_KERNEL_STACK, 0);
    __u32 size = head->size;
    HIDE(size);
    size &= PARTS_LIMIT - 1;
    /* Waking the recorder each time would cost more than all of the above. */
    if (bpf_ringbuf_output(&events, scratch, sizeof *head + size, BPF_RB_NO_WAKEUP))
        count_lost(COUNTER_SAMPLES);
}

SEC("perf_event")
int sample(void *context)
{
    __u32 zero = 0, pid, tid;
    if (!ids(&pid, &tid))
        return 0;
    const struct target *target = bpf_map_lookup_elem(&targets, &pid);
    if (!target && !whole_machine)
        return 0;
    struct scratch *scratch = bpf_map_lookup_elem(&sample_scratch, &zero);
    if (!scratch)
        return 0;
    struct event_head *head = &scratch->head;
    head->time = bpf_ktime_get_ns();
    head->detail = 0;
    head->cpu = bpf_get_smp_processor_id();
    head->pid = pid;
    head->tid = tid;
    head->size = 0;
    head->kind = EVENT_ON_CPU;
    head->outcome = OUTCOME_NONE;
    head->source = SOURCE_NONE;
    head->flags = user_mode(context) ? EVENT_USER_MODE : 0;
    head->serial = 0;
    bpf_get_current_comm(head->comm, sizeof head->comm);
    if (target) {
        head->serial = target->serial;
        if (target->places)
            native_context(scratch, target);
    }
    finish(context, scratch);
    return 0;
}

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
        count_lost(COUNTER_PROCESSES);
}

/* struct task_struct *task, u64 clone_flags; in the context of the parent. */
SEC("raw_tp/task_newtask")
int task_newtask(struct bpf_raw_tracepoint_args *context)
{
    /* From <linux/sched.h>. */
    const __u64 clone_thread = 0x00010000;
    __u32 parent, tid;
    if (!with_children || namespace_inode || context->args[1] & clone_thread || !ids(&parent, &tid))
        return 0;
    if (!bpf_map_lookup_elem(&targets, &parent))
        return 0;
    /* A child inherits no process context: what it is to be told of comes when it publishes. */
    static const struct target nothing = {};
    __u32 child = BPF_CORE_READ((struct task_struct *)context->args[0], tgid);
    bpf_map_update_elem(&targets, &child, &nothing, BPF_ANY);
    tell(EVENT_FORK, child, child, parent);
    return 0;
}

/* struct task_struct *task, pid_t old_pid, struct linux_binprm *program */
SEC("raw_tp/sched_process_exec")
int sched_process_exec(void *context __attribute__((unused)))
{
    __u32 pid, tid;
    if (!ids(&pid, &tid))
        return 0;
    struct target *target = bpf_map_lookup_elem(&targets, &pid);
    if (target) {
        target->places = 0;
        target->serial = 0;
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
    if (BPF_CORE_READ(task, signal, live.counter) != 0 || !ids(&pid, &tid))
        return 0;
    if (!whole_machine && !bpf_map_lookup_elem(&targets, &pid))
        return 0;
    bpf_map_delete_elem(&targets, &pid);
    tell(EVENT_EXIT, pid, tid, 0);
    return 0;
}
