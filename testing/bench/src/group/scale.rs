//! Processes with very many mappings; very many processes; very many threads.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Instant;

use otelctx_fixtures::{Compiler, MaxMapCount, Target};
use otelctx_reader::{ContextState, FileCache, Options, Process};

use crate::child::{self, Role};
use crate::pair::{self, Pair};
use crate::row::Report;
use crate::{machine, scratch};

/// Mappings of a large process, and of an enormous one.
const MANY: u64 = 60_000;
const ENORMOUS: u64 = 2_000_000;
/// Processes, and how many of them publish.
const PROCESSES: usize = 1000;
const PUBLISHERS: usize = 30;
const THREADS: usize = 1000;

const KIB: f64 = 1024.0;

/// Reports its rows, or returns why it has none.
type Work = fn(&mut Report) -> Result<(), String>;

pub(crate) fn run(report: &mut Report) {
    report.group("scale");
    let works: [(&str, Work); 4] = [
        ("many mappings", many_mappings),
        ("2,000,000 mappings", enormous),
        ("many processes", many_processes),
        ("many threads", many_threads),
    ];
    for (what, work) in works {
        if let Err(why) = work(report) {
            report.failed(what, &why);
        }
    }
}

/// A target with `count` mappings, which publishes from the middle of them.
fn target(kind: &str, count: u64, publishes: bool) -> Result<Target, String> {
    let program = Compiler::gcc().program::<&str>(&["mappings.c"], &[]);
    let program = program.ok_or("there is no C compiler")?;
    let mut target = Target::spawn(&mut Command::new(program));
    target.command(&format!("map {kind} {}", count / 2));
    if publishes {
        target.command("publish shop");
    }
    target.command(&format!("map {kind} {}", count / 2));
    Ok(target)
}

fn many_mappings(report: &mut Report) -> Result<(), String> {
    let _pinned = machine::Pinned::to(0);
    for (kind, name, bound) in [("files", "file", 0.6), ("memory", "anonymous", 1.0)] {
        let it = target(kind, MANY, true)?;
        let work = format!("first read, 60,000 {name} mappings");
        if read(it.pid(), false)? != read(it.pid(), true)? {
            return Err(format!("{work}: the two ways differ"));
        }
        if has_query(it.pid()) {
            let pair = against_maps(&[it.pid()], 41, || read(it.pid(), false).is_ok());
            report.pair(format!("{work}, query"), pair, "ms", bound);
        } else {
            report.skipped(&work, "this kernel has no PROCMAP_QUERY");
        }
        let pair = against_maps(&[it.pid()], 41, || read(it.pid(), true).is_ok());
        report.pair(format!("{work}, text"), pair, "ms", 1.1);
        drop(it);
        let it = target(kind, MANY, false)?;
        let pair = against_maps(&[it.pid()], 21, || absent(it.pid()).is_ok());
        report.pair(
            format!("60,000 {name} mappings, no context"),
            pair,
            "ms",
            1.1,
        );
    }
    Ok(())
}

fn enormous(report: &mut Report) -> Result<(), String> {
    let raised = match MaxMapCount::raise(ENORMOUS + 1000) {
        Ok(raised) => raised,
        Err(why) => {
            report.skipped("2,000,000 mappings", &why);
            return Ok(());
        }
    };
    for (kind, name) in [("files", "file"), ("memory", "anonymous")] {
        let it = target(kind, ENORMOUS, true)?;
        let pid = it.pid();
        for (text, way) in [(true, "text"), (false, "query")] {
            let pair = against_maps(&[pid], 3, || read(pid, text).is_ok());
            let work = format!("first read, 2,000,000 {name} mappings, {way}");
            report.pair(work, pair, "ms", 1.1);
            let peak = scratch::output(&mut child::command(&["read", &pid.to_string(), way]))?;
            let peak = peak
                .trim()
                .parse::<f64>()
                .map_err(|error| error.to_string())?;
            report.alone("  its reader's memory", peak / KIB, "MiB", 64.0);
        }
    }
    drop(raised);
    Ok(())
}

/// Processes that do nothing, and some that publish.
fn many_processes(report: &mut Report) -> Result<(), String> {
    let program = Compiler::gcc().program::<&str>(&["mappings.c"], &[]);
    let program = program.ok_or("there is no C compiler")?;
    let mut publishers = Vec::new();
    let mut silent = Vec::new();
    for number in 0..PROCESSES {
        if number % (PROCESSES / PUBLISHERS) == 0 && publishers.len() < PUBLISHERS {
            publishers.push(Role::start(&["publisher", "0"])?);
        } else {
            silent.push(Target::spawn(&mut Command::new(&program)));
        }
    }
    let mut pids: Vec<i32> = publishers.iter().map(Role::pid).collect();
    pids.extend(silent.iter().map(Target::pid));
    let modules = FileCache::default();
    let published = pids
        .iter()
        .filter(|pid| child::read_for_ps(**pid, &modules).unwrap_or(false));
    if published.count() != PUBLISHERS {
        return Err("not all publishers were found".into());
    }

    let pair = against_maps(&pids, 21, || {
        let modules = FileCache::default();
        pids.iter()
            .all(|pid| child::read_for_ps(*pid, &modules).is_ok())
    });
    report.pair("1,000 processes, the library", pair, "ms", 1.3);
    let names: Vec<String> = pids.iter().map(i32::to_string).collect();
    let arguments: Vec<&str> = std::iter::once("list")
        .chain(names.iter().map(String::as_str))
        .collect();
    report.alone("  its memory", peak_of(&arguments)?, "MiB", 20.0);

    // The command takes no list of processes: it reads all of them.
    let otelctx = scratch::otelctx()?;
    let all = otelctx_reader::remote::process::processes().map_err(|error| error.to_string())?;
    let pair = against_maps(&all, 21, || {
        let mut ps = Command::new(&otelctx);
        let quiet = ps.arg("ps").stdout(Stdio::null()).stderr(Stdio::null());
        quiet.status().is_ok_and(|status| status.success())
    });
    report.pair("otelctx ps, of every process there is", pair, "ms", 1.25);
    let peak = peak_of(&["peak", &otelctx, "ps"])?;
    report.alone("  its memory", peak, "MiB", 20.0);
    Ok(())
}

fn many_threads(report: &mut Report) -> Result<(), String> {
    let target = Role::start(&["threads", &THREADS.to_string()])?;
    let pid = target.pid().to_string();
    let otelctx = scratch::otelctx()?;
    let text = scratch::output(Command::new(&otelctx).args(["dump", &pid, "--json"]))?;
    let attached = text.matches("/api/v1/cart").count();
    if attached != THREADS {
        return Err(format!("{attached} of {THREADS} threads were read"));
    }
    let peak = peak_of(&["peak", &otelctx, "dump", &pid])?;
    report.alone("dump of 1,000 threads, memory", peak, "MiB", 40.0);
    Ok(())
}

/// This project's work compared with opening, reading and closing these processes' `maps`, in
/// milliseconds.
fn against_maps(pids: &[i32], rounds: usize, mut ours: impl FnMut() -> bool) -> Pair {
    let mut failed = false;
    let mut timed = |work: &mut dyn FnMut() -> bool| {
        let start = Instant::now();
        failed |= !work();
        start.elapsed().as_nanos() as f64
    };
    let timed = std::cell::RefCell::new(&mut timed);
    let rounds = pair::interleave(
        rounds,
        || timed.borrow_mut()(&mut ours),
        || {
            timed.borrow_mut()(&mut || {
                pids.iter().for_each(|pid| read_maps(*pid));
                true
            })
        },
    );
    let pair = rounds.medians(1e6);
    if failed {
        return Pair::of(f64::NAN, pair.peer);
    }
    pair
}

/// Processes that have ended or have no memory are skipped.
fn read_maps(pid: i32) {
    let Ok(mut maps) = File::open(format!("/proc/{pid}/maps")) else {
        return;
    };
    let mut buffer = [0; 64 * 1024];
    while maps.read(&mut buffer).is_ok_and(|length| length > 0) {}
}

fn read(pid: i32, text: bool) -> Result<(u64, Vec<u64>), String> {
    let mut options = Options::default();
    options.maps_as_text = text;
    let process = Process::with_options(pid, options);
    match process.and_then(|mut process| process.context()) {
        Ok(ContextState::Published(context)) => Ok((context.address, context.others.clone())),
        other => Err(format!("its context: {other:?}")),
    }
}

fn absent(pid: i32) -> Result<(), String> {
    match Process::open(pid).and_then(|mut process| process.context()) {
        Ok(ContextState::Absent) => Ok(()),
        other => Err(format!("its context: {other:?}")),
    }
}

/// Whether the kernel answers PROCMAP_QUERY: ENOTTY for what it does not know, EFAULT for what it
/// does but has nowhere to read from.
fn has_query(pid: i32) -> bool {
    use std::os::fd::AsRawFd;
    // _IOWR('f', 17, struct procmap_query), include/uapi/linux/fs.h
    const PROCMAP_QUERY: u64 = 0xc068_6611;
    let Ok(maps) = File::open(format!("/proc/{pid}/maps")) else {
        return false;
    };
    // SAFETY: the kernel reads nothing from a null pointer.
    let answer =
        unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, std::ptr::null_mut::<u8>()) };
    answer != 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::ENOTTY)
}

/// The peak memory that a role of this program prints, in MiB.
fn peak_of(role: &[&str]) -> Result<f64, String> {
    let output = scratch::output(&mut child::command(role))?;
    let kib: f64 = output.trim().parse().map_err(|_| output.clone())?;
    Ok(kib / KIB)
}
