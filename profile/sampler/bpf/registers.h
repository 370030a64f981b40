/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The registers with which the running thread has entered the kernel. */
#ifndef REGISTERS_H
#define REGISTERS_H

#include <linux/bpf.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "event.h"
#include "task.h"

/* Their places, in the layout of the context of a clock's program. */
#if defined(__TARGET_ARCH_x86)
/* struct pt_regs (arch/x86/include/uapi/asm/ptrace.h) */
#define SAVED_REGISTERS 21
#define SAVED_FP 4
#define SAVED_PC 16
#define SAVED_CS 17
#define SAVED_SP 19
/* The segment of 64-bit code (arch/x86/include/asm/segment.h): other code has other frames. */
#define USER_CS 0x33
/* Of the kernel's stack: arch/x86/include/asm/page_64_types.h. */
#define THREAD_SIZE 16384
#elif defined(__TARGET_ARCH_arm64)
/* struct user_pt_regs (arch/arm64/include/uapi/asm/ptrace.h): x0 to x30, sp, pc and the state */
#define SAVED_REGISTERS 34
#define SAVED_SP 31
#define SAVED_PC 32
#define SAVED_STATE 33
/* arch/arm64/include/asm/memory.h */
#define THREAD_SIZE 16384
#endif

/* What the kernel has of Linux 5.15 on. Before, the registers are at the end of the thread's kernel stack, if the
 * processor state among them is that of a process. */
enum bpf_func_id___registers { BPF_FUNC_task_pt_regs___registers = 175 };
struct pt_regs___kernel {
    unsigned long unused;
};

/* Where the kernel has them. */
static __always_inline const void *saved_registers(struct task_struct *task)
{
    if (bpf_core_enum_value_exists(enum bpf_func_id___registers, BPF_FUNC_task_pt_regs___registers))
        return (void *)bpf_task_pt_regs(task);
    return (void *)OF_TASK(task, stack) + THREAD_SIZE - bpf_core_type_size(struct pt_regs___kernel);
}

/* Reads them; false if they are not found. */
static __always_inline int read_registers(void *context, struct task_struct *task, __u8 flags, __u64 *to)
{
    /* Loads are cheaper than what reads the kernel's memory. */
    if (flags & EVENT_USER_MODE) {
        const __u64 *registers = context;
        /* Else the compiler keeps an address within it, which the verifier wants nobody to have. */
        HIDE(registers);
#pragma unroll
        for (int i = 0; i < SAVED_REGISTERS; i++)
            to[i] = registers[i];
        return 1;
    }
    /* A kernel with larger stacks (KASAN, pages of 64 KiB) has something else there. */
    return !bpf_probe_read_kernel(to, SAVED_REGISTERS * 8, saved_registers(task)) && to[SAVED_PC] &&
           to[SAVED_SP];
}

/* Their stack pointer; 0 if it is not found. */
static __always_inline __u64 stack_pointer(struct task_struct *task)
{
    __u64 pointer;
    const __u64 *registers = saved_registers(task);
    return bpf_probe_read_kernel(&pointer, sizeof pointer, registers + SAVED_SP) ? 0 : pointer;
}

#endif
