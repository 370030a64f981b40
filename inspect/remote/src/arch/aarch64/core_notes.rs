//! The layout of a thread's registers in a core file's notes.

use object::elf;

use crate::arch::{StatusLayout, ThreadPointerNote};

/// `struct elf_prstatus` with `struct user_regs_struct` (<sys/procfs.h>, <sys/user.h>), which has
/// no TPIDR_EL0: that is a note of its own.
pub(crate) const STATUS: StatusLayout = StatusLayout {
    size: 392,
    thread_pointer: ThreadPointerNote::Own(elf::NT_ARM_TLS),
    registers: 112,
    instruction_pointer: 32,
    stack_pointer: 31,
    frame_pointer: 29,
    link: Some(30),
};
