/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The user stack of the running thread, by rows of unwind tables; see inspect/unwind, whose walk this
 * repeats in the kernel. Layouts are shared with src/ebpf/unwind/abi.rs.
 *
 * The walk starts from the registers with which the thread has entered the kernel, so that samples in a system
 * call have whole stacks, too. Its steps are taken by bpf_loop, or before Linux 5.17 by programs that call each
 * other (sampler.bpf.c).
 */
#ifndef UNWIND_H
#define UNWIND_H

#include "mapping.h"
#include "process_code.h"
#include "registers.h"
#include "stack.h"
#include "task.h"

/* Rows of one shard, at most 65,536 for each page of 64 KiB (SHARD_ROWS in inspect/unwind). */
#define SHARD_ROWS (1 << 18)
#define SHARD_SHIFT 18
#define MAX_SHARDS 48
/* Pages of 64 KiB of all files. */
#define MAX_PAGES (1 << 18)
/* Executable mappings of all processes, and of one. */
#define MAX_CODE (1 << 15)
#define CODE_STEPS 11 /* of a binary search among 1,024 */
/* Different rules (MAX_RULES in inspect/unwind). */
#define MAX_RULES (1 << 14)
#define GAP 0
/* In the place of GAP, once its code was read (gap_at). */
#define START_GAP 0xfffb
#define PUSHED_GAP 0xfffc
#define SIGNAL_GAP 0xfffd
#define TRAMPOLINE_GAP 0xfffe
#define PLAIN_GAP 0xffff
#define ROW_STEPS 17 /* of a binary search among 65,536 */

/* Frames that one program finds, and how many times it is called for a stack: with those of the runtimes' steps
 * there are 33 tail calls at most (MAX_TAIL_CALL_CNT). */
#define CALL_FRAMES 6
#define MAX_CALLS 24

/* Frames that a loop follows at once. A call of a function for each frame costs more than what it does, where the kernel
 * mitigates speculation; the verifier processes 400 to 600 instructions for each of these. */
#define STEP_FRAMES 8

/* Changes of stacks in one walk: see inspect/unwind/src/walk.rs. */
#define MAX_SWITCHES 64
/* Changes to a lower stack by the frame pointer: MAX_LOWER_STACKS there. */
#define MAX_LOWER_STACKS 4
#define PAGE 4096ULL

struct shard {
    __u16 low[SHARD_ROWS];
    __u16 rule[SHARD_ROWS];
};

struct page_index {
    __u32 first[MAX_PAGES];
};

struct code_list {
    struct code at[MAX_CODE];
};

/* The rule that was found last among the addresses with this hash. */
struct cached_rule {
    __u64 address; /* and in the highest bit, whether a frame returns there: gaps depend on it */
    __u64 serial_and_rule; /* the rule in the lowest 16 bits */
};

/* 64 KiB: stacks of one program have most of their addresses in common. */
#define CACHED_RULES 4096
struct rule_cache {
    struct cached_rule at[CACHED_RULES];
};

enum rule_kind { RULE_GAP = 0, RULE_UNSUPPORTED = 1, RULE_END = 2, RULE_FRAME = 3, RULE_CONTEXT = 4 };
enum cfa_kind { CFA_REGISTER = 0, CFA_MEMORY = 1, CFA_PLT = 2 };
enum saved {
    SAVED_SAME = 0,
    SAVED_AT_CFA = 1,
    SAVED_AT_FRAME_POINTER = 2,
    SAVED_REGISTER = 3,
    SAVED_UNKNOWN = 4,
    SAVED_CFA = 5,
};
enum return_kind { RETURN_AT_CFA = 0, RETURN_REGISTER = 1 };

/* Registers are DWARF's numbers, offsets are in bytes. */
struct rule {
    __u8 kind;
    __u8 cfa;
    __u8 cfa_register;
    __u8 frame_pointer;
    __u8 frame_pointer_register;
    __u8 base;
    __u8 return_address;
    __u8 return_register;
    __s32 cfa_offset;
    __s32 addend; /* CFA_MEMORY; of CFA_PLT: pushed_at; of RULE_CONTEXT: whether a signal interrupted */
    __s32 frame_pointer_offset;
    __s32 base_offset;
    __s32 return_offset;
    __s32 reserved;
};

struct rule_list {
    struct rule at[MAX_RULES];
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
    __uint(max_entries, MAX_SHARDS);
    __type(key, __u32);
    __array(values, struct {
        __uint(type, BPF_MAP_TYPE_ARRAY);
        __uint(map_flags, BPF_F_MMAPABLE);
        __uint(max_entries, 1);
        __uint(key_size, sizeof(__u32));
        __uint(value_size, sizeof(struct shard));
    });
} shards SEC(".maps");

#define ONE_VALUE(name, type_of_value)        \
    struct {                                  \
        __uint(type, BPF_MAP_TYPE_ARRAY);     \
        __uint(map_flags, BPF_F_MMAPABLE);    \
        __uint(max_entries, 1);               \
        __type(key, __u32);                   \
        __type(value, type_of_value);         \
    } name SEC(".maps")

ONE_VALUE(page_index, struct page_index);
ONE_VALUE(code, struct code_list);
ONE_VALUE(rules, struct rule_list);

/* One for each CPU, whose number is set when the program is loaded: values of that size are refused in a
 * per-CPU array. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct rule_cache);
} rule_caches SEC(".maps");

#if defined(__TARGET_ARCH_x86)
#define SP 7
#define FP 6
#define BASE 3
#define PC 16
#define LAST_REGISTER 15
#define ADDRESS_MASK ~0ULL
/* <sys/ucontext.h>, `gregs` of `uc_mcontext`. */
#define CONTEXT_OFFSET 40
#define CONTEXT_REGISTERS 17
#define SIGNAL_CONTEXT 0
/* Where saved registers have those of DWARF's numbers, and last the instruction pointer. */
static const __u8 saved_order[] = {10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0, 16};
/* Which registers a context has, one after the other. */
static const __u8 context_order[] = {8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, 16};
#elif defined(__TARGET_ARCH_arm64)
#define SP 31
#define FP 29
#define LINK 30
#define PC 32
#define LAST_REGISTER 31
/* Pointer authentication signs in the other bits: see inspect/unwind/src/arch/aarch64. */
#define ADDRESS_MASK ((1ULL << 48) - 1)
/* arch/arm64/include/uapi/asm/{ucontext,sigcontext}.h: x0 to x30, sp, pc. */
#define CONTEXT_OFFSET 184
#define CONTEXT_REGISTERS 33
/* From the stack pointer to the context: arch/arm64/kernel/signal.c, `struct rt_sigframe`. */
#define SIGNAL_CONTEXT 128
/* mov x8, #139; svc #0: what signal handlers return to */
#define SIGRETURN 0xd4000001d2801168ULL
#endif

struct unwinder {
    __u64 registers[64]; /* by DWARF's numbers; masks are powers of two */
    __u64 known;         /* a bit for each of them */
    __u64 pc;
    __u64 is_caller;
    __u64 by_frame_pointer;
    __u64 switches;
    __u64 lower_stacks;
    __u64 end;
    /* Where the walk is, from one program to the next. */
    __u32 calls;
    __u32 frames;
    /* The entry of the process that this CPU sampled last: a search in `processes` takes 60 ns. */
    __u64 serial;
    __u32 first;
    __u32 count;
    __u64 forgotten; /* `forgotten_processes` */
    __u64 pid;
    struct code code; /* the mapping that was found last */
    __u64 is_listed;  /* whether it is in the list, with its rows: else it may be another one by the next sample */
    __u64 lacks_rows; /* whether the walk has met one of a file whose rows are not there yet */
    __u64 words[40];
    __u64 chunk_start;
    __u64 chunk_size;
    __u64 chunk_at;
    __u8 chunk[CHUNK];
};

/* Only programs of clock events come here, and none interrupts another. */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct unwinder);
} unwinders SEC(".maps");

/* What a walk needs, found once in a program. */
struct walk {
    struct unwinder *unwinder;
    struct stack *stack;
    const struct code_list *code;
    const struct page_index *pages;
    const struct rule_list *rules;
    struct rule_cache *cache;
    __u64 serial;
    __u32 first;
    __u32 count;
};

/* All bits if a is not below b, else none; both below 2^63. A branch would double the paths that the
 * verifier follows, in each step of a search. */
static __always_inline __u64 not_below(__u64 a, __u64 b)
{
    __s64 mask = ~((__s64)(a - b) >> 63);
    HIDE(mask);
    return mask;
}

/* Reads a word of the stack: through a copy of a part of it that is within a page. */
static __always_inline int read_word(struct unwinder *unwinder, __u64 address, __u64 *value)
{
    if (address & 7)
        return bpf_probe_read_user(value, sizeof *value, (void *)address) != 0;
    __u64 at = address - unwinder->chunk_start;
    if (at >= unwinder->chunk_size) {
        __u64 size = CHUNK - (address & (CHUNK - 1));
        unwinder->chunk_size = 0;
        if (bpf_probe_read_user(unwinder->chunk, size, (void *)address))
            return 1;
        unwinder->chunk_start = address;
        unwinder->chunk_size = size;
        at = 0;
    }
    at &= CHUNK - 8;
    *value = *(__u64 *)(unwinder->chunk + at);
    return 0;
}

/* Finds the mapping at an address that the lists do not have; false if there is none. Not static: the verifier checks it
 * once, and not in each step. */
__attribute__((noinline)) int find_unlisted(__u64 address)
{
    __u32 zero = 0;
    struct unwinder *unwinder = bpf_map_lookup_elem(&unwinders, &zero);
    return unwinder && find_mapping(address, &unwinder->code, &unwinder->lacks_rows);
}

/* Finds the mapping at an address; false if there is none. */
static __always_inline int find_code(const struct walk *walk, struct unwinder *unwinder, __u64 address,
                                     int has_loops)
{
    if (address - unwinder->code.start < unwinder->code.end - unwinder->code.start)
        return 1;
    if (address >> 63)
        return 0;
    __u64 first = walk->first;
    __u64 left = walk->count;
    for (int i = 0; i < CODE_STEPS && left > 1; i++) {
        __u64 half = left >> 1;
        __u64 middle = (first + half) & (MAX_CODE - 1);
        first += half & not_below(address, walk->code->at[middle].start);
        left -= half;
    }
    const struct code *code = &walk->code->at[first & (MAX_CODE - 1)];
    if (address < code->start || address >= code->end) {
        unwinder->is_listed = 0;
        return has_loops && find_unlisted(address);
    }
    unwinder->code = *code;
    /* The list has rows by the next sample, perhaps. Without branches, see `not_below`. */
    __u64 awaits_rows = (unwinder->code.page + 1ULL) >> 32;
    HIDE(awaits_rows);
    unwinder->lacks_rows |= awaits_rows;
    unwinder->is_listed = !awaits_rows;
    return 1;
}

/* The index of the rule at an address in the mapping that was found. */
static __always_inline __u32 find_rule(const struct walk *walk, struct unwinder *unwinder, __u64 address)
{
    __u64 offset = address - unwinder->code.base;
    __u64 page = offset >> 16;
    if (page >= unwinder->code.pages)
        return GAP;
    page += unwinder->code.page;
    __u32 start = walk->pages->first[page & (MAX_PAGES - 1)];
    __u32 end = walk->pages->first[(page + 1) & (MAX_PAGES - 1)];
    __u32 number = start >> SHARD_SHIFT;
    if (end >> SHARD_SHIFT != number)
        end = (number + 1) << SHARD_SHIFT;
    __u32 left = end - start;
    if (left == 0)
        return GAP;
    void *map = bpf_map_lookup_elem(&shards, &number);
    if (!map)
        return GAP;
    __u32 zero = 0;
    const struct shard *shard = bpf_map_lookup_elem(map, &zero);
    if (!shard)
        return GAP;
    __u64 low = offset & 0xffff;
    __u64 at = start;
    __u64 rows = left;
    for (int i = 0; i < ROW_STEPS && rows > 1; i++) {
        __u64 half = rows >> 1;
        __u64 middle = (at + half) & (SHARD_ROWS - 1);
        at += half & not_below(low, shard->low[middle]);
        rows -= half;
    }
    at &= SHARD_ROWS - 1;
    return shard->low[at] <= low ? shard->rule[at] : GAP;
}

static __always_inline int is_known(const struct unwinder *unwinder, __u32 number)
{
    return unwinder->known >> (number & 63) & 1;
}

static __always_inline long end(struct unwinder *unwinder, enum stack_end why)
{
    unwinder->end = why;
    return 1;
}

/* Takes the registers of the frame's caller from a ucontext_t. */
static __always_inline long from_context(struct unwinder *unwinder, __u64 context, __u64 signal)
{
    if (++unwinder->switches > MAX_SWITCHES)
        return end(unwinder, STACK_BAD_TABLES);
    if (bpf_probe_read_user(unwinder->words, CONTEXT_REGISTERS * 8, (void *)(context + CONTEXT_OFFSET)))
        return end(unwinder, STACK_UNREADABLE);
#if defined(__TARGET_ARCH_x86)
#pragma unroll
    for (int i = 0; i < CONTEXT_REGISTERS; i++)
        unwinder->registers[context_order[i]] = unwinder->words[i];
#else
#pragma unroll
    for (int i = 0; i < CONTEXT_REGISTERS; i++)
        unwinder->registers[i] = unwinder->words[i];
#endif
    unwinder->known = (2ULL << LAST_REGISTER) - 1;
    unwinder->pc = unwinder->registers[PC];
    unwinder->is_caller = !signal;
    unwinder->by_frame_pointer = 0;
    return 0;
}

/* Whether the instruction before an address is a call (`is_behind_call` in inspect/unwind/src/arch). Without branches, each
 * of which would double the paths that the verifier follows. */
static __always_inline int is_behind_call(__u64 address)
{
    __u64 before = 0, found;
    if (bpf_probe_read_user(&before, sizeof before, (void *)(address - sizeof before)))
        return 0;
#if defined(__TARGET_ARCH_x86)
    /* Each is below zero if it is such a call: a direct one, and indirect ones of 2, 3, 4, 6 and 7 bytes. */
    found = ((before >> 24 & 0xff) ^ 0xe8) - 1;
    found |= ((before >> 48 & 0xf8ff) ^ 0x10ff) - 1;
    found |= ((before >> 48 & 0xf8ff) ^ 0xd0ff) - 1;
    found |= ((before >> 40 & 0xf8ff) ^ 0x50ff) - 1;
    found |= ((before >> 40 & 0xffff) ^ 0x14ff) - 1;
    found |= ((before >> 32 & 0xffff) ^ 0x54ff) - 1;
    found |= ((before >> 16 & 0xffff) ^ 0x15ff) - 1;
    found |= ((before >> 16 & 0xf8ff) ^ 0x90ff) - 1;
    found |= ((before >> 8 & 0x7fff) ^ 0x14ff) - 1;
#else
    /* bl; blr; blr with pointer authentication */
    found = ((before >> 58) ^ 0x25) - 1;
    found |= ((before >> 32 & 0xfffffc1f) ^ 0xd63f0000) - 1;
    found |= ((before >> 32 & 0xfefff800) ^ 0xd63f0800) - 1;
#endif
    HIDE(found);
    return found >> 63;
}

#if defined(__TARGET_ARCH_x86)
/* Bytes of code before a return address in which the frame pointer may be cleared (MAX_BEFORE_CALL there). */
#define BEFORE_CALL 24

/* Whether a frame has cleared the frame pointer just before its call (`clears_frame_pointer` in inspect/unwind/src/arch). */
static __always_inline int has_cleared_frame_pointer(struct unwinder *unwinder)
{
    const __u8 *code = (void *)unwinder->words;
    __u64 found = 0;
    if (!unwinder->is_caller ||
        bpf_probe_read_user(unwinder->words, BEFORE_CALL, (void *)(unwinder->pc - BEFORE_CALL)))
        return 0;
    /* sub %rbp, %rbp; without branches, see above */
#pragma unroll
    for (int i = 0; i <= BEFORE_CALL - 3; i++)
        found |= (((__u64)*(__u16 *)(code + i) ^ 0x2948) | (code[i + 2] ^ 0xed)) - 1;
    HIDE(found);
    return found >> 63;
}
#else
static __always_inline int has_cleared_frame_pointer(struct unwinder *unwinder __attribute__((unused)))
{
    return 0;
}
#endif

/* Goes to the caller that the frame pointer leads to. */
static __always_inline long by_frame_pointer(struct unwinder *unwinder)
{
    __u64 fp = unwinder->registers[FP], former, address;
    if (!is_known(unwinder, FP))
        return end(unwinder, STACK_NO_TABLES);
    /* Both ABIs mark the outermost frame so; but code that has rows uses the register for anything. */
    if (fp == 0 && (unwinder->by_frame_pointer || has_cleared_frame_pointer(unwinder)))
        return end(unwinder, unwinder->lacks_rows ? STACK_NO_TABLES : STACK_START);
    if (fp & 7 || fp >> 63)
        return end(unwinder, STACK_NO_TABLES);
    /* A frame of another stack, or the register holds other data. */
    int is_lower = fp < unwinder->registers[SP];
    if (is_lower && ++unwinder->lower_stacks > MAX_LOWER_STACKS)
        return end(unwinder, STACK_NO_TABLES);
    if (read_word(unwinder, fp, &former) || read_word(unwinder, fp + 8, &address))
        return end(unwinder, is_lower ? STACK_NO_TABLES : STACK_UNREADABLE);
    if (is_lower && (former & 7 || !is_behind_call(address & ADDRESS_MASK)))
        return end(unwinder, STACK_NO_TABLES);
    unwinder->registers[SP] = fp + 16;
    unwinder->registers[FP] = former;
    unwinder->known = 1ULL << SP | 1ULL << FP;
    unwinder->pc = address & ADDRESS_MASK;
    unwinder->is_caller = 1;
    unwinder->by_frame_pointer = 1;
    return 0;
}

/* The kind of a gap in which the thread was interrupted. At the start of a function and at its return, the frame pointer is
 * its caller's (`without_frame` in inspect/unwind/src/arch). */
#if defined(__TARGET_ARCH_x86)
static __always_inline __u32 interrupted_gap_at(struct unwinder *unwinder)
{
    __u64 next = 0;
    __u8 before = 0;
    /* No more than is on the page: the next one may not be there. */
    __u64 size = PAGE - (unwinder->pc & (PAGE - 1));
    if (size > sizeof next)
        size = sizeof next;
    if (bpf_probe_read_user(&next, size, (void *)unwinder->pc))
        return PLAIN_GAP;
    /* mov %rsp, %rbp, in both of its forms, behind push %rbp, and both */
    __u32 move = next & 0xffffff, push_and_move = next >> 8 & 0xffffff;
    if (move == 0xe58948 || move == 0xec8b48)
        return !bpf_probe_read_user(&before, sizeof before, (void *)(unwinder->pc - 1)) && before == 0x55
                   ? PUSHED_GAP
                   : PLAIN_GAP;
    int is_push = (next & 0xff) == 0x55 && (push_and_move == 0xe58948 || push_and_move == 0xec8b48);
    /* libffi's closures: endbr64, lea -11(%rip), %r10 and jmp *7(%rip); before 3.4, lea -7(%rip), %r10 and jmp *3(%rip) */
    __u64 lea = next & ((1ULL << 56) - 1), jump = next & ((1ULL << 48) - 1);
    int is_closure = lea == 0xfffffff5158d4cULL || lea == 0xfffffff9158d4cULL || jump == 0x725ff || jump == 0x325ff;
    /* endbr64 before push %rbp or lea: it is at the targets of jumps, too */
    int is_marked = (__u32)next == 0xfa1e0ff3 && ((next >> 32 & 0xff) == 0x55 || (next >> 32 & 0xffffff) == 0x158d4c);
    int is_return = (next & 0xff) == 0xc3;
    /* jmp over a call at the start of a function of Erlang, where its debugger can set a breakpoint */
    int is_start_of_erlang = (next & 0xfffcffff) == 0xe80006eb;
    if (is_push || is_marked || is_closure || is_return || is_start_of_erlang)
        return START_GAP;
    /* leave before jmp or dec %r14, and both before jl: Erlang counts a function's return so */
    int is_jump = (next & 0xff) == 0xe9, is_count = (next & 0xffffff) == 0xceff49, is_less = (next & 0xffff) == 0x8c0f;
    __u32 former = 0;
    if (!(is_jump || is_count || is_less) ||
        bpf_probe_read_user(&former, sizeof former, (void *)(unwinder->pc - sizeof former)))
        return PLAIN_GAP;
    /* The bytes before can be the end of another instruction: the word at the stack pointer must be a return address. */
    __u64 address = 0;
    if (!(is_less ? former == 0xceff49c9 : former >> 24 == 0xc9) ||
        bpf_probe_read_user(&address, sizeof address, (void *)unwinder->registers[SP]))
        return PLAIN_GAP;
    return is_behind_call(address) ? START_GAP : PLAIN_GAP;
}
#else
static __always_inline __u32 interrupted_gap_at(struct unwinder *unwinder)
{
    __u64 code = 0;
    __u32 next = 0, before = 0;
    /* A signal handler is over, but for these instructions: the thread is between them, or in the call. */
#pragma unroll
    for (int i = 0; i <= 2; i++)
        if (!bpf_probe_read_user(&code, sizeof code, (void *)(unwinder->pc - 4 * i)) && code == SIGRETURN)
            return SIGNAL_GAP;
    if (bpf_probe_read_user(&next, sizeof next, (void *)unwinder->pc))
        return PLAIN_GAP;
    /* mov x29, sp behind stp x29, x30, [sp, #-n]! */
    if (next == 0x910003fd) {
        if (bpf_probe_read_user(&before, sizeof before, (void *)(unwinder->pc - 4)) ||
            (before & 0xffe07fff) != 0xa9a07bfd)
            return PLAIN_GAP;
        unwinder->words[0] = before; /* for from_start */
        return PUSHED_GAP;
    }
    /* bti c; paciasp; ret */
    return (next & 0xffe07fff) == 0xa9a07bfd || next == 0xd503245f || next == 0xd503233f || next == 0xd65f03c0
               ? START_GAP
               : PLAIN_GAP;
}
#endif

/* What a gap is, by the code that the frame returns to: what signal handlers return to, in C libraries without
 * tables for it, a trampoline, or any other; GAP if it cannot be read now. */
static __always_inline __u32 gap_at(struct unwinder *unwinder)
{
    __u64 code = 0;
    if (!unwinder->is_caller)
        return interrupted_gap_at(unwinder);
    /* No more than is on the page: the next one may not be there. */
    __u64 size = PAGE - (unwinder->pc & (PAGE - 1));
    if (size > sizeof code)
        size = sizeof code;
    if (bpf_probe_read_user(&code, size, (void *)unwinder->pc))
        return GAP;
#if defined(__TARGET_ARCH_x86)
    /* mov $15, %rax; syscall (its first byte); mov $15, %eax; syscall */
    if (code == 0x0f0000000fc0c748ULL || (code & ~0ULL >> 8) == 0x050f0000000fb8ULL)
        return SIGNAL_GAP;
    /* add $8, %rsp; ret: see `trampoline` in inspect/unwind/src/arch */
    return (code & ~0ULL >> 24) == 0xc308c48348ULL ? TRAMPOLINE_GAP : PLAIN_GAP;
#else
    return code == SIGRETURN ? SIGNAL_GAP : PLAIN_GAP;
#endif
}

/* Goes to the caller of a frame of this size. Its return address is at this offset from the stack pointer. */
static __always_inline long by_stack_pointer(struct unwinder *unwinder, __u64 size, __u64 return_address)
{
    __u64 sp = unwinder->registers[SP];
    if (read_word(unwinder, sp + return_address, &unwinder->pc))
        return end(unwinder, STACK_UNREADABLE);
    unwinder->registers[SP] = sp + size;
    unwinder->known &= 1ULL << SP | 1ULL << FP;
    unwinder->pc &= ADDRESS_MASK;
    unwinder->is_caller = 1;
    unwinder->by_frame_pointer = 0;
    return 0;
}

/* Goes to the caller of a function without tables that has just started or returns, or has pushed the frame pointer. */
static __always_inline long from_start(struct unwinder *unwinder, int has_pushed)
{
#if defined(__TARGET_ARCH_x86)
    return has_pushed ? by_stack_pointer(unwinder, 16, 8) : by_stack_pointer(unwinder, 8, 0);
#else
    if (has_pushed)
        return by_stack_pointer(unwinder, 8 * (128 - (unwinder->words[0] >> 15 & 127)), 8);
    unwinder->pc = unwinder->registers[LINK] & ADDRESS_MASK;
    unwinder->known &= 1ULL << SP | 1ULL << FP;
    unwinder->is_caller = 1;
    unwinder->by_frame_pointer = 0;
    return 0;
#endif
}

#if defined(__TARGET_ARCH_x86)
/* Size of glibc's __start_context up to its last call, bytes (MAX_REACH in inspect/unwind/src/walk.rs). */
#define START_REACH 26

/* Whether the frame that was kept last is __start_context, which glibc's makecontext puts below a coroutine's
 * first function (`starts` in inspect/unwind/src/arch): it has no caller. */
static __always_inline int is_start_of_coroutine(struct unwinder *unwinder, const struct stack *stack,
                                                 __u32 index)
{
    __u64 address = stack->addresses[(index - 1) & (MAX_USER_FRAMES - 1)] & ~FRAME_INTERRUPTED;
    const __u8 *code = (void *)unwinder->words;
    if (bpf_probe_read_user(unwinder->words, START_REACH + 14, (void *)(address - START_REACH + 1)))
        return 0;
    /* mov %rbx, %rsp; mov (%rsp), %rdi; test %rdi, %rdi */
#pragma unroll
    for (int i = 0; i < START_REACH; i++)
        if (*(__u64 *)(code + i) == 0x48243c8b48dc8948ULL && *(__u16 *)(code + i + 8) == 0xff85)
            return 1;
    return 0;
}
#else
static __always_inline int is_start_of_coroutine(
    struct unwinder *unwinder __attribute__((unused)), const struct stack *stack __attribute__((unused)),
    __u32 index __attribute__((unused)))
{
    return 0;
}
#endif

/* Goes to the caller by the rule of a frame. */
static __always_inline long by_rule(struct unwinder *unwinder, const struct rule *rule)
{
    __u64 sp = unwinder->registers[SP], cfa, address;
    int by_sp = rule->cfa_register == SP;
    if (rule->cfa == CFA_PLT) {
        cfa = sp + ((unwinder->pc & 15) >= (__u32)rule->addend ? 16 : 8);
        by_sp = 1;
    } else {
        if (!is_known(unwinder, rule->cfa_register))
            return end(unwinder, STACK_BAD_TABLES);
        cfa = unwinder->registers[rule->cfa_register & 63] + rule->cfa_offset;
        if (rule->cfa == CFA_MEMORY) {
            if (read_word(unwinder, cfa, &cfa))
                return end(unwinder, STACK_UNREADABLE);
            cfa += rule->addend;
            by_sp = 0;
        }
    }
    if (cfa <= sp && (cfa < sp || rule->return_address != RETURN_REGISTER)) {
        /* Only tables that count from another register can mean another stack. */
        if (by_sp || cfa == sp || ++unwinder->switches > MAX_SWITCHES)
            return end(unwinder, STACK_BAD_TABLES);
    }
    if (rule->return_address == RETURN_REGISTER) {
        if (!is_known(unwinder, rule->return_register))
            return end(unwinder, STACK_BAD_TABLES);
        address = unwinder->registers[rule->return_register & 63];
    } else if (read_word(unwinder, cfa + rule->return_offset, &address)) {
        return end(unwinder, STACK_UNREADABLE);
    }
    __u64 known = 1ULL << SP;
    __u64 fp = unwinder->registers[FP];
    int fp_known = is_known(unwinder, FP);
    __u32 saved = rule->frame_pointer;
    if (saved == SAVED_AT_CFA) {
        fp_known = !read_word(unwinder, cfa + rule->frame_pointer_offset, &fp);
    } else if (saved == SAVED_AT_FRAME_POINTER) {
        fp_known = fp_known && !read_word(unwinder, fp + rule->frame_pointer_offset, &fp);
    } else if (saved == SAVED_REGISTER) {
        fp_known = is_known(unwinder, rule->frame_pointer_register);
        fp = unwinder->registers[rule->frame_pointer_register & 63];
    } else if (saved == SAVED_UNKNOWN) {
        fp_known = 0;
    } else if (saved == SAVED_CFA) {
        fp_known = 1;
        fp = cfa;
    }
    if (fp_known)
        known |= 1ULL << FP;
#if defined(BASE)
    if (rule->base == SAVED_SAME)
        known |= unwinder->known & 1ULL << BASE;
    else if (rule->base == SAVED_AT_CFA &&
             !read_word(unwinder, cfa + rule->base_offset, &unwinder->registers[BASE]))
        known |= 1ULL << BASE;
#endif
    unwinder->registers[SP] = cfa;
    unwinder->registers[FP] = fp;
    unwinder->known = known;
    unwinder->pc = address & ADDRESS_MASK;
    unwinder->is_caller = 1;
    unwinder->by_frame_pointer = 0;
    return 0;
}

/* Where the rule for a key is, if it is cached. */
static __always_inline struct cached_rule *cached_at(const struct walk *walk, __u64 key)
{
    return &walk->cache->at[key * 0x9e3779b97f4a7c15ULL >> 52 & (CACHED_RULES - 1)];
}

/* Keeps the frame, and goes to its caller; 1 at the end. */
static __always_inline long walk_step(__u32 index, const struct walk *walk, int has_loops)
{
    struct unwinder *unwinder = walk->unwinder;
    struct stack *stack = walk->stack;
    __u64 called = unwinder->pc - unwinder->is_caller;
    __u64 key = called | unwinder->is_caller << 63;
    __u32 number = GAP;
    int is_mapped = 1;
    struct cached_rule *cached = cached_at(walk, key);
    int is_cached = cached->address == key && cached->serial_and_rule >> 16 == walk->serial;
    if (is_cached)
        number = cached->serial_and_rule & 0xffff;
    else if (find_code(walk, unwinder, called, has_loops))
        number = find_rule(walk, unwinder, called);
    else if (index > 0)
        return end(unwinder, is_start_of_coroutine(unwinder, stack, index) ? STACK_START
                                                                          : STACK_NOT_EXECUTABLE);
    else
        /* The highest bit: the vsyscall page of x86-64, which belongs to no process. */
        is_mapped = !has_loops || !CAN_SEARCH_MAPPINGS || called >> 63;
    /* If there is no mapping, the list of mappings is older than it: the thread runs there. */
    if (number == GAP) {
        number = gap_at(unwinder);
        is_cached = 0;
    }
    /* Generated code may be another function's soon: where it is interrupted, it is read each time. */
    if (!is_cached && unwinder->is_listed && (unwinder->is_caller || number < MAX_RULES)) {
        cached->address = key;
        cached->serial_and_rule = walk->serial << 16 | number;
    }
    stack->addresses[index & (MAX_USER_FRAMES - 1)] =
        unwinder->is_caller ? unwinder->pc : unwinder->pc | FRAME_INTERRUPTED;
    stack->size = (index + 1) * sizeof stack->addresses[0];
    switch (number) {
    case GAP:
    case PLAIN_GAP:
        if (!is_mapped)
            return end(unwinder, STACK_UNREADABLE);
        return by_frame_pointer(unwinder);
    case START_GAP:
    case PUSHED_GAP:
        return from_start(unwinder, number == PUSHED_GAP);
    case TRAMPOLINE_GAP:
        return by_stack_pointer(unwinder, 16, 8);
    case SIGNAL_GAP:
        return from_context(unwinder, unwinder->registers[SP] + SIGNAL_CONTEXT, 1);
    }
    const struct rule *rule = &walk->rules->at[number & (MAX_RULES - 1)];
    switch (rule->kind) {
    case RULE_FRAME:
        return by_rule(unwinder, rule);
    case RULE_END:
        return end(unwinder, STACK_START);
    case RULE_CONTEXT:
        if (!is_known(unwinder, rule->cfa_register))
            return end(unwinder, STACK_BAD_TABLES);
        return from_context(unwinder,
                            unwinder->registers[rule->cfa_register & 63] + rule->cfa_offset,
                            rule->addend);
    default:
        return end(unwinder, STACK_BAD_TABLES);
    }
}

/* The word at an address, if the copied part of the stack has it; else false. */
static __always_inline int copied_word(struct unwinder *unwinder, __u64 address, __u64 *value)
{
    __u64 at = address - unwinder->chunk_start;
    if (address & 7 || at >= unwinder->chunk_size)
        return 0;
    /* Through memory: else the verifier would follow the values of all registers that it comes from. */
    *(volatile __u64 *)&unwinder->chunk_at = at;
    at = *(volatile __u64 *)&unwinder->chunk_at;
    HIDE(at);
    *value = *(__u64 *)(unwinder->chunk + (at & (CHUNK - 8)));
    return 1;
}

/* Keeps callers, and goes on, while their rules are cached, are of the kinds that nearly all have, and need no memory
 * but what is copied already. Whatever else there is, is left to `walk_step`, as if this had not been tried. */
static __always_inline void follow_callers(const struct walk *walk)
{
    struct unwinder *unwinder = walk->unwinder;
    struct stack *stack = walk->stack;
    __u64 pc = unwinder->pc, sp = unwinder->registers[SP], fp = unwinder->registers[FP];
    if (!unwinder->is_caller)
        return;
#pragma clang loop unroll(disable)
    for (int i = 0; i < STEP_FRAMES; i++) {
        __u64 size = stack->size, key = (pc - 1) | 1ULL << 63, cfa, address, caller_fp = fp;
        const struct cached_rule *cached = cached_at(walk, key);
        __u64 rule_number = cached->serial_and_rule & 0xffff;
        if (cached->address != key || cached->serial_and_rule >> 16 != walk->serial ||
            size >= USER_STACK_SIZE)
            break;
        if (rule_number == PLAIN_GAP) {
            if (!is_known(unwinder, FP) || fp < sp || fp >> 63 || !copied_word(unwinder, fp, &caller_fp) ||
                !copied_word(unwinder, fp + 8, &address))
                break;
            cfa = fp + 16;
            unwinder->known = 1ULL << SP | 1ULL << FP;
            unwinder->by_frame_pointer = 1;
        } else {
            if (rule_number >= MAX_RULES)
                break;
            HIDE(rule_number);
            const struct rule *rule = &walk->rules->at[rule_number & (MAX_RULES - 1)];
            if (rule->kind != RULE_FRAME || rule->cfa != CFA_REGISTER ||
                rule->return_address != RETURN_AT_CFA)
                break;
            __u64 from = sp;
            if (rule->cfa_register != SP) {
                if (rule->cfa_register != FP || !is_known(unwinder, FP))
                    break;
                from = fp;
            }
            cfa = from + rule->cfa_offset;
            if (cfa <= sp || !copied_word(unwinder, cfa + rule->return_offset, &address))
                break;
            __u64 kept = 1ULL << SP | 1ULL << FP, restored = 0;
            if (rule->frame_pointer == SAVED_AT_CFA) {
                if (!copied_word(unwinder, cfa + rule->frame_pointer_offset, &caller_fp))
                    break;
                restored |= 1ULL << FP;
            } else if (rule->frame_pointer != SAVED_SAME) {
                break;
            }
#if defined(BASE)
            if (rule->base == SAVED_SAME) {
                kept |= 1ULL << BASE;
            } else if (rule->base == SAVED_AT_CFA) {
                if (!copied_word(unwinder, cfa + rule->base_offset, &unwinder->registers[BASE]))
                    break;
                restored |= 1ULL << BASE;
            }
#endif
            unwinder->known = (unwinder->known & kept) | restored;
            unwinder->by_frame_pointer = 0;
        }
        __u64 index = size / 8;
        HIDE(index);
        stack->addresses[index & (MAX_USER_FRAMES - 1)] = pc;
        stack->size = size + 8;
        pc = address & ADDRESS_MASK;
        sp = cfa;
        fp = caller_fp;
    }
    unwinder->pc = pc;
    unwinder->registers[SP] = sp;
    unwinder->registers[FP] = fp;
}

static long step(__u32 index __attribute__((unused)), struct walk *walk)
{
    follow_callers(walk);
    __u64 size = walk->stack->size;
    if (size >= USER_STACK_SIZE)
        return 1;
    size /= 8;
    HIDE(size);
    return walk_step(size, walk, 1);
}

/* Takes the mappings that were found. */
static __always_inline void take_mappings(struct walk *walk)
{
    walk->serial = walk->unwinder->serial;
    walk->first = walk->unwinder->first;
    walk->count = walk->unwinder->count;
}

/* Finds where everything is that a walk needs. */
static __always_inline int find_maps(struct walk *walk)
{
    __u32 zero = 0, cpu = bpf_get_smp_processor_id();
    walk->unwinder = bpf_map_lookup_elem(&unwinders, &zero);
    walk->stack = bpf_map_lookup_elem(&stacks, &zero);
    walk->code = bpf_map_lookup_elem(&code, &zero);
    walk->pages = bpf_map_lookup_elem(&page_index, &zero);
    walk->rules = bpf_map_lookup_elem(&rules, &zero);
    walk->cache = bpf_map_lookup_elem(&rule_caches, &cpu);
    return walk->unwinder && walk->stack && walk->code && walk->pages && walk->rules && walk->cache;
}

/* Whether the list of mappings that was found has not been given to another process. */
static __always_inline int has_list(const struct walk *walk)
{
    const struct unwinder *unwinder = walk->unwinder;
    return walk->code->at[(unwinder->first - 1) & (MAX_CODE - 1)].start == unwinder->serial;
}

/* Finds the mappings of a process; false if the recorder has passed on none. */
static __always_inline int find_mappings(const struct walk *walk, __u32 pid)
{
    struct unwinder *unwinder = walk->unwinder;
    /* Read before the search: what is forgotten meanwhile is searched for again. */
    __u64 forgotten = forgotten_processes;
    if (unwinder->pid == pid && unwinder->forgotten == forgotten && has_list(walk))
        return 1;
    const struct process_code *process = bpf_map_lookup_elem(&processes, &pid);
    unwinder->pid = process ? pid : 0;
    if (!process)
        return 0;
    unwinder->forgotten = forgotten;
    unwinder->serial = process->serial;
    unwinder->first = process->first;
    unwinder->count = process->count;
    return has_list(walk);
}

/* Has no list, and a serial that no list has: no rule is cached for it. */
static __always_inline void go_without_list(struct unwinder *unwinder)
{
    unwinder->serial = 0;
    unwinder->pid = 0; /* it may get one */
    /* An entry that no address is in: the serial of a list, or nothing. */
    unwinder->first = 0;
    unwinder->count = 0;
}

/* Begins a walk of the running thread's stack; false if that is for the frame pointers. */
static __always_inline int begin_walk(void *context, struct task_struct *task, __u32 pid, __u8 flags,
                                      struct walk *walk, int has_loops)
{
    if (!find_maps(walk))
        return 0;
    struct unwinder *unwinder = walk->unwinder;
    unwinder->lacks_rows = 0;
    /* A return probe puts another address in the place of one, and the kernel knows which. */
    if (bpf_core_field_exists(task->utask) && OF_TASK(task, utask))
        return 0;
    if (!find_mappings(walk, pid)) {
        if (!has_loops || !CAN_SEARCH_MAPPINGS) {
            unwinder->lacks_rows = 1;
            return 0;
        }
        go_without_list(unwinder);
    }
    take_mappings(walk);
    if (!read_registers(context, task, flags, unwinder->words))
        return 0;
#if defined(__TARGET_ARCH_x86)
    if (unwinder->words[SAVED_CS] != USER_CS)
        return 0;
#pragma unroll
    for (int i = 0; i <= PC; i++)
        unwinder->registers[i] = unwinder->words[saved_order[i]];
#else
    /* PSTATE.nRW: 32-bit code; PSTATE.EL: the kernel's. */
    if (unwinder->words[SAVED_STATE] & 0x1f)
        return 0;
#pragma unroll
    for (int i = 0; i <= PC; i++)
        unwinder->registers[i] = unwinder->words[i];
#endif
    unwinder->known = (2ULL << LAST_REGISTER) - 1;
    unwinder->pc = unwinder->registers[PC];
    unwinder->is_caller = 0;
    unwinder->by_frame_pointer = 0;
    unwinder->switches = 0;
    unwinder->lower_stacks = 0;
    unwinder->end = STACK_LIMIT;
    unwinder->calls = 0;
    unwinder->frames = 0;
    unwinder->code.start = 0;
    unwinder->code.end = 0;
    unwinder->is_listed = 1;
    unwinder->chunk_size = 0;
    walk->stack->size = 0;
    return 1;
}

/* Whether the process of a thread that runs in the kernel has no stack for it any more: it executes another program. Where
 * it ends, it has no memory (add_parts). */
static __always_inline void note_freed_stack(__u8 flags)
{
    __u32 zero = 0;
    struct unwinder *unwinder = bpf_map_lookup_elem(&unwinders, &zero);
    struct stack *stack = bpf_map_lookup_elem(&stacks, &zero);
    if (flags & EVENT_USER_MODE || !unwinder || !stack || stack->size != sizeof stack->addresses[0] ||
        (stack->end & ~STACK_ALL_MAPPINGS) != STACK_UNREADABLE)
        return;
    if (bpf_probe_read_user(unwinder->words, sizeof unwinder->words[0], (void *)unwinder->registers[SP]))
        stack->end = STACK_GONE;
}

/* Walks the running thread's stack; false if that is for the frame pointers. */
static __always_inline int unwind(void *context, struct task_struct *task, __u32 pid, __u8 flags)
{
    struct walk walk;
    if (!begin_walk(context, task, pid, flags, &walk, 1))
        return 0;
    bpf_loop(MAX_USER_FRAMES, step, &walk, 0);
    walk.stack->end = walk.unwinder->end | (CAN_SEARCH_MAPPINGS ? STACK_ALL_MAPPINGS : 0);
    return 1;
}

/* Finds some more frames of a walk that has begun; false at its end. */
static __always_inline int unwind_further(void)
{
    struct walk walk;
    if (!find_maps(&walk))
        return 0;
    take_mappings(&walk);
    struct unwinder *unwinder = walk.unwinder;
#pragma clang loop unroll(disable)
    for (int i = 0; i < CALL_FRAMES; i++)
        if (walk_step(unwinder->frames++, &walk, 0)) {
            walk.stack->end = unwinder->end;
            return 0;
        }
    walk.stack->end = STACK_LIMIT;
    return ++unwinder->calls < MAX_CALLS;
}

#endif
