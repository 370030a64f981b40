//! The data that the program unwinds with (`bpf/unwind.h`). A test compares every layout with the
//! type information in the objects.

use aya::Pod;
use otelctx_unwind::{Cfa, FrameRule, MAX_RULES, ReturnAddress, Rule, SHARD_ROWS, Saved};

#[cfg(test)]
pub(in crate::ebpf) use tests::check_layouts;

/// Maximum number of shards of 1 MiB. 500 files have 39 MiB of rows at the 99th percentile.
pub(super) const MAX_SHARDS: u32 = 48;
/// Maximum number of shards as long as they have rows of files that no process has mapped. A
/// machine on which people work maps 16 MiB at a time.
pub(super) const MAX_KEPT_SHARDS: u32 = 24;
/// Maximum number of pages of 64 KiB with rows, of all files.
pub(super) const MAX_PAGES: usize = 1 << 18;
/// Maximum number of executable mappings of all processes.
pub(super) const MAX_CODE: usize = 1 << 15;
/// Maximum number of executable mappings of one process: what `CODE_STEPS` can search.
pub(super) const MAX_MAPPINGS: usize = 1024;

/// `struct shard`: the low halves of the rows' addresses, then the indexes of their rules.
#[repr(C)]
pub(super) struct Shard {
    pub(super) low: [u16; SHARD_ROWS as usize],
    pub(super) rule: [u16; SHARD_ROWS as usize],
}

/// `struct page_index`.
#[repr(C)]
pub(super) struct PageIndex {
    pub(super) first: [u32; MAX_PAGES],
}

/// `struct code`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Code {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) base: u64,
    pub(super) page: u32,
    pub(super) pages: u32,
}

/// `AWAITS_ROWS`: in the place of a page.
pub(super) const AWAITS_ROWS: u32 = u32::MAX;

/// `struct code_list`.
#[repr(C)]
pub(super) struct CodeList {
    pub(super) at: [Code; MAX_CODE],
}

/// `struct process_code`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ProcessCode {
    pub(super) first: u32,
    pub(super) count: u32,
    pub(super) serial: u64,
}

// SAFETY: integers without padding: `repr(C)`, and a test compares the layout with the objects.
unsafe impl Pod for ProcessCode {}

/// `VDSO`: the offset in the vDSO's key, whose other members are zero.
pub(super) const VDSO: u64 = u64::MAX;

/// `struct file_code_key`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FileCodeKey {
    pub(super) inode: u64,
    pub(super) offset: u64,
    pub(super) ctime: i64,
    pub(super) ctime_nanoseconds: u32,
    pub(super) device: u32,
}

// SAFETY: as above.
unsafe impl Pod for FileCodeKey {}

/// `struct file_code`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FileCode {
    pub(super) base: u64,
    pub(super) page: u32,
    pub(super) pages: u32,
}

// SAFETY: as above.
unsafe impl Pod for FileCode {}

/// `struct rule`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KernelRule {
    pub(super) kind: u8,
    pub(super) cfa: u8,
    pub(super) cfa_register: u8,
    pub(super) frame_pointer: u8,
    pub(super) frame_pointer_register: u8,
    pub(super) base: u8,
    pub(super) return_address: u8,
    pub(super) return_register: u8,
    pub(super) cfa_offset: i32,
    pub(super) addend: i32,
    pub(super) frame_pointer_offset: i32,
    pub(super) base_offset: i32,
    pub(super) return_offset: i32,
    pub(super) reserved: i32,
}

/// `struct rule_list`.
#[repr(C)]
pub(super) struct RuleList {
    pub(super) at: [KernelRule; MAX_RULES],
}

/// `enum rule_kind`.
mod kind {
    pub(super) const GAP: u8 = 0;
    pub(super) const UNSUPPORTED: u8 = 1;
    pub(super) const END: u8 = 2;
    pub(super) const FRAME: u8 = 3;
    pub(super) const CONTEXT: u8 = 4;
}

impl From<Rule> for KernelRule {
    fn from(rule: Rule) -> Self {
        let of_kind = |kind| Self {
            kind,
            ..Self::default()
        };
        match rule {
            Rule::Gap => of_kind(kind::GAP),
            Rule::Unsupported => of_kind(kind::UNSUPPORTED),
            Rule::End => of_kind(kind::END),
            Rule::Frame(frame) => of_frame(frame),
            Rule::Context {
                register,
                offset,
                signal,
            } => Self {
                cfa_register: register,
                cfa_offset: offset,
                addend: signal.into(),
                ..of_kind(kind::CONTEXT)
            },
        }
    }
}

fn of_frame(frame: FrameRule) -> KernelRule {
    let mut rule = KernelRule {
        kind: kind::FRAME,
        ..KernelRule::default()
    };
    // enum cfa_kind
    (rule.cfa, rule.cfa_register, rule.cfa_offset, rule.addend) = match frame.cfa {
        Cfa::Register { register, offset } => (0, register, offset, 0),
        Cfa::Memory {
            register,
            offset,
            addend,
        } => (1, register, offset, addend),
        Cfa::Plt { pushed_at } => (2, 0, 0, pushed_at.into()),
    };
    (
        rule.frame_pointer,
        rule.frame_pointer_register,
        rule.frame_pointer_offset,
    ) = saved(frame.frame_pointer);
    (rule.base, _, rule.base_offset) = saved(frame.base);
    // enum return_kind
    match frame.return_address {
        ReturnAddress::AtCfa(offset) => rule.return_offset = offset,
        ReturnAddress::Register(register) => {
            (rule.return_address, rule.return_register) = (1, register);
        }
    }
    rule
}

/// Returns `enum saved`, a register and an offset.
fn saved(saved: Saved) -> (u8, u8, i32) {
    match saved {
        Saved::Same => (0, 0, 0),
        Saved::AtCfa(offset) => (1, 0, offset),
        Saved::AtFramePointer(offset) => (2, 0, offset),
        Saved::Register(register) => (3, register, 0),
        Saved::Unknown => (4, 0, 0),
        Saved::Cfa => (5, 0, 0),
    }
}

/// `enum stack_end`.
pub(in crate::ebpf) mod stack_end {
    use otelctx_sample::StackEnd;

    /// The stack was walked by frame pointers: nothing shows that it reaches the first frame.
    pub(in crate::ebpf) const BY_FRAME_POINTERS: u16 = 0;

    /// `STACK_ALL_MAPPINGS`, beside the end: no mapping was missing for lack of room.
    pub(in crate::ebpf) const ALL_MAPPINGS: u16 = 1 << 8;

    /// The kernel has freed the stack: there is none.
    const GONE: u16 = 7;

    /// Returns true if there was no stack any more.
    pub(in crate::ebpf) fn is_gone(end: u16) -> bool {
        end & !ALL_MAPPINGS == GONE
    }

    /// Returns the end of a stack that was unwound by tables.
    pub(in crate::ebpf) fn of(end: u16) -> StackEnd {
        match end & !ALL_MAPPINGS {
            0 => StackEnd::FramePointers,
            1 => StackEnd::Start,
            3 => StackEnd::BadTables,
            4 => StackEnd::Unreadable,
            5 => StackEnd::NotExecutable,
            6 => StackEnd::Limit,
            _ => StackEnd::NoTables,
        }
    }
}

#[cfg(test)]
mod tests {
    use otelctx_sample::StackEnd;

    use super::*;

    /// Calls `check` with name, size and members (offset in bytes) of each structure.
    pub(in crate::ebpf) fn check_layouts(check: impl Fn(&str, usize, &[(&str, usize)])) {
        use std::mem::offset_of;

        macro_rules! layout {
            ($name:literal, $type:ty, [$($member:ident),*]) => {
                let members = [$((stringify!($member), offset_of!($type, $member))),*];
                check($name, size_of::<$type>(), &members);
            };
        }
        layout!("page_index", PageIndex, [first]);
        layout!("code", Code, [start, end, base, page, pages]);
        layout!("code_list", CodeList, [at]);
        layout!("process_code", ProcessCode, [first, count, serial]);
        layout!(
            "file_code_key",
            FileCodeKey,
            [inode, offset, ctime, ctime_nanoseconds, device]
        );
        layout!("file_code", FileCode, [base, page, pages]);
        layout!("rule_list", RuleList, [at]);
        layout!(
            "rule",
            KernelRule,
            [
                kind,
                cfa,
                cfa_register,
                frame_pointer,
                frame_pointer_register,
                base,
                return_address,
                return_register,
                cfa_offset,
                addend,
                frame_pointer_offset,
                base_offset,
                return_offset,
                reserved
            ]
        );
    }

    #[test]
    fn each_end_of_a_stack_is_converted_and_only_one_is_complete() {
        for (end, expected) in [
            (0, StackEnd::FramePointers),
            (1, StackEnd::Start),
            (2, StackEnd::NoTables),
            (3, StackEnd::BadTables),
            (4, StackEnd::Unreadable),
            (5, StackEnd::NotExecutable),
            (6, StackEnd::Limit),
            (8, StackEnd::NoTables),
        ] {
            assert!(!stack_end::is_gone(end));
            assert_eq!(stack_end::of(end), expected);
            assert_eq!(stack_end::of(end | stack_end::ALL_MAPPINGS), expected);
        }
        assert!(stack_end::is_gone(7 | stack_end::ALL_MAPPINGS));
    }

    #[test]
    fn a_rule_of_each_kind_is_converted() {
        assert_eq!(KernelRule::from(Rule::Gap), KernelRule::default());
        let context = Rule::Context {
            register: 7,
            offset: 40,
            signal: true,
        };
        let expected = KernelRule {
            kind: 4,
            cfa_register: 7,
            cfa_offset: 40,
            addend: 1,
            ..KernelRule::default()
        };
        assert_eq!(KernelRule::from(context), expected);
        let frame = Rule::Frame(FrameRule {
            cfa: Cfa::Memory {
                register: 6,
                offset: -8,
                addend: 16,
            },
            frame_pointer: Saved::AtFramePointer(-24),
            base: Saved::AtCfa(-32),
            return_address: ReturnAddress::AtCfa(-8),
        });
        let expected = KernelRule {
            kind: 3,
            cfa: 1,
            cfa_register: 6,
            frame_pointer: 2,
            base: 1,
            cfa_offset: -8,
            addend: 16,
            frame_pointer_offset: -24,
            base_offset: -32,
            return_offset: -8,
            ..KernelRule::default()
        };
        assert_eq!(KernelRule::from(frame), expected);
    }
}
