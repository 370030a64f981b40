/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* How events get to the recorder; see src/ebpf/rings.rs.
 *
 * Each CPU has a ring of its own for samples, in memory that the recorder has mapped: the clock's program
 * is its only writer, so it takes no lock, and a sample takes no more bytes than it has. The kernel's ring
 * buffer takes the other events, and the samples of a CPU that has no ring.
 */
#ifndef RING_H
#define RING_H

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "event.h"

/* A ring is a row of segments. A sample lies in one of them: it begins in the next one if less than
 * SAMPLE_LIMIT is left. */
#define SEGMENT_SIZE 65536ULL
/* What a sample takes at most, bytes: a head, PARTS_LIMIT and PART_LIMIT (steps.h). */
#define SAMPLE_LIMIT 21568ULL

/* Of how many targets each CPU knows the pids. */
#define FEW_TARGETS 8

/* What a CPU needs for each sample, in one cache line. Positions are bytes since the start. */
struct cpu {
    __u64 head;     /* where the next sample begins: the program's */
    __u64 tail;     /* the recorder's position when the program read it last */
    __u32 first;    /* segment of its ring */
    __u32 segments; /* a power of two; 0 if the CPU has no ring */
    __u32 pids[FEW_TARGETS]; /* the same for all CPUs; 0 for none (sample.h) */
    __u64 found;    /* the program's, for a moment */
    __u64 unused[8]; /* CPUs fetch lines in pairs */
    __u64 read; /* up to where the recorder has read: written by it alone */
    __u64 unused_too[15];
};

struct segment {
    __u8 bytes[SEGMENT_SIZE];
};

/* Set before the program is loaded: whether there are rings. */
volatile const __u32 rings = 0;

/* Their numbers of entries are set when the program is loaded: the possible CPUs, and the segments of all
 * rings. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct cpu);
} cpus SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct segment);
} segments SEC(".maps");

/* The kernel's ring buffer. Its size is set when the program is loaded. */
struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 1 << 20);
} events SEC(".maps");

enum counter {
    COUNTER_SAMPLES = 0,   /* samples for which there was no room */
    COUNTER_PROCESSES = 1, /* the same for events of processes */
    COUNTER_OUTSIDE = 2,   /* samples of threads outside of the recorder's PID namespace */
    COUNTER_TARGETS = 3,   /* children that are not sampled: there are too many targets */
    COUNTERS
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, COUNTERS);
    __type(key, __u32);
    __type(value, __u64);
} counters SEC(".maps");

static __always_inline void count(__u32 which)
{
    __u64 *counter = bpf_map_lookup_elem(&counters, &which);
    if (counter)
        *counter += 1;
}

static __always_inline struct cpu *this_cpu(void)
{
    __u32 number = bpf_get_smp_processor_id();
    return bpf_map_lookup_elem(&cpus, &number);
}

static __always_inline int has_ring(const struct cpu *cpu)
{
    return rings && cpu->segments;
}

/* Where the next sample begins in the CPU's ring; 0 if there is no room for the largest one. */
static __always_inline struct event_head *reserve(struct cpu *cpu, __u64 *position)
{
    __u64 at = cpu->head, size = cpu->segments * SEGMENT_SIZE;
    if ((at & (SEGMENT_SIZE - 1)) > SEGMENT_SIZE - SAMPLE_LIMIT)
        at = (at | (SEGMENT_SIZE - 1)) + 1;
    if (at + SAMPLE_LIMIT - cpu->tail > size) {
        cpu->tail = *(volatile __u64 *)&cpu->read;
        if (at + SAMPLE_LIMIT - cpu->tail > size)
            return 0;
    }
    __u32 index = cpu->first + (at / SEGMENT_SIZE & (cpu->segments - 1));
    struct segment *segment = bpf_map_lookup_elem(&segments, &index);
    *position = at;
    at &= SEGMENT_SIZE - 1;
    HIDE(at);
    if (!segment || at > SEGMENT_SIZE - SAMPLE_LIMIT)
        return 0;
    return (void *)(segment->bytes + at);
}

/* Passes a sample on that begins at the position and has parts of this size, a multiple of 8. */
static __always_inline void publish(struct cpu *cpu, __u64 position, __u64 size)
{
    __u64 head = position + sizeof(struct event_head) + size;
    /* The recorder may see the head only when it can see the sample. */
#if defined(__TARGET_ARCH_x86)
    asm volatile("" ::: "memory");
    *(volatile __u64 *)&cpu->head = head;
#else
    /* r1 = atomic_xchg(&cpu->head, r1), which orders what is before it: Linux 5.12. The compiler has no
     * name for it unless it may use everything that is as new. */
    asm volatile("r2 = %0\n"
                 "r1 = %1\n"
                 ".8byte 0x000000e1000012db\n"
                 :
                 : "r"(cpu), "r"(head)
                 : "r1", "r2", "memory");
#endif
}

#endif
