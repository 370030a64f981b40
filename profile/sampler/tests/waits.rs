//! Waits of threads that are hard to scan, by each method: many, stuck, in other namespaces, with pages that never come. None
//! notices that it is scanned.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use otelctx_fixtures::kernel::{Feature, is_emulated};
use otelctx_fixtures::{Compiler, Target, tier};
use otelctx_sampler::sample::{Catalog, Event, Found, OffCpuState, ReadStep, Sample};
use otelctx_sampler::{Error, INTERVAL, Options, Sampler, Targets, WaitFacts, WaitMethod};

const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;

/// Size of a page, in bytes.
const PAGE: u64 = 4096;

const METHODS: [WaitMethod; 4] = [
    WaitMethod::ByProcess,
    WaitMethod::AllThreads,
    WaitMethod::TwoWalks,
    WaitMethod::Files,
];

struct Recording {
    sampler: Sampler,
    catalog: Catalog,
    samples: Vec<Sample>,
}

impl Recording {
    /// Scans a process's waits by a method, as often as it can. `None`, with a line, without eBPF.
    fn start(pid: i32, method: WaitMethod) -> Option<Self> {
        let mut options = Options::new(Targets::Processes(vec![pid]));
        options.wall_frequency = Some(1000);
        options.on_cpu = false;
        options.wait_method = Some(method);
        options.without_ebpf = method == WaitMethod::Files;
        let sampler = match Sampler::start(&options) {
            Err(Error::Waits(refusal)) => return Feature::Ebpf.or_skip(Err(refusal)),
            started => started.unwrap(),
        };
        if !options.without_ebpf {
            Feature::Ebpf.or_skip(sampler.method().require_ebpf())?;
        }
        Some(Self {
            sampler,
            catalog: Catalog::new(),
            samples: Vec::new(),
        })
    }

    fn facts(&self) -> WaitFacts {
        self.sampler.waits().unwrap()
    }

    fn drain(&mut self) {
        std::thread::sleep(INTERVAL);
        let samples = &mut self.samples;
        self.sampler
            .drain(&mut self.catalog, &mut |it| samples.push(it));
    }

    /// Drains until `is_enough` is true.
    fn until(&mut self, mut is_enough: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !is_enough(self) {
            let facts = self.facts();
            assert!(start.elapsed() < TIMEOUT, "{facts:?}");
            self.drain();
        }
    }

    fn tid(&self, sample: &Sample) -> i32 {
        self.catalog.thread_facts(sample.thread).tid
    }

    /// Returns what was found of each thread, by its ID.
    fn found(&self) -> BTreeMap<i32, Vec<(OffCpuState, Found<()>)>> {
        let mut found = BTreeMap::<_, Vec<_>>::new();
        for sample in &self.samples {
            let Event::OffCpu(off) = sample.event else {
                panic!("{sample:?}");
            };
            let seen = (off.state, sample.found.and_then(|_| Found::Attached(())));
            found.entry(self.tid(sample)).or_default().push(seen);
        }
        found
    }
}

fn start(source: &str, arguments: &[&str]) -> Option<Target> {
    let sources = [source, "variable.c", "publish.c"];
    let program = Compiler::gcc().program(&sources, &["-rdynamic"])?;
    Some(Target::spawn(Command::new(program).args(arguments)))
}

/// The IDs of a program's sleepers, in their order.
fn sleepers(target: &Target) -> Vec<i32> {
    let ids = target.lines.iter().filter_map(|line| {
        let id = line.strip_prefix("sleeper ")?.split(' ').next()?;
        id.parse().ok()
    });
    ids.collect()
}

/// The calls of this program end with EINTR if their thread gets a signal, or is stopped.
#[test]
fn no_sleep_ends_because_it_is_scanned() {
    for method in METHODS {
        let Some(mut target) = start("sleepers.c", &[]) else {
            return;
        };
        let tids = sleepers(&target);
        target.command("report");
        let Some(mut recording) = Recording::start(target.pid(), method) else {
            continue;
        };
        let enough = if method == WaitMethod::Files {
            50
        } else {
            1_000
        };
        let enough = if is_emulated() { enough / 10 } else { enough };
        recording.until(|it| it.facts().read >= enough);
        target.lines.clear();
        target.command("report");
        let results: Vec<&String> = target
            .lines
            .iter()
            .filter(|it| it.starts_with("result "))
            .collect();
        assert_eq!(results.len(), tids.len(), "{method:?}: {results:?}");
        for result in results {
            let words: Vec<&str> = result.split(' ').collect();
            let [_, call, rounds, failures] = words[..] else {
                panic!("{result}");
            };
            assert_ne!(rounds, "0", "{method:?}: {call}");
            assert_eq!(failures, "0", "{method:?}: {call} of {rounds}");
        }
        let found = recording.found();
        for tid in &tids {
            assert!(found.contains_key(tid), "{method:?}: thread {tid}");
        }
    }
}

/// How often each thread of a process has been switched out, once none of them runs any more.
fn switches(pid: i32) -> BTreeMap<i32, [u64; 2]> {
    let read = || -> BTreeMap<i32, [u64; 2]> {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let of_thread = |path: &Path| {
            let text = std::fs::read_to_string(path.join("status")).unwrap();
            let count = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name));
                line.unwrap().trim().parse().unwrap()
            };
            ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"].map(count)
        };
        let threads = tasks.map(|task| {
            let path = task.unwrap().path();
            let tid = path.file_name().unwrap().to_str().unwrap();
            (tid.parse().unwrap(), of_thread(&path))
        });
        threads.collect()
    };
    let (start, mut before) = (Instant::now(), read());
    loop {
        assert!(start.elapsed() < TIMEOUT, "{before:?}");
        std::thread::sleep(Duration::from_millis(300));
        let now = read();
        if now == before {
            return now;
        }
        before = now;
    }
}

/// Threads that wait in some 60 calls for what never happens. One that gets a signal, is stopped, or whose wait ends would be
/// switched out once more: none is. Tried with a signal (SIGSTOP, then SIGCONT) to the process: each of them is.
#[test]
fn no_waiting_thread_runs_because_it_is_scanned() {
    if is_emulated() {
        return eprintln!("skipped: some of these calls take seconds on an emulated machine");
    }
    let Some(program) = Compiler::gcc().program::<&str>(&["waits.c"], &["-pthread"]) else {
        return;
    };
    let name = format!("otelctx-scanned-{}", std::process::id());
    let folder = Folder(std::env::temp_dir().join(name));
    std::fs::create_dir_all(&folder.0).unwrap();
    let target = Target::spawn(Command::new(program).arg(&folder.0));
    for method in METHODS {
        let before = switches(target.pid());
        let Some(mut recording) = Recording::start(target.pid(), method) else {
            continue;
        };
        // Each wait is read once, and scanned again and again.
        let scans = if method == WaitMethod::Files { 10 } else { 200 };
        let enough = scans * 1_000_000;
        recording.until(|it| {
            let off = it.samples.iter().filter_map(|sample| match sample.event {
                Event::OffCpu(off) => Some(off.nanoseconds),
                _ => None,
            });
            let found = it.found();
            let all_were_found = before.keys().all(|tid| found.contains_key(tid));
            all_were_found && off.sum::<u64>() >= enough * before.len() as u64
        });
        let after = switches(target.pid());
        assert_eq!(after, before, "{method:?}");
    }
}

/// A folder that is removed with this.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A control group whose processes can be frozen, by the file that does. It thaws them, and is removed, with this.
struct Freezer {
    group: PathBuf,
    file: &'static str,
    frozen: &'static str,
    thawed: &'static str,
}

impl Freezer {
    /// One of each version that this machine has and permits.
    fn create() -> Vec<Self> {
        let versions = [
            ("/sys/fs/cgroup", "cgroup.freeze", "1", "0"),
            ("/sys/fs/cgroup/unified", "cgroup.freeze", "1", "0"),
            (
                "/sys/fs/cgroup/freezer",
                "freezer.state",
                "FROZEN",
                "THAWED",
            ),
        ];
        let name = format!("otelctx-frozen-{}", std::process::id());
        let groups = versions
            .into_iter()
            .filter_map(|(folder, file, frozen, thawed)| {
                let group = Path::new(folder).join(&name);
                let is_there = Path::new(folder).join("cgroup.procs").exists();
                if !is_there || std::fs::create_dir(&group).is_err() {
                    return None;
                }
                let freezer = Self {
                    group,
                    file,
                    frozen,
                    thawed,
                };
                freezer.group.join(file).exists().then_some(freezer)
            });
        groups.collect()
    }

    /// Freezes a process. Returns false, with a line, where it cannot be moved to the group.
    fn freeze(&self, pid: i32) -> bool {
        if let Err(error) = std::fs::write(self.group.join("cgroup.procs"), pid.to_string()) {
            eprintln!("skipped: {:?}: {error}", self.group);
            return false;
        }
        std::fs::write(self.group.join(self.file), self.frozen).unwrap();
        let (event, is_event) = match self.file {
            "cgroup.freeze" => ("cgroup.events", "frozen 1"),
            file => (file, self.frozen),
        };
        let start = Instant::now();
        while !std::fs::read_to_string(self.group.join(event))
            .unwrap()
            .contains(is_event)
        {
            assert!(start.elapsed() < TIMEOUT, "{:?}", self.group);
            std::thread::sleep(INTERVAL);
        }
        true
    }

    fn thaw(&self) {
        // It may have been removed with what it had.
        let _ = std::fs::write(self.group.join(self.file), self.thawed);
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.thaw();
        let start = Instant::now();
        while std::fs::remove_dir(&self.group).is_err() && start.elapsed() < TIMEOUT {
            std::thread::sleep(INTERVAL);
        }
    }
}

/// Those of a group of version 2 are asleep to the kernel, in its trap for them, and `/proc` tells those of version 1 as waiting for
/// a disk.
#[test]
fn threads_of_a_frozen_control_group_have_their_contexts() {
    let freezers = Freezer::create();
    if freezers.is_empty() {
        return eprintln!("skipped: no control group can be created that freezes");
    }
    for freezer in &freezers {
        let Some(mut target) = start("idle.c", &["workers=3"]) else {
            return;
        };
        let tids = sleepers(&target);
        if !freezer.freeze(target.pid()) {
            continue;
        }
        let mut all = Vec::new();
        for method in METHODS {
            let Some(mut recording) = Recording::start(target.pid(), method) else {
                continue;
            };
            recording.until(|it| tids.iter().all(|tid| it.found().contains_key(tid)));
            let found = recording.found().into_iter();
            all.extend(found.map(|(tid, found)| (method, tid, found)));
        }
        // Before a failure, too: frozen processes cannot be killed in version 1.
        freezer.thaw();
        for (method, tid, found) in all.iter().filter(|it| tids.contains(&it.1)) {
            let state = match (freezer.file, method) {
                ("cgroup.freeze", _) => OffCpuState::Asleep,
                (_, WaitMethod::Files) => OffCpuState::Disk,
                _ => OffCpuState::Stopped,
            };
            let is_expected = |it: &(OffCpuState, Found<()>)| *it == (state, Found::Attached(()));
            let of = &freezer.file;
            assert!(
                found.iter().all(is_expected),
                "{method:?}, {of}, {tid}: {found:?}"
            );
        }
        // It goes on.
        target.command("report");
    }
}

/// The addresses of a range's pages that a process has (Documentation/admin-guide/mm/pagemap.rst).
fn present(pid: i32, range: &Range<u64>) -> BTreeSet<u64> {
    const PRESENT: u64 = 1 << 63;
    let file = File::open(format!("/proc/{pid}/pagemap")).unwrap();
    let mut entries = vec![0; ((range.end - range.start) / PAGE * 8) as usize];
    file.read_exact_at(&mut entries, range.start / PAGE * 8)
        .unwrap();
    let entries = entries.chunks_exact(8);
    let entries = entries.map(|it| u64::from_ne_bytes(it.try_into().unwrap()));
    let pages = (range.start..range.end).step_by(PAGE as usize).zip(entries);
    let present = pages.filter(|(_, entry)| entry & PRESENT != 0);
    present.map(|(page, _)| page).collect()
}

/// Pages that are not in the process any more come back if they are read: only the ones of the record, of the thread's variables
/// and of the innermost part of its stack. With each, the kernel maps its neighbours if these are in memory (fault-around, 64 KiB).
#[test]
fn only_what_is_read_of_a_waiting_thread_comes_back_to_its_process() {
    const AROUND: u64 = 64 << 10;
    /// `STACK_ROOM`, and what is below the stack pointer.
    const STACK: Range<u64> = 256..20 << 10;
    for method in METHODS {
        let Some(mut target) = start("paged.c", &[]) else {
            return;
        };
        let pid = target.pid();
        let ranges: Vec<Range<u64>> = target
            .lines
            .iter()
            .filter_map(|line| {
                let words: Vec<&str> = line.strip_prefix("range ")?.split(' ').collect();
                let number = |word| u64::from_str_radix(word, 16).unwrap();
                Some(number(words[1])..number(words[2]))
            })
            .collect();
        let [stack, record, unused] = &ranges[..] else {
            panic!("{:?}", target.lines);
        };
        let tid = sleepers(&target)[0];
        let call = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).unwrap();
        let pointer = call.split_whitespace().nth_back(1).unwrap();
        let pointer = u64::from_str_radix(&pointer[2..], 16).unwrap();
        target.command("drop");
        for range in &ranges {
            assert_eq!(present(pid, range), BTreeSet::new());
        }
        let Some(mut recording) = Recording::start(pid, method) else {
            continue;
        };
        recording.until(|it| it.found().contains_key(&tid));
        let found = &recording.found()[&tid];
        assert!(
            found.iter().all(|it| it.1 == Found::Attached(())),
            "{method:?}: {found:?}"
        );
        // The thread's variables are at the end of its stack.
        let read = [
            pointer - STACK.start..pointer + STACK.end,
            stack.end - 2 * PAGE..stack.end,
            record.start + (record.end - record.start) / 2
                ..record.start + (record.end - record.start) / 2 + 1,
        ];
        let may_be_there = |page: &u64| {
            let mut read = read.iter();
            read.any(|it| {
                (it.start / AROUND * AROUND..it.end.next_multiple_of(AROUND)).contains(page)
            })
        };
        for range in [stack, record] {
            let pages = present(pid, range);
            assert!(!pages.is_empty(), "{method:?}");
            assert!(
                pages.iter().all(may_be_there),
                "{method:?}: {pointer:x}: {pages:x?}"
            );
        }
        assert_eq!(present(pid, unused), BTreeSet::new(), "{method:?}");
    }
}

/// Threads in clone(2) with CLONE_VFORK get no signal, and cannot be stopped.
#[test]
fn a_thread_in_an_uninterruptible_sleep_waits_for_a_disk() {
    for method in METHODS {
        let Some(target) = start("idle.c", &["workers=3", "own=2", "stuck"]) else {
            return;
        };
        let tids = sleepers(&target);
        let Some(mut recording) = Recording::start(target.pid(), method) else {
            continue;
        };
        recording.until(|it| tids.iter().all(|tid| it.found().contains_key(tid)));
        let found = recording.found();
        let states = |tid: &i32| -> BTreeSet<OffCpuState> {
            found[tid].iter().map(|(state, _)| *state).collect()
        };
        let (disk, asleep) = (
            BTreeSet::from([OffCpuState::Disk]),
            BTreeSet::from([OffCpuState::Asleep]),
        );
        assert_eq!(states(&tids[0]), disk, "{method:?}");
        assert_eq!(states(&tids[1]), disk, "{method:?}");
        assert_eq!(states(&tids[2]), asleep, "{method:?}");
    }
}

#[test]
fn a_page_that_never_comes_delays_no_scan() {
    for method in METHODS {
        let Some(mut target) = start("idle.c", &["workers=3", "withheld"]) else {
            return;
        };
        if target.lines.iter().any(|line| line == "refused") {
            return eprintln!("skipped: this user may not have pages that another thread provides");
        }
        let tids = sleepers(&target);
        target.command("drop");
        let Some(mut recording) = Recording::start(target.pid(), method) else {
            continue;
        };
        recording.until(|it| tids.iter().all(|tid| it.found().contains_key(tid)));
        let found = recording.found();
        let kinds = |tid: &i32| {
            let kinds = found[tid].iter().map(|(_, found)| *found);
            kinds.collect::<Vec<_>>()
        };
        let unreadable = Found::Unreadable(ReadStep::Record);
        for (tid, expected) in tids
            .iter()
            .zip([unreadable, Found::Attached(()), unreadable])
        {
            let kinds = kinds(tid);
            assert!(
                kinds.iter().all(|it| *it == expected),
                "{method:?}: {kinds:?}"
            );
        }
    }
}

/// Each is scanned, less often: as many scans per second as with fewer.
fn scans_many(workers: usize, method: WaitMethod) {
    let Some(target) = start("idle.c", &[&format!("workers={workers}")]) else {
        return;
    };
    let tids: BTreeSet<i32> = sleepers(&target).into_iter().collect();
    assert_eq!(tids.len(), workers);
    let Some(mut recording) = Recording::start(target.pid(), method) else {
        return;
    };
    // Not those of the machine's other processes.
    recording.until(|it| it.facts().read >= workers as u64);
    let facts = recording.facts();
    let samples = &mut recording.samples;
    let catalog = &mut recording.catalog;
    let totals = recording.sampler.stop(catalog, &mut |it| samples.push(it));
    // The last scan reads what still waits, too.
    let last = totals.waits.unwrap();
    assert_eq!(last.method, facts.method);
    assert!(
        last.read >= facts.read && last.lost >= facts.lost,
        "{last:?}"
    );
    let attached = recording
        .samples
        .iter()
        .filter(|it| matches!(it.found, Found::Attached(_)));
    let attached: BTreeSet<i32> = attached
        .map(|it| recording.catalog.thread_facts(it.thread).tid)
        .collect();
    assert!(
        attached.is_superset(&tids),
        "{method:?}: {} of {workers}",
        attached.len()
    );
    assert_eq!(facts.lost, 0, "{facts:?}");
    let looks_in_a_second = if method == WaitMethod::Files {
        1_000
    } else {
        10_000
    };
    let interval = Duration::from_secs(1) * facts.threads as u32 / looks_in_a_second;
    assert!(facts.threads > workers as u64, "{facts:?}");
    assert_eq!(facts.interval, interval, "{facts:?}");
}

#[test]
fn with_many_threads_scans_are_rarer() {
    if is_emulated() {
        return eprintln!("skipped: an emulated machine takes too long to start the threads");
    }
    for method in [
        WaitMethod::ByProcess,
        WaitMethod::TwoWalks,
        WaitMethod::Files,
    ] {
        scans_many(2_000, method);
    }
}

/// As many as the machine's limits permit.
#[test]
fn with_up_to_100_000_threads_there_is_less_than_one_scan_in_a_second() {
    if tier::left_to_all("100,000 threads") || is_emulated() {
        return;
    }
    let limit = |name: &str| -> usize {
        let text = std::fs::read_to_string(format!("/proc/sys/{name}"));
        text.ok().and_then(|it| it.trim().parse().ok()).unwrap()
    };
    // Each thread's stack has two mappings.
    let room = [
        limit("kernel/pid_max"),
        limit("kernel/threads-max"),
        limit("vm/max_map_count") / 2,
    ];
    let room = room.into_iter().min().unwrap().saturating_sub(5_000);
    scans_many(room.clamp(10_001, 100_000), WaitMethod::ByProcess);
}

/// Arguments of unshare(1) for a PID namespace with its own `/proc`.
const NAMESPACE: [&str; 4] = ["--pid", "--fork", "--mount-proc", "--kill-child"];

/// The recorder sees the processes of its own namespace, by their IDs there.
#[test]
fn waits_in_the_namespace_of_the_recorder() {
    let works = Command::new("unshare").args(NAMESPACE).arg("true").output();
    if !works.is_ok_and(|it| it.status.success()) {
        return eprintln!("skipped: no namespaces of process IDs (unshare)");
    }
    let own = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    command.args(NAMESPACE).arg(own).args([
        "--exact",
        "no_sleep_ends_because_it_is_scanned",
        "a_thread_in_an_uninterruptible_sleep_waits_for_a_disk",
    ]);
    let output = command.output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{out}{err}");
    assert!(out.contains("test result: ok. 2 passed"), "{out}{err}");
}
