//! Stacks by frame pointers, as the program walks them until it has a process's unwind tables.

use std::ffi::CString;
use std::fs;
use std::ops::ControlFlow;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use otelctx_fixtures::sampled::Sampled;

use super::*;

/// Where the loop of `call_with` begins (`spin.c`).
const LOOP: u64 = 64;

/// A frame pointer that leads to itself would give as many frames as there is room for, and each
/// returns to code.
#[test]
fn frames_that_do_not_ascend_from_the_stack_pointer_end_a_stack() {
    let Some(program) = Sampled::own().stacks() else {
        return;
    };
    let Some(idle) = busy() else { return };
    for without_loops in [false, true] {
        let mut options = Options::new(Targets::Processes(vec![idle.pid()]));
        options.frequency = 499;
        options.without_loops = without_loops;
        options.without_mappings = true;
        let Some(mut recorder) = start(&options) else {
            return;
        };
        for (leads, frames, in_kernel) in [(0, 1, false), (1, 1, true), (2, 0, false)] {
            let what = format!("leads={leads}");
            let target = Target::spawn(Command::new(&program).arg(&what));
            let [function, work] = addresses(&target);
            // Without its mappings, the program walks stacks by frame pointers.
            start_sampling(&mut recorder, target.pid());
            let stacks = take(&mut recorder, &target, in_kernel);
            check(&stacks, work, frames, &what);
            // It has no more bytes (`spin.c`).
            let is_in = |stack: &Vec<u64>| (function..function + 256).contains(&stack[0]);
            assert!(stacks.iter().all(is_in), "{what}: {stacks:x?}");
            if in_kernel && let Some(_probe) = probe(target.pid(), function + LOOP, &program) {
                // Earlier samples.
                drop(take(&mut recorder, &target, in_kernel));
                let stacks = take(&mut recorder, &target, in_kernel);
                check(&stacks, work, frames, "with a uprobe");
            }
        }
    }
}

/// Where the thread's innermost function and its first one begin.
fn addresses(target: &Target) -> [u64; 2] {
    let mut addresses = target.lines[0].split(' ').map(|it| it.parse().unwrap());
    [(); 2].map(|()| addresses.next().unwrap())
}

/// Checks all frames but the innermost one, which steps over a probe elsewhere.
fn check(stacks: &[Vec<u64>], work: u64, frames: usize, what: &str) {
    for stack in stacks {
        assert_eq!(stack[1..], [work][..frames], "{what}: {stack:x?}");
    }
}

/// Takes stacks of a program's thread, all in the kernel, or none.
fn take(recorder: &mut Recorder, target: &Target, in_kernel: bool) -> Vec<Vec<u64>> {
    let is_wanted =
        |mut parts: abi::Parts<'_>| parts.any(|part| part.kind == part::KERNEL_STACK) == in_kernel;
    let stacks = take_stacks(recorder, target.pid(), 20, is_wanted).into_iter();
    let by_frame_pointers = |(end, stack)| {
        assert_eq!(end, stack_end::BY_FRAME_POINTERS);
        stack
    };
    stacks.map(by_frame_pointers).collect()
}

/// Sets a uprobe at an address of a process; `None`, with a line, where the kernel has none.
fn probe(pid: i32, address: u64, program: &std::path::Path) -> Option<OwnedFd> {
    let Ok(kind) = fs::read_to_string("/sys/bus/event_source/devices/uprobe/type") else {
        eprintln!("skipped: the kernel has no uprobes");
        return None;
    };
    let process = reader::remote::Process::open(pid).unwrap();
    let mut offset = None;
    let found = process.executable_mappings(&mut |code| {
        let mapping = &code.mapping;
        if (mapping.start..mapping.end).contains(&address) {
            offset = Some(address - mapping.start + mapping.offset);
        }
        ControlFlow::Continue(())
    });
    found.unwrap();
    let path = CString::new(program.as_os_str().as_bytes()).unwrap();
    let mut attributes = [0_u64; 12];
    // Type and size, the path and the offset in it: `struct perf_event_attr`.
    attributes[0] = kind.trim().parse::<u64>().unwrap() | (size_of_val(&attributes) as u64) << 32;
    attributes[7] = path.as_ptr() as u64;
    attributes[8] = offset.unwrap();
    // SAFETY: the structure has the announced size, and it and the path are valid during the call.
    let event = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attributes.as_ptr(),
            pid,
            -1,
            -1,
            8,
        )
    };
    assert!(event >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the kernel has just returned it.
    Some(unsafe { OwnedFd::from_raw_fd(event as libc::c_int) })
}
