//! Denying system calls to the calling thread and its children.

/// From here on, these system calls fail with EPERM (seccomp(2), classic BPF).
pub(crate) fn deny(calls: &[libc::c_long]) {
    answer(calls, libc::EPERM);
}

/// From here on, these system calls do nothing and fail with this `errno`, or succeed when it is
/// 0. Of several answers to one call the latest counts.
pub(crate) fn answer(calls: &[libc::c_long], errno: libc::c_int) {
    let instruction = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    // Load seccomp_data.nr; compare with each; allow; or fail.
    let mut program = vec![instruction(
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        0,
        0,
        0,
    )];
    for (at, call) in calls.iter().enumerate() {
        let to_failure = (calls.len() - at) as u8;
        let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        program.push(instruction(equal, to_failure, 0, *call as u32));
    }
    let fail = libc::SECCOMP_RET_ERRNO | errno as u32;
    program.push(instruction(
        libc::BPF_RET | libc::BPF_K,
        0,
        0,
        libc::SECCOMP_RET_ALLOW,
    ));
    program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, 0, fail));
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the program outlives the calls, which copy it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let set = libc::SECCOMP_SET_MODE_FILTER;
        assert_eq!(
            libc::syscall(libc::SYS_seccomp, set, 0, &raw const filter),
            0
        );
    }
}
