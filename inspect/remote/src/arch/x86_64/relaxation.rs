//! Recognizes the code that a linker puts in place of a TLS descriptor (System V ABI, AMD64
//! supplement, "Thread-Local Storage", GNU2 dialect).
//!
//! `lea variable@tlsdesc(%rip), %rax; call *(%rax)` becomes `mov $offset, %rax` (local exec) or
//! `mov slot(%rip), %rax` (initial exec), and in the call's place `xchg %ax, %ax`, which no
//! compiler writes behind a `mov` of that form. Other accesses leave no trace: what a linker makes
//! of general dynamic code is what a compiler writes for the other models.

use crate::arch::Relaxed;

/// Length of the longest code sequence, in bytes.
pub(crate) const MAX_SEQUENCE: usize = 9;

const CALL: [u8; 2] = [0x66, 0x90];

/// Counts the traces that begin in `code`, which lies at `address`: of accesses to the variable at
/// `offset` from the thread pointer, or through one of the `slots`.
pub(crate) fn find(code: &[u8], address: u64, offset: Option<i64>, slots: &[u64]) -> Relaxed {
    let mut found = Relaxed::default();
    for (index, window) in code.windows(MAX_SEQUENCE).enumerate() {
        if window[7..] != CALL || window[0] != 0x48 {
            continue;
        }
        let value = i32::from_le_bytes([window[3], window[4], window[5], window[6]]);
        match window[1..3] {
            [0xc7, 0xc0] => found.to_local_exec += usize::from(offset == Some(value.into())),
            [0x8b, 0x05] => {
                let next = address.wrapping_add(index as u64 + 7);
                let slot = next.wrapping_add_signed(value.into());
                found.to_initial_exec += usize::from(slots.contains(&slot));
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_accesses_to_the_variable_itself_count() {
        let local = [0x48, 0xc7, 0xc0, 0xf8, 0xff, 0xff, 0xff, 0x66, 0x90, 0x90];
        let counts = |code: &[u8], offset, slots: &[u64]| {
            let found = find(code, 0x1174, offset, slots);
            (found.to_local_exec, found.to_initial_exec)
        };
        assert_eq!(counts(&local, Some(-8), &[]), (1, 0));
        assert_eq!(counts(&local, Some(-16), &[]), (0, 0));
        assert_eq!(counts(&local, None, &[]), (0, 0));
        assert_eq!(counts(&local[..8], Some(-8), &[]), (0, 0));
        // As GNU ld has written it: the slot is at 0x3fc0.
        let initial = [0x48, 0x8b, 0x05, 0x45, 0x2e, 0, 0, 0x66, 0x90];
        assert_eq!(counts(&initial, Some(-8), &[0x3fc0]), (0, 1));
        assert_eq!(counts(&initial, Some(-8), &[0x3fc8]), (0, 0));
    }
}
