//! The layout of a thread's registers in a core file's notes.

use crate::arch::{StatusLayout, ThreadPointerNote};

/// `struct elf_prstatus` with `struct user_regs_struct` (<sys/procfs.h>, <sys/user.h>).
pub(crate) const STATUS: StatusLayout = StatusLayout {
    size: 336,
    // fs_base is the 22nd of the registers, which follow 112 bytes of signals and times.
    thread_pointer: ThreadPointerNote::Status(112 + 21 * 8),
    registers: 112,
    instruction_pointer: 16,
    stack_pointer: 19,
    frame_pointer: 4,
    link: None,
};
