/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Which mappings a process has, among those of all processes (unwind.h). */
#ifndef PROCESS_CODE_H
#define PROCESS_CODE_H

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

/* The mappings of a process, in ascending order. Before them, an entry has the serial as its start: if it
 * has another one, the entries belong to another process by now. A child starts with its parent's. */
struct process_code {
    __u32 first;
    __u32 count;
    __u64 serial; /* of the list; not 0 */
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 8192); /* MAX_PROCESSES in src/ebpf/unwind/mod.rs */
    __type(key, __u32);
    __type(value, struct process_code);
} processes SEC(".maps");

/* Number of processes that have exited or executed another program. A cached entry of `processes` is valid while this
 * is unchanged and its list still has its serial. Any process counts: to find the entry of one is what the cache saves. */
volatile __u64 forgotten_processes = 0;

/* The process executes another program, or ends. */
static __always_inline void forget_code(__u32 pid)
{
    bpf_map_delete_elem(&processes, &pid);
    __sync_fetch_and_add(&forgotten_processes, 1);
}

/* Gives a child the mappings of its parent: most live shorter than the recorder takes to read them. */
static __always_inline void inherit_code(__u32 parent, __u32 child)
{
    const struct process_code *code = bpf_map_lookup_elem(&processes, &parent);
    if (!code)
        return;
    struct process_code copy = *code;
    bpf_map_update_elem(&processes, &child, &copy, BPF_ANY);
}

#endif
