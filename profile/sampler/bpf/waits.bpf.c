/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Scans the threads that are off the CPU, without a hook and without stopping any.
 *
 * An iterator over threads that may sleep, so that pages which are not in memory are read, too. A thread that it reads may go on
 * meanwhile, so what was read counts only if the thread has not run since before: it is not on a CPU, and has been switched out
 * as often as before. As long as that stays so in later scans, it is the same wait, and nothing is read again.
 *
 * Needs Linux 5.18. With TWO_WALKS (walks.bpf.c), it needs 5.10, and reads no memory of processes, which takes a program that may
 * sleep: the loader reads it, and then has the program say which waits are still the same (`is_check`).
 *
 * `cargo xtask bpf` builds it.
 */
#include <linux/bpf.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "namespace.h"
#include "registers.h"
#include "waits.h"

/* bpf_copy_from_user_task is for programs under the GPL alone. */
char LICENSE[] SEC("license") = "GPL";

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct seq_file;
struct bpf_iter_meta {
    struct seq_file *seq;
};
struct bpf_iter__task {
    struct bpf_iter_meta *meta;
    struct task_struct *task;
};
struct sched_info {
    unsigned long pcount;
    unsigned long long run_delay;
    unsigned long long last_arrival;
    unsigned long long last_queued;
};
struct sched_entity {
    unsigned char sched_delayed;
    __u64 sum_exec_runtime;
    __u64 prev_sum_exec_runtime;
};
/* What the samplers' own header does not have. */
struct task_struct___waits {
    unsigned int __state;
    long state; /* to Linux 5.13 */
    __u64 start_time;
    /* Signed before Linux 7, then bytes: the loader makes loads shorter only where both types are unsigned. */
    unsigned int on_cpu;
    unsigned int on_rq;
    struct sched_entity se;
    struct sched_info sched_info;
    unsigned long nvcsw;
    unsigned long nivcsw;
};
#if defined(__TARGET_ARCH_arm64)
/* Behind what a process sees of it (struct user_pt_regs). */
struct pt_regs___waits {
    __u64 orig_x0;
    int syscallno;
};
#endif
#pragma clang attribute pop

/* include/linux/sched.h */
#define TASK_UNINTERRUPTIBLE 0x2
#define TASK_STOPPED 0x4
#define TASK_TRACED 0x8
#define TASK_FROZEN 0x8000

/* Set before the program is loaded. */
volatile const __u32 whole_machine = 0; /* else the processes of `targets` alone */
volatile const __u32 user_stacks = 0;
volatile const __u32 kernel_stacks = 0;
volatile const __u32 max_record = 640; /* bytes, header included, RECORD_LIMIT at most */

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 16384);
    __type(key, __u32);
    __type(value, struct wait_target);
} wait_targets SEC(".maps");

/* What is known of a thread's wait. */
struct wait {
    __u64 switches; /* how often it had been switched out, and 1; 0 for no wait that is known */
    struct wait_times times;
    __u32 version; /* of the target's data */
    __u32 reserved;
#ifdef TWO_WALKS
    /* The thread: another one can have its ID, and one that executes a program for its process takes over the first one's ID and
     * start. */
    __u64 thread, start;
#endif
};

#ifdef TWO_WALKS
/* Programs of Linux 5.10 keep nothing with a thread itself. Of more threads, the ones that were scanned longest ago are taken for
 * new ones. */
struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 32768);
    __type(key, __u32); /* the ID that the kernel has */
    __type(value, struct wait);
} waits SEC(".maps");
#else
struct {
    __uint(type, BPF_MAP_TYPE_TASK_STORAGE);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, int);
    __type(value, struct wait);
} waits SEC(".maps");
#endif

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct scan);
} scans SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct scan_counts);
} scan_counts SEC(".maps");

/* One run at a time: the loader reads from one descriptor after the other. */
struct scratch {
    struct event_head head;
    struct part_head times_head;
    struct wait_times times;
    struct part_head wait_head;
    struct wait_part wait;
    struct part_head registers_head;
    __u64 registers[WAIT_REGISTERS];
    struct part_head call_head;
    struct call_memory call;
    __u8 record[sizeof(struct part_head) + RECORD_ROOM];
    struct part_head stack_head;
    __u64 stack_address;
    __u8 stack[STACK_ROOM];
    struct part_head kernel_head;
    __u64 kernel[KERNEL_FRAMES];
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct scratch);
} wait_scratch SEC(".maps");

#ifndef TWO_WALKS
/* Room for the stacks of the few threads that fill the iterator's buffer. */
struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 512 * 1024);
} stack_pieces SEC(".maps");
#endif

static __always_inline int read_user(void *to, __u32 size, __u64 from, void *task)
{
#ifdef TWO_WALKS
    /* The loader does. */
    (void)to, (void)size, (void)from, (void)task;
    return -1;
#else
    return bpf_copy_from_user_task(to, size, (const void *)from, task, 0);
#endif
}

/* Reads in the order of the source: on aarch64, loads may be reordered by the CPU, too. This program runs on another CPU
 * than the thread, which writes `on_cpu` last when it is switched out (finish_task, a release), after its count. An address that
 * depends on the value read before would order the next load; BPF has no barrier for loads, but an atomic operation whose result
 * is used is a full one (arch/arm64/net/bpf_jit_comp.c: LSE `al` forms, or `dmb ish` behind exclusive loads and stores).
 *
 * With TWO_WALKS there are no such operations (Linux 5.12). In the first walk no order is needed: a count that is read too early
 * is an older one, which the second does not find. The loader makes two further walks in place of one: that a thread was off the
 * CPU in the one, and its count in the next, are read in this order, as each walk takes and releases locks. */
#if defined(__TARGET_ARCH_arm64) && !defined(TWO_WALKS)
#define IN_ORDER(word)                                     \
    do {                                                   \
        __u64 before = __sync_fetch_and_or((word), 0);     \
        HIDE(before);                                      \
        asm volatile("" ::: "memory");                     \
    } while (0)
#else
#define IN_ORDER(word) asm volatile("" ::: "memory")
#endif

static __always_inline __u64 switches_of(struct task_struct___waits *task)
{
    return *(volatile unsigned long *)&task->nvcsw + *(volatile unsigned long *)&task->nivcsw;
}

/* What keeps it off the CPU. */
static __always_inline __u32 state_of(struct task_struct___waits *task, int is_queued)
{
    if (is_queued)
        return WAIT_QUEUED;
    __u32 state = bpf_core_field_exists(task->__state) ? task->__state : (__u32)task->state;
    if (state & (TASK_STOPPED | TASK_TRACED | TASK_FROZEN))
        return WAIT_STOPPED;
    return state & TASK_UNINTERRUPTIBLE ? WAIT_DISK : WAIT_ASLEEP;
}

static __always_inline int write_part(struct seq_file *seq, void *part, __u64 limit)
{
    /* In 64 bits, so that the verifier follows. */
    __u64 size = sizeof(struct part_head) + (__u64)((struct part_head *)part)->room;
    HIDE(size);
    if (size > limit)
        return 1;
    return bpf_seq_write(seq, part, size) != 0;
}

static __always_inline void set_part(struct part_head *part, __u16 kind, __u16 size)
{
    part->kind = kind;
    part->size = size;
    part->room = padded(size);
    part->outcome = 0;
}

static __always_inline __u64 sum(const __u64 *times)
{
    __u64 all = 0;
#pragma unroll
    for (int i = 0; i < WAIT_STATES; i++)
        all += times[i];
    return all;
}

/* Writes the times of a wait that were not passed on before. False if there is no room: the program is run again for this
 * thread. */
static __always_inline int pass_on(struct seq_file *seq, struct scratch *scratch, struct wait *wait, __u32 pid, __u32 tid)
{
    struct event_head *head = &scratch->head;
    head->time = bpf_ktime_get_ns();
    head->detail = wait->switches;
    head->pid = pid;
    head->tid = tid;
    head->kind = EVENT_SAME_WAIT;
    head->outcome = OUTCOME_NONE;
    head->source = SOURCE_NONE;
    head->flags = 0;
    head->serial = 0;
    head->size = sizeof(struct part_head) + sizeof scratch->times;
    set_part(&scratch->times_head, PART_TIMES, sizeof scratch->times);
    scratch->times = wait->times;
    scratch->times.switches = wait->switches;
    return !bpf_seq_write(seq, head, sizeof *head + sizeof(struct part_head) + sizeof scratch->times);
}

#ifndef TWO_WALKS
/* Finds the context, as a sample of a running thread does. */
static __always_inline void read_context(struct scratch *scratch, struct task_struct *task, const struct target *target)
{
    struct event_head *head = &scratch->head;
    struct part_head *part = (void *)scratch->record;
    __u64 tp = task->THREAD_POINTER;
    part->room = part->size = 0;
    head->source = SOURCE_NONE;
    head->outcome = target->places ? OUTCOME_DETACHED : OUTCOME_NONE;
    for (__u32 i = 0; tp && i < MAX_PLACES; i++) {
        if (i >= target->places)
            break;
        __u8 found;
        __u64 record = pointer(&target->place[i], tp, task, &found);
        if (record)
            found = read_record(part, record, max_record, task);
        if (found == OUTCOME_ATTACHED) {
            part->outcome = i;
            head->outcome = found;
            head->source = SOURCE_NATIVE;
            return;
        }
        if (*(volatile __u8 *)&head->outcome == OUTCOME_DETACHED)
            head->outcome = found;
    }
    part->room = part->size = 0;
}

#endif

/* Reads the call and the registers; the stack pointer, 0 for code of other kinds. */
static __always_inline __u64 read_call(struct scratch *scratch, struct task_struct *task)
{
    struct wait_part *wait = &scratch->wait;
    __u64 *registers = scratch->registers;
    const __u64 *saved = saved_registers(task);
    __u64 words[SAVED_REGISTERS];
    wait->number = -1;
    wait->thread_pointer = task->THREAD_POINTER;
    scratch->registers_head.size = scratch->registers_head.room = 0;
    if (bpf_probe_read_kernel(words, sizeof words, saved) || !words[SAVED_PC])
        return 0;
#if defined(__TARGET_ARCH_x86)
    if (words[SAVED_CS] != USER_CS)
        return 0;
    /* Negative if it came by an interrupt or a fault (arch/x86/entry/entry_64.S). */
    wait->number = words[15] & (1ULL << 63) ? -1 : words[15];
    wait->arguments[0] = words[14];
    wait->arguments[1] = words[13];
    wait->arguments[2] = words[12];
    wait->arguments[3] = words[7];
    wait->arguments[4] = words[9];
    wait->arguments[5] = words[8];
    static const __u8 order[] = {10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0, 16};
#pragma unroll
    for (int i = 0; i < (int)sizeof order; i++)
        registers[i] = words[order[i]];
#else
    if (words[SAVED_STATE] & 0x1f)
        return 0;
    const struct pt_regs___waits *behind = (void *)saved;
    int number = BPF_CORE_READ(behind, syscallno);
    wait->number = number;
    wait->arguments[0] = BPF_CORE_READ(behind, orig_x0);
#pragma unroll
    for (int i = 1; i < 6; i++)
        wait->arguments[i] = words[i];
#pragma unroll
    for (int i = 0; i < SAVED_STATE; i++)
        registers[i] = words[i];
#endif
    set_part(&scratch->registers_head, PART_REGISTERS, sizeof scratch->registers);
    return words[SAVED_SP];
}

#ifndef TWO_WALKS
/* System calls whose arguments point to what a thread waits for (arch/x86/entry/syscalls/syscall_64.tbl,
 * include/uapi/asm-generic/unistd.h). */
#if defined(__TARGET_ARCH_x86)
enum call { POLL = 7, SELECT = 23, NANOSLEEP = 35, CONNECT = 42, RT_SIGTIMEDWAIT = 128, FUTEX = 202, CLOCK_NANOSLEEP = 230,
            PSELECT6 = 270, PPOLL = 271 };
#else
enum call { POLL = -2, SELECT = -3, PSELECT6 = 72, PPOLL = 73, FUTEX = 98, NANOSLEEP = 101, CLOCK_NANOSLEEP = 115,
            RT_SIGTIMEDWAIT = 137, CONNECT = 203 };
#endif
/* In front of a futex, and with it: the mutex or lock that it belongs to (glibc's pthread_mutex_t, pthread_rwlock_t). */
#define BEFORE_FUTEX 16
#define AROUND_FUTEX 80

static __always_inline void read_piece(struct scratch *scratch, void *task, int index, __u64 address, __u64 size)
{
    struct call_piece *piece = &scratch->call.piece[index];
    if (size > CALL_PIECE)
        size = CALL_PIECE;
    HIDE(size);
    if (!address || size == 0 || size > CALL_PIECE || read_user(piece->bytes, size, address, task))
        return;
    piece->address = address;
    piece->size = size;
}

/* Reads what the arguments point to, as it is during the wait: the recorder can read only what is there later. */
static __always_inline void read_call_memory(struct scratch *scratch, void *task)
{
    const __u64 *arguments = scratch->wait.arguments;
    for (int i = 0; i < CALL_PIECES; i++)
        scratch->call.piece[i].address = 0;
    switch (scratch->wait.number) {
    case POLL:
    case PPOLL:
        read_piece(scratch, task, 0, arguments[0], (__u32)arguments[1] * 8ULL);
        read_piece(scratch, task, 1, scratch->wait.number == PPOLL ? arguments[2] : 0, 16);
        break;
    case SELECT:
    case PSELECT6: {
        __u64 size = ((__u32)arguments[0] + 63ULL) / 64 * 8;
        read_piece(scratch, task, 0, arguments[1], size);
        read_piece(scratch, task, 1, arguments[2], size);
        read_piece(scratch, task, 2, arguments[3], size);
        break;
    }
    case NANOSLEEP:
        read_piece(scratch, task, 0, arguments[0], 16);
        break;
    case CLOCK_NANOSLEEP:
        read_piece(scratch, task, 0, arguments[2], 16);
        break;
    case RT_SIGTIMEDWAIT:
        read_piece(scratch, task, 0, arguments[0], 8);
        read_piece(scratch, task, 1, arguments[2], 16);
        break;
    case CONNECT:
        read_piece(scratch, task, 0, arguments[1], (__u32)arguments[2]);
        break;
    case FUTEX:
        read_piece(scratch, task, 0, arguments[0] - BEFORE_FUTEX, AROUND_FUTEX);
        break;
    default:
        return;
    }
    set_part(&scratch->call_head, PART_CALL_MEMORY, sizeof scratch->call);
}

/* Number of bytes of a stack to read from an address on, within its page. What is at `start` and above are arguments and
 * environment: it is where the first thread's stack begins, and below `sp` for another thread's. */
static __always_inline __u64 piece_size(__u64 at, __u64 left, __u64 start, __u64 sp)
{
    __u64 size = STACK_PAGE - (at & (STACK_PAGE - 1));
    if (start > sp && at >= start)
        return 0;
    if (size > left)
        size = left;
    if (start > sp && size > start - at)
        size = start - at;
    return size;
}

/* Passes on what is behind the first STACK_ROOM bytes of a stack, from an address on. */
static __always_inline void read_long_stack(struct scratch *scratch, struct task_struct *task, __u64 at, __u64 end, __u64 start,
                                            __u64 sp)
{
#pragma unroll
    for (int i = 0; i < LONG_PAGES + 1; i++) {
        __u64 size = at < end ? piece_size(at, end - at, start, sp) : 0;
        HIDE(size);
        if (size == 0 || size > STACK_PAGE)
            return;
        struct stack_piece *piece = bpf_ringbuf_reserve(&stack_pieces, sizeof *piece, 0);
        if (!piece)
            return;
        piece->detail = scratch->head.detail;
        piece->tid = scratch->head.tid;
        piece->size = size;
        piece->address = at;
        if (read_user(piece->bytes, size, at, task)) {
            bpf_ringbuf_discard(piece, BPF_RB_NO_WAKEUP);
            return;
        }
        bpf_ringbuf_submit(piece, BPF_RB_NO_WAKEUP);
        at += size;
    }
}

/* Copies the stack from a little below its pointer, as far as the target's limit and what can be read. */
static __always_inline void read_stack(struct scratch *scratch, struct task_struct *task, __u64 sp, __u64 limit)
{
    struct part_head *part = &scratch->stack_head;
    __u64 from = sp - BELOW_STACK, have = 0;
    struct mm_struct *memory = task->mm;
    __u64 start = memory ? BPF_CORE_READ(memory, start_stack) : 0;
    int is_full = 0;
    scratch->stack_address = from;
    part->size = part->room = 0;
#pragma unroll
    for (int i = 0; i < STACK_PAGES + 1; i++) {
        __u64 at = from + have;
        __u64 size = have < limit ? piece_size(at, limit - have, start, sp) : 0;
        HIDE(size);
        HIDE(have);
        if (have > STACK_ROOM - STACK_PAGE) {
            is_full = 1;
            break;
        }
        if (size == 0 || size > STACK_PAGE)
            break;
        if (read_user(scratch->stack + have, size, at, task))
            break;
        have += size;
    }
    if (have && have <= STACK_ROOM)
        set_part(part, PART_STACK_BYTES, sizeof scratch->stack_address + have);
    if (is_full && limit > STACK_ROOM)
        read_long_stack(scratch, task, from + have, from + limit, start, sp);
}

#endif

static __always_inline void read_kernel_stack(struct scratch *scratch, struct task_struct *task)
{
    long size = bpf_get_task_stack(task, scratch->kernel, sizeof scratch->kernel, 0);
    scratch->kernel_head.size = scratch->kernel_head.room = 0;
    if (size > 0 && size <= (long)sizeof scratch->kernel)
        set_part(&scratch->kernel_head, PART_KERNEL_STACK, size);
}

/* Since when it is off the CPU, by the scheduler's clock as far behind now as by the other one; 0 if the kernel does not note
 * it. */
static __always_inline __u64 since(struct task_struct___waits *task, struct task_struct___waits *current, __u64 started)
{
    if (!bpf_core_field_exists(task->sched_info.last_arrival))
        return 0;
    __u64 left = task->sched_info.last_arrival + task->se.sum_exec_runtime - task->se.prev_sum_exec_runtime;
    __u64 ago = OF_TASK(current, sched_info.last_arrival) - left;
    return task->sched_info.last_arrival && (__s64)ago > 0 && ago < started ? started - ago : 0;
}

/* Whether a thread that is ready to run only became so by this program's scan: else it would have run, or slept, at the tick. */
enum displaced { NOT_DISPLACED, RAN, SLEPT };
static __always_inline enum displaced displaced(struct task_struct___waits *task, struct task_struct___waits *current,
                                                struct scan_counts *scan)
{
    if (!bpf_core_field_exists(task->sched_info.last_queued))
        return NOT_DISPLACED;
    __u64 arrivals = OF_TASK(current, sched_info.pcount), delay = OF_TASK(current, sched_info.run_delay);
    if (arrivals != scan->known_arrivals) {
        scan->own_delay = delay - scan->known_delay;
        scan->known_delay = delay;
        scan->known_arrivals = arrivals;
    }
    __u64 queued = task->sched_info.last_queued, arrival = OF_TASK(current, sched_info.last_arrival);
    if (queued == arrival)
        return RAN;
    if (queued <= arrival - scan->own_delay - SCAN_SLACK)
        return NOT_DISPLACED;
    /* It became ready when it left a CPU, where it was until then, or was woken long after. */
    __u64 left = task->sched_info.last_arrival + task->se.sum_exec_runtime - task->se.prev_sum_exec_runtime;
    return queued < left + SCAN_SLACK ? RAN : SLEPT;
}

#ifdef TWO_WALKS
/* What is known of a thread; null if there is no room. */
static __always_inline struct wait *wait_of(struct task_struct *thread)
{
    struct task_struct___waits *task = (void *)thread;
    __u32 tid = thread->pid;
    struct wait *wait = bpf_map_lookup_elem(&waits, &tid);
    if (!wait || wait->thread != (__u64)thread || wait->start != task->start_time) {
        struct wait new = {.thread = (__u64)thread, .start = task->start_time};
        bpf_map_update_elem(&waits, &tid, &new, 0);
        wait = bpf_map_lookup_elem(&waits, &tid);
    }
    return wait;
}
#else
static __always_inline struct wait *wait_of(struct task_struct *thread)
{
    return bpf_task_storage_get(&waits, thread, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
}
#endif

#ifdef TWO_WALKS
SEC("iter/task")
#else
SEC("iter.s/task")
#endif
int scan_thread(struct bpf_iter__task *context)
{
    __u32 zero = 0, pid, tid;
    struct seq_file *seq = context->meta->seq;
    struct task_struct *thread = context->task;
    struct scan *scan = bpf_map_lookup_elem(&scans, &zero);
    struct scan_counts *counts = bpf_map_lookup_elem(&scan_counts, &zero);
    struct scratch *scratch = bpf_map_lookup_elem(&wait_scratch, &zero);
    if (!thread || !scan || !counts || !scratch || thread->flags & PF_KTHREAD)
        return 0;
    struct task_struct *own = current_task();
    learn_level(own);
    if (!ids(thread, &pid, &tid))
        return 0;
    static const struct wait_target nothing = {.stack_size = DEFAULT_STACK};
    const struct wait_target *target = bpf_map_lookup_elem(&wait_targets, &pid);
    if (!target) {
        if (!whole_machine || pid == scan->own_pid)
            return 0;
        target = &nothing;
    }
    struct task_struct___waits *task = (void *)thread, *current = (void *)own;
    struct wait *wait = wait_of(thread);
    if (!wait)
        return 0;

    int is_running = *(volatile unsigned int *)&task->on_cpu;
    IN_ORDER(&counts->barrier);
    __u64 switches = switches_of(task);
    IN_ORDER(&counts->barrier);
    int is_queued = *(volatile unsigned int *)&task->on_rq;
    if (bpf_core_field_exists(task->se.sched_delayed) && task->se.sched_delayed)
        is_queued = 0;
    enum displaced by_scan = !is_running && is_queued ? displaced(task, current, counts) : NOT_DISPLACED;
    if (is_running || by_scan == RAN) {
        if (scan->is_check)
            return 0;
        if (sum(wait->times.by_state)) {
            if (!pass_on(seq, scratch, wait, pid, tid))
                return 0;
            __builtin_memset(&wait->times, 0, sizeof wait->times);
        }
        counts->running++;
        counts->seen++;
        return 0;
    }
    __u32 state = state_of(task, is_queued && by_scan != SLEPT);
    if (state >= WAIT_STATES)
        return 0;

    int is_same = wait->switches == switches + 1 && wait->version == target->version;
    if (scan->is_check) {
        /* What the recorder has read meanwhile counts if this is the same wait. */
        if (is_same)
            pass_on(seq, scratch, wait, pid, tid);
        return 0;
    }
    if (is_same) {
        wait->times.last = scan->started;
        __u64 now = wait->times.by_state[state] + scan->weight;
        if (scan->is_flush || sum(wait->times.by_state) + scan->weight >= FLUSH_TIME) {
            __u64 before = wait->times.by_state[state];
            wait->times.by_state[state] = now;
            if (!pass_on(seq, scratch, wait, pid, tid)) {
                wait->times.by_state[state] = before;
                return 0;
            }
            __builtin_memset(&wait->times, 0, sizeof wait->times);
        } else {
            wait->times.by_state[state] = now;
        }
        counts->same++;
        counts->seen++;
        return 0;
    }

    struct event_head *head = &scratch->head;
    struct wait_part *part = &scratch->wait;
    head->time = bpf_ktime_get_ns();
    head->detail = switches + 1;
    head->cpu = 0;
    head->pid = pid;
    head->tid = tid;
    head->kind = EVENT_WAIT;
    head->flags = 0;
    head->serial = target->target.serial;
    bpf_probe_read_kernel(head->comm, sizeof head->comm, thread->comm);
    __builtin_memset(part, 0, sizeof *part);
    part->weight = scan->weight;
    part->state = state;
    part->since = since(task, current, scan->started);
    __u64 sp = read_call(scratch, thread);
    scratch->call_head.size = scratch->call_head.room = 0;
    scratch->stack_head.size = scratch->stack_head.room = 0;
#ifdef TWO_WALKS
    struct part_head *no_record = (void *)scratch->record;
    no_record->size = no_record->room = 0;
    head->outcome = OUTCOME_NONE;
    head->source = SOURCE_NONE;
    HIDE(sp);
#else
    read_call_memory(scratch, thread);
    read_context(scratch, thread, &target->target);
    if (user_stacks && sp)
        read_stack(scratch, thread, sp, target->stack_size);
#endif
    scratch->kernel_head.size = scratch->kernel_head.room = 0;
    if (kernel_stacks)
        read_kernel_stack(scratch, thread);

    IN_ORDER(&counts->barrier);
    int runs_now = *(volatile unsigned int *)&task->on_cpu;
    IN_ORDER(&counts->barrier);
    int is_kept = !runs_now && switches_of(task) == switches;
    set_part(&scratch->times_head, PART_TIMES, sizeof scratch->times);
    scratch->times = wait->times;
    scratch->times.switches = wait->switches;
    set_part(&scratch->wait_head, PART_WAIT, sizeof *part);
    struct part_head *record = (void *)scratch->record;
    __u32 size = sizeof(struct part_head) + sizeof scratch->times + sizeof(struct part_head) + sizeof *part;
    if (!is_kept) {
        /* Nothing that was read counts; its time does. */
        head->flags = EVENT_TORN;
        head->outcome = OUTCOME_NONE;
        head->source = SOURCE_NONE;
        part->number = -1;
    } else {
        if (scratch->registers_head.size)
            size += sizeof(struct part_head) + scratch->registers_head.room;
        if (scratch->call_head.size)
            size += sizeof(struct part_head) + scratch->call_head.room;
        if (record->size)
            size += sizeof(struct part_head) + record->room;
        if (scratch->stack_head.size)
            size += sizeof(struct part_head) + scratch->stack_head.room;
        if (scratch->kernel_head.size)
            size += sizeof(struct part_head) + scratch->kernel_head.room;
    }
    head->size = size;
    int is_full = bpf_seq_write(seq, head, sizeof *head + 2 * sizeof(struct part_head) + sizeof scratch->times + sizeof *part);
    if (is_kept) {
        if (scratch->registers_head.size)
            is_full |= write_part(seq, &scratch->registers_head, sizeof(struct part_head) + sizeof scratch->registers);
        if (scratch->call_head.size)
            is_full |= write_part(seq, &scratch->call_head, sizeof(struct part_head) + sizeof scratch->call);
        if (record->size)
            is_full |= write_part(seq, record, sizeof scratch->record);
        if (scratch->stack_head.size)
            is_full |= write_part(seq, &scratch->stack_head,
                                  sizeof(struct part_head) + sizeof scratch->stack_address + STACK_ROOM);
        if (scratch->kernel_head.size)
            is_full |= write_part(seq, &scratch->kernel_head, sizeof(struct part_head) + sizeof scratch->kernel);
    }
    if (is_full)
        /* It is run again for this thread, in a new buffer. */
        return 0;
    counts->seen++;
    counts->torn += !is_kept;
    counts->read += is_kept;
    __builtin_memset(&wait->times, 0, sizeof wait->times);
    wait->switches = is_kept ? switches + 1 : 0;
    wait->version = target->version;
    return 0;
}
