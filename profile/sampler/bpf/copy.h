/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* A copy of the stack of a thread whose code has rows that are not there yet: the recorder walks it by the tables of the
 * files (src/second_walk). Layouts are shared with src/ebpf/abi.rs.
 *
 * The kernel's ring buffer takes it, a page at a time, before the sample is published.
 */
#ifndef COPY_H
#define COPY_H

#include "unwind.h"

/* Pages that are copied at most: stacks of programs that start are a few pages deep. */
#define COPIED_PAGES 16
/* Below the stack pointer: what leaf functions keep there, and registers that a return has just restored. */
#define BELOW_STACK 256
/* Bytes of code before the instruction, and from it on. */
#define COPIED_CODE 32

enum copied_kind { COPIED_THREAD = 1, COPIED_PAGE = 2 };

struct copied_head {
    __u64 number; /* of the copy, on its CPU: `detail` of the sample */
    __u32 cpu;
    __u32 kind;
};

struct copied_thread {
    struct copied_head head;
    __u64 registers[40]; /* by DWARF's numbers, and the instruction pointer behind them (PC) */
    __u64 code_before;   /* whether there is code before the instruction */
    __u64 code_behind;   /* and from it on */
    __u8 code[2 * COPIED_CODE];
};

struct copied_page {
    struct copied_head head;
    __u64 address;
    __u8 bytes[PAGE];
};

/* The object's type information does not have them: src/ebpf/abi.rs asserts the same. */
_Static_assert(sizeof(struct copied_head) == 16, "copied_head");
_Static_assert(__builtin_offsetof(struct copied_thread, code_before) == 336, "code_before");
_Static_assert(sizeof(struct copied_thread) == 416, "copied_thread");
_Static_assert(__builtin_offsetof(struct copied_page, bytes) == 24, "bytes");
_Static_assert(sizeof(struct copied_page) == 4120, "copied_page");

/* Its size is set when the program is loaded. */
struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 4096);
} copies SEC(".maps");

/* Set before the program is loaded. */
volatile const __u32 copies_stacks = 0;

/* Copies the pages of a stack from one address to another, as far as they can be read. */
static __always_inline void copy_pages_of(__u64 number, __u64 from, __u64 to)
{
    __u64 address = from & ~(PAGE - 1);
#pragma clang loop unroll(disable)
    for (int i = 0; i < COPIED_PAGES; i++, address += PAGE) {
        if (address >= to)
            return;
        struct copied_page *page = bpf_ringbuf_reserve(&copies, sizeof *page, 0);
        if (!page)
            return;
        page->head.number = number;
        page->head.cpu = bpf_get_smp_processor_id();
        page->head.kind = COPIED_PAGE;
        page->address = address;
        if (bpf_probe_read_user(page->bytes, sizeof page->bytes, (void *)address)) {
            bpf_ringbuf_discard(page, BPF_RB_NO_WAKEUP);
            /* The first one may be behind the end of the stack. */
            if (i)
                return;
        } else {
            bpf_ringbuf_submit(page, BPF_RB_NO_WAKEUP);
        }
    }
}

/* Not static: the verifier checks it once. */
__attribute__((noinline)) int copy_pages(__u64 number, __u64 from, __u64 to)
{
    copy_pages_of(number, from, to);
    return 0;
}

/* Copies the running thread's stack, if the walk has met code whose rows are not there yet. */
static __always_inline void copy_stack(void *context, struct task_struct *task, __u8 flags, int has_loops)
{
    __u32 zero = 0;
    struct unwinder *unwinder = bpf_map_lookup_elem(&unwinders, &zero);
    struct stack *stack = bpf_map_lookup_elem(&stacks, &zero);
    if (!copies_stacks || !unwinder || !stack || !unwinder->lacks_rows ||
        !read_registers(context, task, flags, unwinder->words))
        return;
#if defined(__TARGET_ARCH_x86)
    if (unwinder->words[SAVED_CS] != USER_CS)
        return;
#else
    if (unwinder->words[SAVED_STATE] & 0x1f)
        return;
#endif
    struct copied_thread *thread = bpf_ringbuf_reserve(&copies, sizeof *thread, 0);
    if (!thread)
        return;
    __u64 number = bpf_ktime_get_ns();
    __builtin_memset(thread, 0, sizeof *thread);
    thread->head.number = number;
    thread->head.cpu = bpf_get_smp_processor_id();
    thread->head.kind = COPIED_THREAD;
#pragma unroll
    for (int i = 0; i <= PC; i++)
#if defined(__TARGET_ARCH_x86)
        thread->registers[i] = unwinder->words[saved_order[i]];
#else
        thread->registers[i] = unwinder->words[i];
#endif
    __u64 pc = unwinder->words[SAVED_PC], sp = unwinder->words[SAVED_SP];
    thread->code_before = !bpf_probe_read_user(thread->code, COPIED_CODE, (void *)(pc - COPIED_CODE));
    thread->code_behind = !bpf_probe_read_user(thread->code + COPIED_CODE, COPIED_CODE, (void *)pc);
    bpf_ringbuf_submit(thread, BPF_RB_NO_WAKEUP);
    stack->copy = number;

    /* What is above the first thread's stack are arguments and environment. */
    struct mm_struct *memory = OF_TASK(task, mm);
    __u64 to = sp + COPIED_PAGES * PAGE;
    __u64 start = memory ? BPF_CORE_READ(memory, start_stack) : 0;
    if (start > sp && start < to)
        to = start;
    /* What is above another thread's stack is what the C library keeps of it. */
    __u64 pointer = OF_TASK(task, THREAD_POINTER);
    if (pointer > sp && pointer < to)
        to = pointer;
    if (has_loops)
        copy_pages(number, sp - BELOW_STACK, to);
    else
        copy_pages_of(number, sp - BELOW_STACK, to);
}

#endif
