//! Whether two processes run in the same memory, as after vfork(2) or clone(2) with `CLONE_VM`.

use nix::libc;

/// `KCMP_VM` of linux/kcmp.h: compare the address spaces.
const KCMP_VM: libc::c_long = 1;

/// Whether both processes run in the same memory. A kernel that can't tell (built without kcmp)
/// is taken to say yes: only processes whose contexts agree in place and time are asked about.
pub(super) fn is_shared(one: i32, other: i32) -> bool {
    // SAFETY: kcmp with KCMP_VM takes numbers, no pointers (kernel/kcmp.c).
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) };
    // 0 is equal, 1 and 2 are some order, -1 is an error.
    order <= 0
}

#[cfg(test)]
mod tests {
    use super::is_shared;

    #[test]
    fn a_process_shares_memory_with_itself_and_not_with_a_child_it_spawned() {
        let own = std::process::id() as i32;
        assert!(is_shared(own, own));
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let shared = is_shared(own, child.id() as i32);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!shared);
    }
}
