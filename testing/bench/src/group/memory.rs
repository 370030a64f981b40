//! Memory of `otelctx record --all` over ten minutes on a busy machine, at two frequencies. Needs root.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::pair::Pair;
use crate::row::Report;
use crate::scratch::{self, Directory};

/// How long to record at each frequency; `OTELCTX_SOAK_SECONDS` shortens it.
const TIME: Duration = Duration::from_secs(600);
/// In Hz: the default, and the highest one that is usual.
const FREQUENCIES: [u32; 2] = [99, 999];
/// Bounds at the default frequency, in MiB: while recording, with the maps in the kernel, and while functions are
/// named and files are written.
const MAX_RECORDING: f64 = 60.0;
const MAX_WRITING: f64 = 300.0;
/// On a busy machine, most processes are short-lived: one is started this often.
const BETWEEN_STARTS: Duration = Duration::from_millis(20);

pub(crate) fn run(report: &mut Report) {
    report.group("memory");
    for frequency in FREQUENCIES {
        if let Err(why) = record(report, frequency) {
            report.failed(&format!("record --all at {frequency} Hz"), &why);
        }
    }
}

/// A process that is killed when dropped.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn start(command: &mut Command) -> Result<Self, String> {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        command.spawn().map(Self).map_err(|error| error.to_string())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two services that publish, a program that spins on each CPU, and short-lived processes.
fn record(report: &mut Report, frequency: u32) -> Result<(), String> {
    let otelctx = scratch::otelctx()?;
    let _spinning = super::sampler::spin(&[])?;
    let parent = format!("--parent={}", std::process::id());
    let service = || Running::start(Command::new(&otelctx).args(["demo-service", &parent]));
    let _services = [service()?, service()?];
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let _ = Command::new("true").status();
                std::thread::sleep(BETWEEN_STARTS);
            }
        });
        let measured = measure(report, &otelctx, frequency);
        is_over.store(true, Ordering::Relaxed);
        measured
    })
}

fn measure(report: &mut Report, otelctx: &str, frequency: u32) -> Result<(), String> {
    let seconds = std::env::var("OTELCTX_SOAK_SECONDS").ok();
    let seconds = seconds.and_then(|seconds| seconds.parse().ok());
    let time = seconds.map_or(TIME, Duration::from_secs);
    let directory = Directory::new("memory");
    let mut command = Command::new(otelctx);
    let (duration, frequency_text) = (time.as_secs().to_string(), frequency.to_string());
    let options = ["-d", &duration, "-F", &frequency_text, "-o"];
    command.args(["record", "--all"]).args(options);
    let mut recorder = Running::start(command.arg(directory.path().join("profile.otlp")))?;
    let start = Instant::now();
    let (mut sizes, mut maps) = (Vec::new(), Vec::new());
    while start.elapsed() < time {
        std::thread::sleep(Duration::from_secs(1));
        sizes.push(memory(recorder.pid())?);
        maps.push(kernel_maps(recorder.pid()));
    }
    let minute = sizes.len() / 10;
    if minute == 0 {
        return Err("OTELCTX_SOAK_SECONDS is too short: it has to be 20 or more".into());
    }
    let mean = |sizes: &[f64]| sizes.iter().sum::<f64>() / sizes.len() as f64;
    let (second, last) = (&sizes[minute..2 * minute], &sizes[9 * minute..]);
    let pair = Pair::of(mean(last), mean(second));
    let work = format!("{frequency} Hz: minute 10 to minute 2, mean");
    report.pair(work, pair, "MiB", 1.05);
    let largest = |sizes: &[f64]| sizes.iter().copied().fold(0.0, f64::max);
    let pair = Pair::of(largest(last), largest(second));
    report.pair("  the same, largest", pair, "MiB", 1.05);
    let smallest = last.iter().copied().fold(f64::MAX, f64::min);
    report.alone("  smallest in minute 10", smallest, "MiB", None);
    report.alone(
        "  its maps in the kernel, largest",
        largest(&maps),
        "MiB",
        None,
    );
    let both: Vec<f64> = sizes.iter().zip(&maps).map(|(a, b)| a + b).collect();
    let is_default = frequency == FREQUENCIES[0];
    let bound = |bound| is_default.then_some(bound);
    let work = "  processes and maps, largest";
    report.alone(work, largest(&both), "MiB", bound(MAX_RECORDING));
    let writing = writing(&mut recorder)?;
    let work = "  while functions are named, largest";
    report.alone(work, writing, "MiB", bound(MAX_WRITING));
    Ok(())
}

/// The largest memory of a recorder and its children until the recording is written, in MiB.
fn writing(recorder: &mut Running) -> Result<f64, String> {
    let mut largest: f64 = 0.0;
    while recorder
        .0
        .try_wait()
        .map_err(|error| error.to_string())?
        .is_none()
    {
        // It may end meanwhile.
        largest = largest.max(memory(recorder.pid()).unwrap_or(0.0));
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(largest)
}

/// The memory of a process and its children, in MiB.
fn memory(pid: u32) -> Result<f64, String> {
    Ok(processes(pid)?.into_iter().map(pss).sum())
}

/// A process and its children.
pub(crate) fn processes(pid: u32) -> Result<Vec<u32>, String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).map_err(|error| error.to_string())?;
    let mut all = vec![pid];
    for task in tasks.flatten() {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        all.extend(children.split_whitespace().flat_map(str::parse::<u32>));
    }
    Ok(all)
}

/// A process's share of the memory that it has mapped, in MiB, without maps in the kernel, which it has mapped, too.
/// Pages that it shares with other processes count in part.
fn pss(pid: u32) -> f64 {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let (mut kib, mut is_counted) = (0.0, true);
    for line in smaps.lines() {
        match line.strip_prefix("Pss:") {
            Some(field) if is_counted => kib += in_kib(field),
            Some(_) => {}
            // The line of a mapping begins with its addresses, and ends with its name.
            None if line.split(' ').next().is_some_and(|it| it.contains('-')) => {
                is_counted = !line.ends_with("anon_inode:bpf-map");
            }
            None => {}
        }
    }
    kib / 1024.0
}

/// A process's share of memory without a file, in MiB.
pub(crate) fn anonymous_pss(pid: u32) -> f64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let mut lines = rollup.lines();
    let field = lines.find_map(|line| line.strip_prefix("Pss_Anon:"));
    field.map_or(0.0, in_kib) / 1024.0
}

/// The value of a field of proc_pid_smaps(5).
fn in_kib(field: &str) -> f64 {
    field.trim().trim_end_matches(" kB").parse().unwrap_or(0.0)
}

/// What the kernel accounts for a process's BPF maps and programs, in MiB (proc_pid_fdinfo(5)).
pub(crate) fn kernel_maps(pid: u32) -> f64 {
    let files = fs::read_dir(format!("/proc/{pid}/fdinfo"))
        .into_iter()
        .flatten();
    let bytes = files.flatten().filter_map(|file| {
        let info = fs::read_to_string(file.path()).ok()?;
        let locked = info
            .lines()
            .find_map(|line| line.strip_prefix("memlock:"))?;
        locked.trim().parse::<f64>().ok()
    });
    bytes.sum::<f64>() / (1024.0 * 1024.0)
}
