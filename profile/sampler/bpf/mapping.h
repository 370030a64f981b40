/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The mapping at an address as the kernel has it, and the rows of its file.
 *
 * The recorder's lists are faster to search, but a process has run for some milliseconds before the recorder has read
 * its mappings: too late for the compilers of a build. Needs the maple tree of mappings, Linux 6.1. A search costs
 * a few hundred nanoseconds, and happens where a list has nothing.
 */
#ifndef MAPPING_H
#define MAPPING_H

#include <linux/bpf.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "task.h"

/* An executable mapping. */
struct code {
    __u64 start;
    __u64 end;
    __u64 base; /* address of the file's first page with rows */
    __u32 page; /* its place in the page index; without rows, AWAITS_ROWS or 0 */
    __u32 pages; /* 0 without rows */
};

/* The rows of its file are being made. */
#define AWAITS_ROWS (~0U)

/* A state of a file's contents, and where in it a mapping begins. */
struct file_code_key {
    __u64 inode;
    __u64 offset; /* in bytes, or VDSO */
    __s64 ctime;  /* seconds */
    __u32 ctime_nanoseconds;
    __u32 device; /* as the kernel keeps it: the minor number in the lowest 20 bits */
};

/* The rest of the vDSO's key is zero. */
#define VDSO (~0ULL)

/* Where the rows of a mapping's code are. */
struct file_code {
    __u64 base; /* from the mapping's start to the first page with rows; may be negative */
    __u32 page; /* its place in the page index */
    __u32 pages;
};

struct {
    /* With its memory from the start, 1 MB: clocks' programs may use no other before Linux 6.1. */
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 8192);
    __type(key, struct file_code_key);
    __type(value, struct file_code);
} file_code SEC(".maps");

/* Set before the program is loaded: the base 2 logarithm of the size of a page. */
volatile const __u32 page_shift = 12;
/* Whether to search the kernel's mappings; for tests of what is done without. */
volatile const __u32 searches_mappings = 1;

/* include/linux/mm.h */
#define VM_EXEC 4
/* include/linux/maple_tree.h: sizes in words, and what an entry has beside the address of a node */
#define MAPLE_WORDS 32
#define MAPLE_PIVOTS 15
#define MAPLE_WIDE_PIVOTS 9
#define MAPLE_WIDE_END 30
#define MAPLE_NODE_MASK 255
#define MAPLE_RANGE 2
#define MAPLE_WIDE_RANGE 3
/* Levels of the tree: 65,536 mappings, each node at least a third full, have 8 at most. */
#define MAPLE_LEVELS 10

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct maple_tree {
    void *ma_root;
};
struct mm_struct___mappings {
    struct maple_tree mm_mt;
    struct {
        void *vdso;
    } context;
};
struct super_block {
    __u32 s_dev;
};
struct timespec64 {
    __s64 tv_sec;
    long tv_nsec;
};
struct inode {
    struct super_block *i_sb;
    unsigned long i_ino;
    __s64 i_ctime_sec; /* from 6.11 on */
    __u32 i_ctime_nsec;
    struct timespec64 i_ctime; /* before 6.6 */
    struct timespec64 __i_ctime;
};
struct dentry {
    struct inode *d_inode;
};
struct path {
    struct dentry *dentry;
};
struct file {
    struct inode *f_inode;
};
struct backing_file {
    struct path user_path;
};
struct vm_area_struct {
    unsigned long vm_start;
    unsigned long vm_end;
    unsigned long vm_flags;
    unsigned long vm_pgoff;
    struct file *vm_file;
};
#pragma clang attribute pop

#define CAN_SEARCH_MAPPINGS \
    (searches_mappings && bpf_core_field_exists(struct mm_struct___mappings, mm_mt))

/* What a search needs and the stack has no room for. */
struct mapping_search {
    __u64 words[MAPLE_WORDS]; /* of a node: what comes from there is bounded by masks */
    __u64 member;             /* what was read last */
    struct file_code_key key;
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct mapping_search);
} mapping_searches SEC(".maps");

/* A member of a structure of the kernel's; 0 if it cannot be read. */
#define READ_MEMBER(search, from, member_of)                                        \
    ({                                                                              \
        (search)->member = 0;                                                       \
        bpf_core_read(&(search)->member, sizeof (from)->member_of, &(from)->member_of); \
        *(typeof((from)->member_of) *)&(search)->member;                            \
    })

/* 1 if the node's range at an index ends below the address. */
static __always_inline __u64 ends_below(__u64 last, __u64 address)
{
    return ((last - address) & ~last) >> 63;
}

/* The entry of a process's tree of mappings at an address; 0 if there is none. */
static __always_inline struct vm_area_struct *search_tree(struct mapping_search *search, __u64 entry,
                                                          __u64 address)
{
    if ((entry & 3) != 2)
        return 0;
#pragma clang loop unroll(disable)
    for (int level = 0; level < MAPLE_LEVELS; level++) {
        /* Read one after the other: else the compiler keeps them all on the stack. */
        const volatile __u64 *words = search->words;
        if (bpf_probe_read_kernel(search->words, sizeof search->words,
                                  (void *)(entry & ~(__u64)MAPLE_NODE_MASK)))
            return 0;
        __u64 type = entry >> 3 & 15;
        __u64 is_wide = type == MAPLE_WIDE_RANGE;
        HIDE(is_wide);
        __u64 end = words[MAPLE_WIDE_END] & 15;
        if (!is_wide)
            end = words[MAPLE_PIVOTS] ? MAPLE_PIVOTS : words[MAPLE_WORDS - 1] & 15;
        HIDE(end);
        __u64 slot = 0;
#pragma unroll
        for (__u64 i = 0; i < MAPLE_PIVOTS; i++)
            slot += ends_below(words[1 + i], address) & (i - end) >> 63;
        slot += is_wide ? 1 + MAPLE_WIDE_PIVOTS : 1 + MAPLE_PIVOTS;
        HIDE(slot);
        entry = words[slot & (MAPLE_WORDS - 1)];
        if (!entry)
            return 0;
        if (type < MAPLE_RANGE)
            return (void *)entry;
    }
    return 0;
}

/* The rows of a file that has this inode. */
static __always_inline const struct file_code *rows_of(struct mapping_search *search, struct inode *inode)
{
    struct file_code_key *key = &search->key;
    struct super_block *file_system = READ_MEMBER(search, inode, i_sb);
    key->device = READ_MEMBER(search, file_system, s_dev);
    key->inode = READ_MEMBER(search, inode, i_ino);
    if (!key->inode)
        return 0;
    if (bpf_core_field_exists(inode->i_ctime_sec)) {
        key->ctime = READ_MEMBER(search, inode, i_ctime_sec);
        /* The highest bit says whether it was asked for. */
        key->ctime_nanoseconds = READ_MEMBER(search, inode, i_ctime_nsec) & ~0U >> 1;
    } else if (bpf_core_field_exists(inode->__i_ctime)) {
        key->ctime = READ_MEMBER(search, inode, __i_ctime.tv_sec);
        key->ctime_nanoseconds = READ_MEMBER(search, inode, __i_ctime.tv_nsec);
    } else {
        key->ctime = READ_MEMBER(search, inode, i_ctime.tv_sec);
        key->ctime_nanoseconds = READ_MEMBER(search, inode, i_ctime.tv_nsec);
    }
    return bpf_map_lookup_elem(&file_code, key);
}

/* The rows of a file that is mapped. */
static __always_inline const struct file_code *rows_of_file(struct mapping_search *search, struct file *file)
{
    const struct file_code *found = rows_of(search, READ_MEMBER(search, file, f_inode));
    /* From Linux 6.8 on, /proc/PID/maps shows the file of an overlay, and not the one below it, which is mapped. The
     * flag of files below one differs between versions. Of other files this reads what lies behind them, which is
     * the key of none. */
    if (!found && bpf_core_field_exists(struct backing_file, user_path)) {
        struct dentry *entry = READ_MEMBER(search, (struct backing_file *)file, user_path.dentry);
        found = rows_of(search, READ_MEMBER(search, entry, d_inode));
    }
    return found;
}

/* Finds the executable mapping of the running thread at an address; false if there is none. Notes if it is of a file whose
 * rows are not there. */
static __always_inline int find_mapping(__u64 address, struct code *code, __u64 *lacks_rows)
{
    struct task_struct *task = current_task();
    struct mm_struct___mappings *memory = (void *)OF_TASK(task, mm);
    __u32 zero = 0;
    struct mapping_search *search = bpf_map_lookup_elem(&mapping_searches, &zero);
    if (!CAN_SEARCH_MAPPINGS || !memory || !search)
        return 0;
    __u64 root = (__u64)READ_MEMBER(search, memory, mm_mt.ma_root);
    struct vm_area_struct *mapping = search_tree(search, root, address);
    if (!mapping || !(READ_MEMBER(search, mapping, vm_flags) & VM_EXEC))
        return 0;
    code->start = READ_MEMBER(search, mapping, vm_start);
    code->end = READ_MEMBER(search, mapping, vm_end);
    code->pages = 0;
    /* Another thread may be changing it. */
    if (address < code->start || address >= code->end) {
        code->start = 0;
        code->end = 0;
        return 0;
    }
    const struct file_code *found = 0;
    __builtin_memset(&search->key, 0, sizeof search->key);
    struct file *file = READ_MEMBER(search, mapping, vm_file);
    if (file) {
        search->key.offset = READ_MEMBER(search, mapping, vm_pgoff) << page_shift;
        found = rows_of_file(search, file);
    } else if (code->start == (__u64)READ_MEMBER(search, memory, context.vdso)) {
        search->key.offset = VDSO;
        found = bpf_map_lookup_elem(&file_code, &search->key);
    }
    if (found) {
        code->base = code->start + found->base;
        code->page = found->page;
        code->pages = found->pages;
    } else if (file) {
        *lacks_rows = 1;
    }
    return 1;
}

#endif
