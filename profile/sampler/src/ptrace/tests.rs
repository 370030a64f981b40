//! Tests of what cannot be observed from outside.

use std::process::Command;
use std::time::Instant;

use otelctx_fixtures::{Compiler, Target};
use reader::remote::stop::on_own_thread;
use reader::remote::threads::ThreadFiles;

use super::*;
use crate::INTERVAL;

/// Long enough for everything to happen, even on a slow machine.
const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;

/// From here on, the calls of a system call of this thread fail with this `errno` if one of these
/// bits is set in the lower half of an argument.
pub(super) fn refuse(call: libc::c_long, argument: u32, bits: u32, errno: libc::c_int) {
    let instruction = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let jump = libc::BPF_JMP | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    // struct seccomp_data: the number of the system call, and its arguments from byte 16 on.
    let mut program = [
        instruction(load, 0, 0, 0),
        instruction(jump | libc::BPF_JEQ, 0, 3, call as u32),
        instruction(load, 0, 0, 16 + 8 * argument),
        instruction(jump | libc::BPF_JSET, 0, 1, bits),
        instruction(answer, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        instruction(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the program outlives the calls, which copy it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        let set = libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter);
        assert_eq!(set, 0);
    }
}

/// The main thread sleeps, like that of most servers.
#[test]
fn a_sleeping_thread_is_not_stopped_at_the_start() {
    let Some(program) = Compiler::gcc().program::<&str>(&["signals.c"], &[]) else {
        return;
    };
    let target = Target::spawn(&mut Command::new(program));
    let process = Process::open(target.pid()).unwrap();
    let mut files = ThreadFiles::open(&process, target.pid()).unwrap();
    let start = Instant::now();
    while files.call().unwrap().is_none() {
        assert!(start.elapsed() < TIMEOUT);
        std::thread::sleep(INTERVAL);
    }
    let options = Options::new(Targets::Processes(vec![target.pid()]));
    let recorder = || Recorder::start(&options, reader::Options::default(), None);
    // It may have slept in an earlier call at first.
    let started = (0..3).find_map(|_| files.read_asleep(recorder).unwrap());
    started.expect("the thread ran").unwrap();
}

/// Its mappings used to be scanned at each tick.
#[test]
fn a_process_that_publishes_nothing_is_scanned_less_and_less_often() {
    let script = "echo ready; while :; do :; done";
    let target = Target::spawn(Command::new("sh").args(["-c", script]));
    let options = Options::new(Targets::Processes(vec![target.pid()]));
    let mut recorder = Recorder::start(&options, reader::Options::default(), None).unwrap();
    let (mut catalog, start) = (Catalog::new(), Instant::now());
    while recorder.processes().counts().not_published < 50 {
        assert!(
            start.elapsed() < TIMEOUT,
            "{:?}",
            recorder.processes().counts()
        );
        std::thread::sleep(INTERVAL);
        recorder.drain(&mut catalog, &mut |_| {});
    }
    assert_eq!(
        recorder.processes().counts().samples(),
        recorder.processes().counts().not_published
    );
    // At the start, after 40, 80, 160, 320, 640 ms and 1.28 s, and then every 2 s.
    let polls = recorder.processes.following.tracker.polls();
    let most = 8 + (monotonic() - recorder.started()) / 2_000_000_000;
    assert!(polls <= most, "{polls}");
}

/// The error used to be about a CPU's clock.
#[test]
fn a_worker_that_cannot_be_started_is_reported() {
    let error = on_own_thread(|| {
        refuse(libc::SYS_clone3, 1, u32::MAX, libc::EAGAIN);
        refuse(libc::SYS_clone, 0, u32::MAX, libc::EAGAIN);
        let options = Options::new(Targets::All);
        Recorder::start(&options, reader::Options::default(), None).err()
    });
    let error = error.unwrap();
    assert!(
        matches!(error, Some(Error::Remote(RemoteError::NoOwnThread(_)))),
        "{error:?}"
    );
}
