/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The stack of a thread that was interrupted in the process, by its frame pointers.
 *
 * bpf_get_stack reads each frame by itself, through a buffer of the kernel's, and clears what it
 * does not fill: most often twice the cost. Whatever this does not know how to walk is left to it.
 */
#ifndef STACK_H
#define STACK_H

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "event.h"
#include "registers.h"
#include "task.h"

/* The kernel's default for kernel.perf_event_max_stack. */
#define MAX_FRAMES 127
#define STACK_SIZE (MAX_FRAMES * 8)
/* What unwind tables find: a power of two. */
#define MAX_USER_FRAMES 512
#define USER_STACK_SIZE (MAX_USER_FRAMES * 8)

/* Of the stack this much is read at once, at most: a page, which is there as a whole or not at all. Each read takes as
 * long as copying some kilobytes. */
#define CHUNK 4096ULL

/* A frame as compilers lay it out: System V ABI for x86-64, 3.2.2. */
struct frame {
    __u64 next; /* the caller's frame pointer */
    __u64 address;
};

/* Part of the stack. Facts about it are kept here, too: of values in registers the verifier would
 * follow each that they can have, and take seconds for it. */
struct chunk {
    __u64 start; /* its address */
    __u64 end;   /* frames that begin below this are in it as a whole, from its start */
    __u8 bytes[CHUNK + sizeof(struct frame)];
};

struct stack {
    __u64 size;     /* of the addresses that were found, bytes; 0 if it is for bpf_get_stack */
    __u64 max_size; /* of what bpf_get_stack finds, bytes */
    __u64 end;      /* enum stack_end */
    __u64 copy;     /* number of the thread's copied stack (copy.h), 0 if there is none */
    __u64 addresses[MAX_USER_FRAMES];
    struct chunk chunk;
};

/* Only programs of clock events come here, and none interrupts another. */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct stack);
} stacks SEC(".maps");

#if defined(__TARGET_ARCH_x86)
/* What one step of the walk leaves to the next. */
struct frame_walk {
    struct stack *stack;
    __u64 frame;
    __u64 lowest; /* where the frame may be: above those of the functions that it called */
};

/* Keeps the address that a frame returns to as the one at an index, and goes to its caller; 1 at the end. */
static __always_inline long walk_frame(__u32 index, struct frame_walk *walk)
{
    struct stack *stack = walk->stack;
    struct chunk *chunk = &stack->chunk;
    __u64 frame = walk->frame;
    /* Not 0, which the first frame has before it, a multiple of 8, and the process's. */
    if (((frame - 1) & (1ULL << 63 | 7)) != 7 || frame < walk->lowest)
        return 1;
    __u64 at = frame - chunk->start;
    if (at >= chunk->end) {
        __u64 size = CHUNK - (frame & (CHUNK - 1));
        /* 8 bytes are half a frame: the rest is on the next page, perhaps. */
        size += (size - 9) >> 63 << 3;
        if (bpf_probe_read_user(chunk->bytes, size, (void *)frame))
            return 1;
        chunk->start = frame;
        chunk->end = size - 8;
        at = 0;
    }
    const struct frame *found = (void *)(chunk->bytes + (at & (CHUNK - 1)));
    stack->addresses[index & (MAX_USER_FRAMES - 1)] = found->address;
    stack->size = (index + 1) * sizeof stack->addresses[0];
    walk->frame = found->next;
    walk->lowest = frame + sizeof *found;
    return 0;
}

static long frame_step(__u32 index, struct frame_walk *walk)
{
    return walk_frame(index + 1, walk);
}

/* Walks the stack. Without bpf_loop the verifier follows each step. */
static __always_inline void walk_stack(void *context, struct task_struct *task, __u8 flags, int has_loops)
{
    __u32 zero = 0;
    struct stack *stack = bpf_map_lookup_elem(&stacks, &zero);
    if (!stack)
        return;
    /* The memory has no part of a stack yet. */
    __u64 *registers = (void *)stack->chunk.bytes;
    stack->chunk.end = 0;
    if (!read_registers(context, task, flags, registers) || registers[SAVED_CS] != USER_CS)
        return;
    struct frame_walk walk = {
        .stack = stack,
        .frame = registers[SAVED_FP],
        .lowest = registers[SAVED_SP],
    };
    stack->addresses[0] = registers[SAVED_PC];
    stack->size = sizeof stack->addresses[0];
    stack->end = STACK_BY_FRAME_POINTERS;
    if (has_loops) {
        bpf_loop(MAX_FRAMES - 1, frame_step, &walk, 0);
    } else {
        for (int i = 1; i < MAX_FRAMES; i++)
            if (walk_frame(i, &walk))
                break;
    }
    /* A return probe puts another address in the place of one, and the kernel knows which. It finds the same
     * frames, but does not check their order. */
    if (bpf_core_field_exists(task->utask) && OF_TASK(task, utask)) {
        stack->max_size = stack->size;
        stack->size = 0;
    }
}
#else
static __always_inline void walk_stack(void *context __attribute__((unused)),
                                       struct task_struct *task __attribute__((unused)),
                                       __u8 flags __attribute__((unused)),
                                       int has_loops __attribute__((unused)))
{
}
#endif

/* Forgets the stack of the sample before. */
static __always_inline void forget_stack(void)
{
    __u32 zero = 0;
    struct stack *stack = bpf_map_lookup_elem(&stacks, &zero);
    if (stack) {
        stack->size = 0;
        stack->max_size = STACK_SIZE;
        stack->copy = 0;
    }
}

/* Size in bytes, at most, of the stack that bpf_get_stack finds. */
static __always_inline __u64 max_stack_size(void)
{
    __u32 zero = 0;
    const struct stack *stack = bpf_map_lookup_elem(&stacks, &zero);
    return stack ? stack->max_size : STACK_SIZE;
}

/* Number of the thread's copied stack; 0 if there is none. */
static __always_inline __u64 copied_stack(void)
{
    __u32 zero = 0;
    const struct stack *stack = bpf_map_lookup_elem(&stacks, &zero);
    return stack ? stack->copy : 0;
}

/* Copies the stack that was walked; returns its size in bytes, USER_STACK_SIZE at most, 0 if none was
 * walked. */
static __always_inline long walked_stack(void *to, __u16 *end)
{
    __u32 zero = 0;
    const struct stack *stack = bpf_map_lookup_elem(&stacks, &zero);
    if (!stack)
        return 0;
    __u64 size = stack->size;
    HIDE(size);
    /* A stack of no frames has the end of the sample before. */
    if (size == 0 || size > USER_STACK_SIZE || bpf_probe_read_kernel(to, size, stack->addresses))
        return 0;
    *end = stack->end;
    return size;
}

#endif
