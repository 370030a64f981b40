/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The helper calls that sampling a thread, its record and its stack needs, and no others: the
 * reference for the sampler's program. Needs Linux 5.11. `cargo xtask bpf` builds it.
 */
#include <linux/bpf.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
#if defined(__TARGET_ARCH_x86)
#define THREAD_POINTER thread.fsbase
struct thread_struct {
    unsigned long fsbase;
};
#elif defined(__TARGET_ARCH_arm64)
#define THREAD_POINTER thread.uw.tp_value
struct thread_struct {
    struct {
        unsigned long tp_value;
    } uw;
};
#endif
struct task_struct {
    int tgid;
    struct thread_struct thread;
};
#pragma clang attribute pop

/* Set before the program is loaded. */
volatile const __u64 offset = 0;      /* of the slot, from the thread pointer */
volatile const __u32 record_size = 0; /* bytes, 640 at most */
volatile const __u32 stacks = 0;

/* The processes to sample. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 16384);
    __type(key, __u32);
    __type(value, __u32);
} targets SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 8 << 20);
} events SEC(".maps");

struct sample {
    __u64 time;
    __u64 head[6];
    __u8 record[640];
    __u64 stack[127];
};

SEC("perf_event")
int reference(void *context)
{
    struct task_struct *task = bpf_get_current_task_btf();
    __u32 pid = task->tgid;
    if (!bpf_map_lookup_elem(&targets, &pid))
        return 0;
    struct sample *sample = bpf_ringbuf_reserve(&events, sizeof *sample, 0);
    if (!sample)
        return 0;
    sample->time = bpf_ktime_get_ns();
    void *record = 0;
    bpf_probe_read_user(&record, sizeof record, (void *)(task->THREAD_POINTER + offset));
    bpf_probe_read_user(sample->record, record_size, record);
    if (stacks)
        bpf_get_stack(context, sample->stack, sizeof sample->stack, BPF_F_USER_STACK);
    bpf_ringbuf_submit(sample, BPF_RB_NO_WAKEUP);
    return 0;
}

/* What any program costs. */
SEC("perf_event")
int empty(void *context __attribute__((unused)))
{
    return 0;
}
