use std::process::{Child, Command, Stdio};

use otelctx_fixtures::{Compiler, Target};
use otelctx_reader::ReadStep;

use super::*;
use crate::ThreadStatus;

/// A process without a context. It is killed when dropped, also if a test fails.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        let mut command = Command::new("sleep");
        Self(command.arg("600").stdin(Stdio::null()).spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn with_threads() -> Options {
    Options {
        threads: true,
        ..Options::default()
    }
}

/// Polls due processes; returns the IDs of the reported ones.
fn poll_due(tracker: &mut Tracker<()>, budget: Budget) -> Vec<i32> {
    let mut pids = Vec::new();
    tracker.poll_due(budget, &mut |event| pids.push(event.pid));
    pids
}

fn one_process() -> Budget {
    Budget {
        processes: 1,
        ..Budget::UNLIMITED
    }
}

#[test]
fn a_process_that_ends_unnoticed_is_removed() {
    let mut tracker = Tracker::new(Options::default());
    let child = Sleeper::start();
    tracker.add(child.pid()).unwrap();
    tracker.sweep_now();
    assert!(poll_due(&mut tracker, Budget::UNLIMITED).is_empty());
    let pid = child.pid();
    drop(child);
    tracker.sweep_now();
    assert_eq!(poll_due(&mut tracker, Budget::UNLIMITED), [pid]);
    assert!(tracker.is_empty());
}

/// In a hash map's order, a process late in it was never polled.
#[test]
fn no_process_waits_while_others_are_polled_twice() {
    let children: Vec<Sleeper> = (0..40).map(|_| Sleeper::start()).collect();
    let mut tracker: Tracker<()> = Tracker::new(with_threads());
    for child in &children {
        tracker.add(child.pid()).unwrap();
        tracker.request_now(child.pid());
    }
    let mut polled = Vec::new();
    for _ in &children {
        // The first polls find that they publish nothing.
        polled.extend(poll_due(&mut tracker, one_process()));
        // All of them keep running.
        for child in &children {
            tracker.request_now(child.pid());
        }
    }
    let mut pids: Vec<i32> = children.iter().map(Sleeper::pid).collect();
    polled.sort_unstable();
    pids.sort_unstable();
    assert_eq!(polled, pids);
}

#[test]
fn memory_is_bounded_by_the_processes_that_exist() {
    let mut tracker: Tracker<()> = Tracker::new(with_threads());
    let alive = Sleeper::start();
    tracker.add(alive.pid()).unwrap();
    for _ in 0..300 {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        tracker.get_or_add(pid);
        tracker.request(pid);
        tracker.request(alive.pid());
        tracker.exiting(pid);
        child.wait().unwrap();
        tracker.next_sweep = Instant::now();
        tracker.poll_due(Budget::UNLIMITED, &mut |_| {});
        assert!(tracker.len() <= 2, "{}", tracker.len());
        assert!(
            tracker.queue.heap.len() <= 128,
            "{}",
            tracker.queue.heap.len()
        );
    }
}

#[test]
fn a_process_that_is_not_requested_is_not_polled() {
    let child = Sleeper::start();
    let mut tracker: Tracker<()> = Tracker::new(Options::default());
    tracker.add(child.pid()).unwrap();
    poll_due(&mut tracker, Budget::UNLIMITED);
    assert_eq!(tracker.polls(), 0);
    for polls in 1..4 {
        tracker.request_now(child.pid());
        poll_due(&mut tracker, Budget::UNLIMITED);
        poll_due(&mut tracker, Budget::UNLIMITED);
        assert_eq!(tracker.polls(), polls);
    }
}

#[test]
fn the_id_of_a_process_that_ended_may_be_anothers() {
    let mut tracker: Tracker<()> = Tracker::new(Options::default());
    let child = Sleeper::start();
    let pid = child.pid();
    tracker.get_or_add(pid);
    // The kernel reports the exit before it frees the process's memory.
    tracker.exiting(pid);
    assert!(tracker.remove_if_gone(pid).is_none());
    drop(child);
    assert!(tracker.remove_if_gone(pid).is_some());
    assert!(tracker.is_empty());
}

/// It used to count as a process that publishes nothing.
#[test]
fn what_a_process_that_could_not_be_opened_publishes_is_unknown() {
    let mut tracker: Tracker<()> = Tracker::new(with_threads());
    let child = Sleeper::start();
    let pid = child.pid();
    drop(child);
    let process = &tracker.get_or_add(pid).process;
    let threads = process.threads();
    assert!(
        matches!(threads, ThreadStatus::Unreadable(ReadStep::Process)),
        "{threads:?}"
    );
}

/// Nothing here changes the amount of the process's memory.
#[test]
fn a_process_that_publishes_in_memory_it_had_before_is_found_all_the_same() {
    let flags = ["-DLINKED", "-rdynamic"];
    let Some(program) = Compiler::gcc().program(&["publish_later.c", "variable.c"], &flags) else {
        return;
    };
    for (how, trust_sizes, rescan_interval) in [
        ("map", false, Duration::MAX),
        ("name", false, Duration::MAX),
        ("update", false, Duration::MAX),
        ("map", true, Duration::ZERO),
        ("name", true, Duration::ZERO),
        ("update", true, Duration::MAX),
    ] {
        let mut target = Target::spawn(Command::new(&program).arg(how));
        let pid = target.pid();
        let mut tracker: Tracker<()> = Tracker::new(Options {
            trust_sizes,
            rescan_interval,
            ..with_threads()
        });
        tracker.add(pid).unwrap();
        let poll = |tracker: &mut Tracker<()>| {
            // The machine may have been busy, and the scan slow.
            if let Some((_, took)) = &mut tracker.get_mut(pid).unwrap().process.last_scan {
                *took = Duration::ZERO;
            }
            tracker.poll(pid, &mut |_| {});
            tracker.get(pid).unwrap().process.threads().clone()
        };
        for _ in 0..5 {
            let threads = poll(&mut tracker);
            assert!(!matches!(threads, ThreadStatus::Readable(_)), "{how}");
        }
        let sizes = |tracker: &Tracker<()>| {
            let process = &tracker.get(pid).unwrap().process;
            process
                .reader()
                .unwrap()
                .running()
                .unwrap()
                .sizes()
                .unwrap()
                .1
        };
        let before = sizes(&tracker);
        target.command("publish");
        if target.lines == ["refused"] {
            eprintln!("skipped: this kernel gives anonymous memory no names");
            continue;
        }
        assert_eq!(sizes(&tracker), before, "{how}");
        let threads = poll(&mut tracker);
        assert!(matches!(threads, ThreadStatus::Readable(_)), "{how}");
    }
}

#[test]
fn another_program_has_nothing_of_the_one_before() {
    let sources = ["threads.c", "variable.c", "publish.c"];
    let Some(program) = Compiler::gcc().program(&sources, &["-DLINKED", "-rdynamic"]) else {
        return;
    };
    let target = Target::spawn(&mut Command::new(program));
    let mut tracker: Tracker<()> = Tracker::new(with_threads());
    tracker.add(target.pid()).unwrap();
    let mut changes = Vec::new();
    tracker.poll(target.pid(), &mut |event| changes.push(event.change));
    assert!(matches!(
        changes[..],
        [Change::Published(_), Change::Threads]
    ));
    let process = &tracker.exec(target.pid()).unwrap().process;
    assert!(process.context().is_none());
    assert!(matches!(process.threads(), ThreadStatus::Unknown));
}

/// It used to wait as long as the previous program had to, up to 50 times as long as its last scan
/// took.
#[test]
fn another_program_does_not_wait_for_the_back_off_of_the_one_before() {
    let child = Sleeper::start();
    let pid = child.pid();
    let mut tracker: Tracker<()> = Tracker::new(with_threads());
    let process = &mut tracker.add(pid).unwrap().process;
    let slow = Duration::from_secs(600);
    process.backoff.done(Instant::now(), slow, false);
    tracker.request(pid);
    poll_due(&mut tracker, Budget::UNLIMITED);
    assert_eq!(tracker.polls(), 0);
    tracker.exec(pid);
    tracker.request_now(pid);
    poll_due(&mut tracker, Budget::UNLIMITED);
    assert_eq!(tracker.polls(), 1);
}

/// As on a machine that is so busy that no scan meets its first timeout.
#[test]
fn a_process_that_takes_longer_than_a_scan_may_is_read_all_the_same() {
    let sources = ["threads.c", "variable.c", "publish.c"];
    let flags = ["-DLINKED", "-rdynamic"];
    let gcc = Compiler::gcc();
    let (Some(threads), Some(mappings)) = (
        gcc.program(&sources, &flags),
        gcc.program::<&str>(&["mappings.c"], &[]),
    ) else {
        return;
    };
    let threads = Target::spawn(&mut Command::new(threads));
    let mut mappings = Target::spawn(&mut Command::new(mappings));
    mappings.command("map memory 60000");
    mappings.command("publish shop");
    let mut tracker: Tracker<()> = Tracker::new(Options {
        scan_timeout: Some(Duration::from_nanos(1)),
        ..with_threads()
    });
    for target in [&threads, &mappings] {
        let pid = target.pid();
        tracker.add(pid).unwrap();
        let mut changes = Vec::new();
        tracker.poll(pid, &mut |event| changes.push(event.change));
        assert!(
            matches!(changes[0], Change::Failed(Error::Deadline { .. })),
            "{changes:?}"
        );
        let deadline = Instant::now() + otelctx_fixtures::HANG_TIMEOUT;
        loop {
            assert!(Instant::now() < deadline, "{pid} is never read");
            std::thread::sleep(Duration::from_millis(1));
            tracker.poll(pid, &mut |_| {});
            let process = &tracker.get(pid).unwrap().process;
            let is_readable = matches!(process.threads(), ThreadStatus::Readable(_));
            // The second program has no threads to read.
            if process.context().is_some() && (is_readable || pid == mappings.pid()) {
                break;
            }
        }
    }
}
