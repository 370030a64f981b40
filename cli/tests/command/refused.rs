//! If eBPF is refused, `record` says so in one line, with what would grant it, and goes on with
//! ptrace; its samples are as right. If that is refused as well, it ends.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;

use crate::run::{Answer, Scratch, command, deny, deny_if, deny_mapping, given_time, otelctx};
use crate::target::{self, TRACE, Target};
use crate::unprivileged::{Copy, NOBODY};

/// Start of the line that says so.
const STOPPED: &str = "otelctx: sampling with ptrace, which stops threads briefly: ";
pub(crate) const SETCAP: &str = "setcap cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search+ep ";

// <linux/capability.h>; none of nix's.
const CAP_SYS_PTRACE: libc::c_ulong = 19;
pub(crate) const CAP_SYS_ADMIN: libc::c_ulong = 21;
const CAP_SYS_RESOURCE: libc::c_ulong = 24;
pub(crate) const CAP_PERFMON: libc::c_ulong = 38;
pub(crate) const CAP_BPF: libc::c_ulong = 39;
// <linux/bpf.h>
const BPF_MAP_CREATE: u32 = 0;

/// Returns whether this is root, which can drop the privileges that are to be missing.
pub(crate) fn is_root() -> bool {
    if !geteuid().is_root() {
        eprintln!("skipped: needs root");
    }
    geteuid().is_root()
}

/// Records a busy target with something denied to the recorder, and asserts that it says why
/// in one line (`None`: that it says nothing, because it is by eBPF), and that its samples are right.
fn recorded(name: &str, why: Option<&str>, take_away: impl Fn(&mut Command)) {
    let target = Target::start("busy");
    let scratch = Scratch::new(&format!("refused-{name}"));
    let path = scratch.path("a.otlp");
    let pid = target.pid().to_string();
    given_time(|seconds| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_otelctx"));
        command.args(["record", "-d", seconds, "-p", &pid, "-o", &path]);
        take_away(&mut command);
        let answer = Answer::of(command.output().unwrap());
        // Otherwise it also says what is missing.
        has_each_thread(&path)?;
        assert_reported(name, &answer, why);
        Ok::<(), Answer>(())
    });
    right(name, &path);
}

/// Returns whether threads were sampled that have a trace, and others that have none.
fn has_each_thread(path: &str) -> Result<(), Answer> {
    let answer = otelctx(&["report", "--json", path]);
    if answer.status != 0 {
        // There is no file.
        return Err(answer);
    }
    let report = answer.json();
    let number = |name: &str| report[name].as_u64().unwrap();
    let traced = number("with_trace");
    match traced > 0 && traced < number("samples") {
        true => Ok(()),
        false => Err(answer),
    }
}

fn assert_reported(name: &str, answer: &Answer, why: Option<&str>) {
    assert_eq!(answer.status, 0, "{name}: {answer:?}");
    let lines: Vec<&str> = answer.stderr.lines().collect();
    let is_reported = match (why, &lines[..]) {
        (Some(why), [line]) => line.starts_with(STOPPED) && line.contains(why),
        (None, []) => true,
        _ => false,
    };
    assert!(is_reported, "{name}: {answer:?}");
}

/// Asserts that one thread of the target has the trace that it works on, and no other has any.
fn right(name: &str, path: &str) {
    let report = otelctx(&["report", "--json", path]).expect(0).json();
    let traced = report["with_trace"].as_u64().unwrap();
    let samples = report["samples"].as_u64().unwrap();
    assert!(traced > 0 && traced < samples, "{name}: {report:#}");
    let traces = report["by_trace"].as_array().unwrap();
    assert_eq!(traces.len(), 1, "{name}: {report:#}");
    assert_eq!(traces[0]["trace_id"], TRACE, "{name}");
    assert_eq!(traces[0]["samples"], traced, "{name}");
}

/// Takes capabilities away from what a command becomes.
pub(crate) fn drop_capabilities(command: &mut Command, capabilities: &'static [libc::c_ulong]) {
    let drop = move || {
        for capability in capabilities {
            // SAFETY: a plain system call; root has what it takes.
            if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, *capability, 0, 0, 0) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec it only makes system calls.
    unsafe { command.pre_exec(drop) };
}

fn limit(command: &mut Command, resource: libc::__rlimit_resource_t, most: libc::rlim_t) {
    let set = move || {
        let limit = libc::rlimit {
            rlim_cur: most,
            rlim_max: most,
        };
        // SAFETY: the structure lives through the call.
        match unsafe { libc::setrlimit(resource, &raw const limit) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec it only makes a system call.
    unsafe { command.pre_exec(set) };
}

/// Shows nothing of a folder to a command.
fn hide(command: &mut Command, folder: &'static str) {
    let hide = move || {
        unshare(CloneFlags::CLONE_NEWNS)?;
        let (none, nothing) = (None::<&str>, MsFlags::empty());
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        mount(Some("none"), folder, Some("tmpfs"), nothing, none)?;
        Ok(())
    };
    // SAFETY: between fork and exec it only makes system calls, with paths on the stack.
    unsafe { command.pre_exec(hide) };
}

/// The data that leads to its contexts can't be read then, although it could be sampled.
#[test]
fn a_process_that_may_not_be_read_is_refused_also_by_ebpf() {
    if !is_root() || !is_permitted("unreadable") {
        return;
    }
    let target = Target::start("busy");
    let scratch = Scratch::new("refused-unreadable");
    let path = scratch.path("a.otlp");
    let mut command = Command::new(env!("CARGO_BIN_EXE_otelctx"));
    let pid = target.pid().to_string();
    command.args(["record", "-d", "1", "-p", &pid, "-o", &path]);
    // The target has it.
    drop_capabilities(&mut command, &[CAP_SYS_PTRACE]);
    let answer = Answer::of(command.output().unwrap()).expect(2);
    let why = format!("not permitted to read the memory of process {pid}");
    assert!(answer.stderr.contains(&why), "{answer:?}");
    assert!(!Path::new(&path).exists());
}

/// Returns whether root may use eBPF here: not in every container.
pub(crate) fn is_permitted(name: &str) -> bool {
    let scratch = Scratch::new(&format!("permitted-{name}"));
    let path = scratch.path("a.otlp");
    // It may say that there was nothing to sample.
    let answer = otelctx(&["record", "-o", &path, "--", "true"]).expect(0);
    let refused = answer.stderr.lines().find(|line| line.starts_with(STOPPED));
    if let Some(why) = refused {
        eprintln!("skipped: {why}");
    }
    refused.is_none()
}

/// Returns whether eBPF memory counts as locked memory here: before Linux 5.11.
fn locks_memory() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|it| it.parse::<u32>());
    let mut number = || numbers.next().unwrap().unwrap();
    (number(), number()) < (5, 11)
}

#[test]
fn without_rights_a_program_of_the_users_own_is_recorded() {
    let copy = Copy::new("refused-nobody");
    let program = Copy::of(&target::program(), "refused-target");
    let target = Target::start_program_with(program.path(), "busy", |command| {
        if geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
    });
    let scratch = Scratch::new("refused-nobody-file");
    let path = scratch.path("a.otlp");
    let pid = target.pid().to_string();
    let hint = format!("run as root, or `{SETCAP}{}`", copy.path().display());
    given_time(|seconds| {
        let answer = copy.run(&["record", "-d", seconds, "-p", &pid, "-o", &path]);
        has_each_thread(&path)?;
        assert_reported("nobody", &answer, Some(&hint));
        Ok::<(), Answer>(())
    });
    right("nobody", &path);
}

#[test]
fn without_one_of_the_capabilities() {
    if !is_root() {
        return;
    }
    for (name, capabilities) in [
        ("CAP_BPF", &[CAP_SYS_ADMIN, CAP_BPF][..]),
        ("CAP_PERFMON", &[CAP_SYS_ADMIN, CAP_PERFMON]),
        ("both", &[CAP_SYS_ADMIN, CAP_BPF, CAP_PERFMON]),
    ] {
        recorded(name, Some(SETCAP), |command| {
            drop_capabilities(command, capabilities);
        });
    }
}

/// The capabilities that the message names are enough.
#[test]
fn with_the_capabilities_alone() {
    if !is_root() || !is_permitted("capabilities") {
        return;
    }
    recorded("CAP_SYS_ADMIN", None, |command| {
        drop_capabilities(command, &[CAP_SYS_ADMIN]);
    });
}

#[test]
fn a_sandbox_that_forbids_it_although_the_capabilities_are_there() {
    if !is_root() {
        return;
    }
    let privileged = Some("docker run --privileged");
    recorded("bpf", privileged, |command| {
        deny(command, libc::SYS_bpf, libc::EPERM);
    });
    // As kernel.perf_event_paranoid does for those without the capability.
    recorded("perf_event_open", privileged, |command| {
        deny(command, libc::SYS_perf_event_open, libc::EACCES);
    });
}

#[test]
fn a_kernel_without_the_system_call() {
    if !is_root() {
        return;
    }
    let why = Some("does not accept the eBPF program: ");
    recorded("ENOSYS", why, |command| {
        deny(command, libc::SYS_bpf, libc::ENOSYS);
    });
}

#[test]
fn a_kernel_without_type_information() {
    if !is_root() {
        return;
    }
    recorded("no BTF", Some("CONFIG_DEBUG_INFO_BTF"), |command| {
        hide(command, "/sys/kernel/btf");
    });
    recorded("no /sys", Some("`mount -t sysfs sysfs /sys`"), |command| {
        hide(command, "/sys");
    });
}

#[test]
fn no_memory_or_descriptors_for_the_program() {
    if !is_root() {
        return;
    }
    recorded("memory", Some("Cannot allocate memory"), |command| {
        deny_if(command, libc::SYS_bpf, BPF_MAP_CREATE, libc::ENOMEM);
    });
    recorded("descriptors", Some("Too many open files"), |command| {
        limit(command, libc::RLIMIT_NOFILE, 14);
    });
}

#[test]
fn without_reports_of_mappings_a_line_says_so() {
    if !is_root() || !is_permitted("reports") {
        return;
    }
    let target = Target::start("busy");
    let pid = target.pid().to_string();
    let scratch = Scratch::new("refused-reports");
    let path = scratch.path("a.otlp");
    let line = "the kernel does not report mappings: Cannot allocate memory (os error 12)";
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_otelctx"));
        // The ring of each CPU (`side_band.rs` in the sampler): its data, and a page.
        let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE);
        let size = (128 << 10) + page.unwrap().unwrap() as u32;
        deny_mapping(command.args(arguments), size, libc::ENOMEM);
        let answer = Answer::of(command.output().unwrap());
        assert_eq!(answer.status, 0, "{answer:?}");
        let output = [&answer.stdout[..], &answer.stderr].concat();
        assert_eq!(output.matches(line).count(), 1, "{answer:?}");
    };
    run(&["top", "--iterations", "1", "-p", &pid]);
    given_time(|seconds| {
        run(&["record", "-d", seconds, "-p", &pid, "-o", &path]);
        has_each_thread(&path)
    });
    right("reports", &path);
}

#[test]
fn the_limit_on_locked_memory_counts_before_linux_5_11() {
    if !is_root() || !is_permitted("locked") {
        return;
    }
    let why = locks_memory().then_some("`ulimit -l unlimited`");
    recorded("locked memory", why, |command| {
        limit(command, libc::RLIMIT_MEMLOCK, 1 << 16);
        drop_capabilities(command, &[CAP_SYS_ADMIN, CAP_SYS_RESOURCE]);
    });
}

#[test]
fn where_ptrace_is_refused_too_it_ends() {
    let target = Target::start("busy");
    let scratch = Scratch::new("refused-both");
    let path = scratch.path("a.otlp");
    let pid = target.pid().to_string();
    for errno in [libc::EPERM, libc::ENOSYS] {
        let mut command = command(&["record", "-d", "60", "-p", &pid, "-o", &path]);
        deny(&mut command, libc::SYS_bpf, errno);
        deny(&mut command, libc::SYS_ptrace, libc::EPERM);
        let answer = Answer::of(command.output().unwrap()).expect(2);
        let lines: Vec<&str> = answer.stderr.lines().collect();
        assert_eq!(lines.len(), 2, "{answer:?}");
        let headline = format!("otelctx: not permitted to stop a thread of process {pid}");
        assert_eq!(lines[0], headline);
        assert!(lines[1].contains("CAP_SYS_PTRACE"), "{answer:?}");
        assert_eq!(answer.stdout, "");
        assert_eq!(scratch.names(), [""; 0]);
    }
}

/// The IDs there are those of other processes: one would be read, and another one stopped.
#[test]
fn a_proc_of_another_pid_namespace_is_refused() {
    let target = Target::start("shop");
    let pid = target.pid().to_string();
    let inside = |proc: &[&str], arguments: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--pid", "--fork"]).args(proc);
        // SAFETY: geteuid takes nothing.
        if unsafe { nix::libc::geteuid() } != 0 {
            unshare.arg("--map-root-user");
        }
        let command = command(arguments);
        let output = unshare
            .arg(command.get_program())
            .args(command.get_args())
            .output();
        Answer::of(output.unwrap())
    };
    // Where that is not permitted, nothing can be tried.
    if inside(&["--mount-proc"], &["--version"]).status != 0 {
        return eprintln!("skipped: no PID namespace (unshare)");
    }
    for arguments in [&["dump", &pid][..], &["dump", "1"], &["check", &pid]] {
        let answer = inside(&[], arguments).expect(2);
        assert!(
            answer
                .stderr
                .contains("/proc belongs to another PID namespace"),
            "{answer:?}"
        );
        assert_eq!(answer.stdout, "");
    }
    // In a /proc of its own it is the process, and finds no other.
    let answer = inside(&["--mount-proc"], &["dump", &pid]).expect(2);
    assert!(answer.stderr.contains("does not exist"), "{answer:?}");
}
