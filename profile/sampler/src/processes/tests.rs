use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use otelctx_fixtures::{Compiler, Target};
use otelctx_sample::Frame;
use otelctx_sample::format::record;

use super::untracked::MAX_UNTRACKED;
use super::*;
use crate::code::{FileId, Region};
use crate::monotonic;
use crate::observation::Record;

/// A process without a context, which has loaded its libraries and sleeps. It is killed when dropped, also if a
/// test fails.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        Self::start_with("OTEL_SERVICE_NAME", "sleeper")
    }

    fn start_with(variable: &str, value: &str) -> Self {
        loop {
            let mut command = Command::new("cat");
            command.env(variable, value);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut this = Self(command.spawn().unwrap());
            // It returns what it is given once it has started.
            let mut byte = *b"1";
            this.0.stdin.as_ref().unwrap().write_all(&byte).unwrap();
            this.0.stdout.take().unwrap().read_exact(&mut byte).unwrap();
            // Another process with this ID may have left it, even another user's.
            if !PerfMap::path(this.0.id() as i32).exists() {
                return this;
            }
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn observation(pid: i32) -> Observation<'static> {
    Observation {
        time: 1,
        cpu: 0,
        pid,
        tid: pid,
        comm: "cat",
        context: Found::NotPublished,
        runtimes: Vec::new(),
        is_executing: false,
        is_early: false,
        user_stack: &[],
        stack_end: None,
        kernel_stack: &[],
    }
}

fn processes_with(scan_timeout: Option<Duration>) -> Processes {
    let options = Options::new(crate::Targets::All);
    Processes::new(&options, reader::Options::default(), scan_timeout)
}

#[test]
fn samples_of_a_process_that_ends_are_still_its_own() {
    let mut processes = processes_with(None);
    let mut catalog = Catalog::new();
    let child = Sleeper::start();
    let pid = child.0.id() as i32;
    let first = processes.sample(&observation(pid), &mut catalog);
    // The kernel reports the exit before it frees the process's memory, which is sampled, too.
    processes.exiting(pid);
    let second = processes.sample(&observation(pid), &mut catalog);
    assert_eq!(second.thread, first.thread);
    assert_eq!(catalog.processes().len(), 1);
    drop(child);
    // The process that now has its ID is a different one.
    processes.sample(&observation(pid), &mut catalog);
    assert_eq!(catalog.processes().len(), 2);
}

#[test]
fn a_process_that_is_ending_keeps_its_detected_name() {
    let mut processes = processes_with(None);
    let mut catalog = Catalog::new();
    let mut child = Sleeper::start();
    let pid = child.0.id() as i32;
    let name = |catalog: &Catalog| {
        let (_, process) = catalog.processes().next().unwrap();
        let mut attributes = process.resource.iter();
        let name = attributes.find(|(key, _)| key == "service.name");
        name.map(|(_, value)| value.clone())
    };
    processes.sample(&observation(pid), &mut catalog);
    assert_eq!(name(&catalog), Some("sleeper".into()));
    child.0.kill().unwrap();
    while !processes.have_ended() {
        std::thread::yield_now();
    }
    let tracked = processes.get_mut(pid).unwrap();
    tracked.data.describe(&tracked.process, &mut catalog);
    assert_eq!(name(&catalog), Some("sleeper".into()));
    // In the next part of a recording, too.
    catalog = Catalog::new();
    processes.reset_catalog();
    processes.sample(&observation(pid), &mut catalog);
    assert_eq!(name(&catalog), Some("sleeper".into()));
}

#[test]
fn a_process_that_publishes_nothing_is_not_published_from_its_first_sample_on() {
    let mut processes = processes_with(None);
    let mut catalog = Catalog::new();
    // An emulator may take longer for the scans than there is time for.
    processes.following.first_scans.time = Duration::from_secs(60);
    let children = [(); 3].map(|()| Sleeper::start());
    for child in &children {
        let seen = observation(child.0.id() as i32);
        let sample = processes.sample(&seen, &mut catalog);
        assert_eq!(sample.found, Found::NotPublished);
    }
    assert_eq!(processes.tally.counts.not_published, 3);
    // What these scans have found is for the next poll.
    let mut changed = processes.poll(&mut catalog).changed;
    changed.sort_unstable();
    let mut pids = children.each_ref().map(|it| it.0.id() as i32);
    pids.sort_unstable();
    assert_eq!(changed, pids);
}

/// Its environment can be read no more.
#[test]
fn a_child_that_has_ended_is_asked_by_the_environment_of_its_parent() {
    let mut processes = processes_with(Some(Duration::ZERO));
    let mut catalog = Catalog::new();
    let opted_out_parent = Sleeper::start_with("OTELCTX_PROFILE", "off");
    let parent = opted_out_parent.0.id() as i32;
    // No processes have such IDs.
    let (child, other) = (i32::MAX, i32::MAX - 1);
    processes.report(Report {
        time: 1,
        pid: child,
        change: MemoryChange::Forked { parent },
    });
    let opted_out = [parent, child, other].map(|pid| {
        let sample = processes.sample(&observation(pid), &mut catalog);
        let process = catalog.thread_facts(sample.thread).process;
        catalog.process(process).opted_out
    });
    assert_eq!(opted_out, [true, true, false]);
}

#[test]
fn reports_without_room_are_counted() {
    let mut processes = processes_with(Some(Duration::ZERO));
    // No process has such IDs.
    let fork = |processes: &mut Processes, number: usize| {
        processes.report(Report {
            time: 1,
            pid: i32::MAX - number as i32,
            change: MemoryChange::Forked { parent: 1 },
        });
    };
    for number in 0..MAX_UNTRACKED {
        fork(&mut processes, number);
    }
    assert_eq!(processes.tally.counts.lost_mappings, 0);
    fork(&mut processes, MAX_UNTRACKED);
    assert_eq!(processes.tally.counts.lost_mappings, 1);
    let mut report = |change| {
        processes.report(Report {
            time: 2,
            pid: i32::MAX - MAX_UNTRACKED as i32,
            change,
        });
        processes.tally.counts.lost_mappings
    };
    assert_eq!(report(MemoryChange::Exec), 1);
    assert_eq!(report(MemoryChange::Exit), 1);
    let region = Region {
        start: 0x1000,
        end: 0x2000,
        offset: 0,
        file: FileId::BuildId(vec![1]),
        path: "/lib/a.so".to_owned(),
    };
    assert_eq!(report(MemoryChange::Mapped(region)), 2);
}

#[test]
fn the_end_of_an_unknown_process_takes_no_room() {
    let mut processes = processes_with(Some(Duration::ZERO));
    processes.report(Report {
        time: 1,
        pid: i32::MAX,
        change: MemoryChange::Exit,
    });
    assert!(processes.untracked.processes.is_empty());
}

#[test]
fn first_scans_are_bounded() {
    let mut processes = processes_with(None);
    let mut catalog = Catalog::new();
    let children = [(); 2].map(|()| Sleeper::start());
    processes.following.first_scans.processes = 1;
    let found = children.each_ref().map(|child| {
        let seen = observation(child.0.id() as i32);
        processes.sample(&seen, &mut catalog).found
    });
    assert_eq!(
        found,
        [Found::NotPublished, Found::Unreadable(ReadStep::Resolve)]
    );
    processes.poll(&mut catalog);
    let seen = observation(children[1].0.id() as i32);
    let second = processes.sample(&seen, &mut catalog);
    assert_eq!(second.found, Found::NotPublished);
}

fn workers() -> Option<Target> {
    let sources = ["threads.c", "variable.c", "publish.c"];
    let program = Compiler::gcc().program(&sources, &["-DLINKED", "-rdynamic"])?;
    Some(Target::spawn(&mut Command::new(program)))
}

#[test]
fn the_resource_of_a_process_stays_when_it_has_ended() {
    let Some(mut target) = workers() else { return };
    let pid = target.pid();
    let mut processes = processes_with(None);
    let mut catalog = Catalog::new();
    processes.add(pid).unwrap();
    processes.scan(pid);
    let sample = processes.sample(&observation(pid), &mut catalog);
    let id = catalog.thread_facts(sample.thread).process;
    let before = catalog.process(id).clone();
    assert!(before.published);
    target.child().kill().unwrap();
    // It becomes a zombie, because nothing waits for it. A scan during its exit may still find
    // its context, but no threads.
    let start = Instant::now();
    while processes.get_mut(pid).unwrap().process.context().is_some() {
        assert!(start.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(1));
        processes.following.tracker.request_now(pid);
        processes.poll(&mut catalog);
        assert_eq!(*catalog.process(id), before);
    }
    assert!(processes.get_mut(pid).unwrap().process.exists());
}

#[test]
fn another_program_is_another_process_of_the_catalog() {
    let Some(target) = workers() else { return };
    let pid = target.pid();
    let mut processes = processes_with(None);
    let mut catalog = Catalog::new();
    processes.add(pid).unwrap();
    let first = processes.sample(&observation(pid), &mut catalog);
    processes.exec(pid, u64::MAX);
    let second = processes.sample(&observation(pid), &mut catalog);
    assert_ne!(first.thread, second.thread);
    // Whether it publishes is unknown until it is scanned.
    assert_eq!(second.found, Found::Unreadable(ReadStep::Resolve));
}

/// A file that is removed when dropped.
struct PerfMap(std::path::PathBuf);

impl PerfMap {
    fn path(pid: i32) -> std::path::PathBuf {
        format!("/tmp/perf-{pid}.map").into()
    }

    fn write(pid: i32, text: &str) -> Self {
        let map = Self(Self::path(pid));
        std::fs::write(&map.0, text).unwrap();
        map
    }
}

impl Drop for PerfMap {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

#[test]
fn a_runtime_that_announces_its_code_late_is_found_with_its_next_code() {
    let mut processes = processes_with(None);
    let mut catalog = Catalog::new();
    let child = Sleeper::start();
    let pid = child.0.id() as i32;
    processes.add(pid).unwrap();
    // It had code before, whose names were searched for in vain.
    let generated = &mut processes.get_mut(pid).unwrap().data.generated;
    generated.put_off_search();
    let _map = PerfMap::write(pid, "10000 1000 late\n");
    processes.report(Report {
        time: 1,
        pid,
        change: MemoryChange::Mapped(Region {
            start: 0x1_0000,
            end: 0x2_0000,
            offset: 0,
            file: FileId::Inode(reader::remote::Device { major: 0, minor: 0 }, 0),
            path: String::new(),
        }),
    });
    let stack = [Frame::instruction(0x1_0010)];
    let seen = Observation {
        time: monotonic(),
        user_stack: &stack,
        ..observation(pid)
    };
    let sample = processes.sample(&seen, &mut catalog);
    let frame = catalog.frames(sample.user_stack).next().unwrap().clone();
    let Frame::Named(named) = &frame else {
        panic!("{frame:?}")
    };
    assert_eq!(named.function, "late");
}

#[test]
fn names_of_one_process_leave_room_for_those_of_others() {
    // More than are kept of all processes.
    const MANY: u64 = 300_000;
    let mut processes = processes_with(None);
    let children = [(); 3].map(|()| Sleeper::start());
    let pids = children.each_ref().map(|it| it.0.id() as i32);
    let lines = [MANY, 1000, MANY];
    let maps = pids.iter().zip(lines).map(|(pid, lines)| {
        let line = |number| format!("{:x} 10 of_{pid}_{number}\n", 0x10_0000 + 0x10 * number);
        PerfMap::write(*pid, &(0..lines).map(line).collect::<String>())
    });
    let maps: Vec<_> = maps.collect();
    for pid in pids {
        processes.add(pid).unwrap();
        // 1 MiB at a time.
        for _ in 0..10 {
            generated::update(&mut processes.following.tracker, pid, &mut processes.tally);
        }
    }
    drop(maps);
    let total = 256 * 1024;
    let first = total / 2 * 3 / 4;
    let third = (total - first - 1000) / 2 * 3 / 4;
    for (pid, (lines, kept)) in pids
        .into_iter()
        .zip([(MANY, first), (1000, 1000), (MANY, third)])
    {
        let generated = &processes.get_mut(pid).unwrap().data.generated;
        assert_eq!(generated.len() as u64, kept);
        for number in [0, kept - 1, kept, lines - 1] {
            let name = generated.name(0x10_0000 + 0x10 * number, monotonic(), None);
            let Some(Frame::Named(named)) = &name else {
                assert!(number >= kept && name.is_none());
                continue;
            };
            assert!(number < kept);
            assert_eq!(named.function, format!("of_{pid}_{number}"));
        }
    }
    assert_eq!(
        processes.tally.counts.dropped_names,
        2 * MANY - first - third
    );
}

#[test]
fn a_process_that_could_not_be_scanned_is_not_resolved() {
    let Some(target) = workers() else { return };
    let pid = target.pid();
    // There is not enough time for it.
    let timeout = Some(Duration::from_nanos(1));
    let mut processes = processes_with(timeout);
    let mut catalog = Catalog::new();
    processes.add(pid).unwrap();
    processes.scan(pid);
    let status = processes.get_mut(pid).unwrap().process.threads();
    assert!(matches!(status, ThreadStatus::Unreadable(_)), "{status:?}");
    let sample = processes.sample(&observation(pid), &mut catalog);
    assert_eq!(sample.found, Found::Unreadable(ReadStep::Resolve));
    let counted = processes.tally.counts.unreadable[ReadStep::Resolve as usize];
    assert_eq!(
        (counted, processes.tally.counts.unreadable_samples()),
        (1, 1)
    );
}

/// The names of a record with the attributes 0 and 1, which was read of a variable at this `time`.
fn names(
    processes: &mut Processes,
    catalog: &mut Catalog,
    pid: i32,
    variable: usize,
    time: u64,
) -> Vec<String> {
    let mut bytes = vec![7; record::HEADER_SIZE];
    bytes[record::offset::VALID] = record::VALID;
    bytes[record::offset::ATTRIBUTES_SIZE..].copy_from_slice(&6_u16.to_ne_bytes());
    bytes.extend([0, 1, b'v', 1, 1, b'v']);
    processes.search_other_context(pid, time);
    let record = Record {
        serial: 1,
        variable,
        bytes: &bytes,
    };
    let seen = Observation {
        time,
        context: Found::Attached(record),
        ..observation(pid)
    };
    let found = processes.sample(&seen, catalog).found;
    let context = catalog.context_facts(*found.attached().unwrap());
    let names = context.attributes.iter();
    names.map(|(name, _)| name.clone()).collect()
}

#[test]
fn no_record_has_a_name_that_a_publisher_contests_which_came_before_it_was_read() {
    let gcc = Compiler::gcc();
    let library = |keys| gcc.library(&["publisher.c", "variable.c"], &[keys]);
    let (Some(program), Some(one), Some(other)) = (
        gcc.program::<&str>(&["publishers.c"], &[]),
        library("-DKEYS=\"a\",\"b\""),
        library("-DKEYS=\"a\",\"x\""),
    ) else {
        return;
    };
    let mut target = Target::spawn(&mut Command::new(program));
    for library in [one, other] {
        target.command(&format!("load {}", library.display()));
    }
    target.command("publish 0");
    let pid = target.pid();
    let mut processes = processes_with(None);
    processes.add(pid).unwrap();
    processes.scan(pid);
    let tracked = processes.get_mut(pid).unwrap();
    let ThreadStatus::Readable(variables) = tracked.process.threads() else {
        panic!("{:?}", tracked.process)
    };
    let keys = variables.keys.clone();
    // That of the publisher, which the other library's is not.
    let variable = (0..2).find(|it| keys.context_of_variable(*it).is_some());
    tracked.data.keys.set(1, keys);
    let mut catalog = Catalog::new();
    let mut names = |processes: &mut Processes, time| {
        names(processes, &mut catalog, pid, variable.unwrap(), time)
    };
    assert_eq!(names(&mut processes, monotonic()), ["a", "b"]);
    let before = processes.get_mut(pid).unwrap().data.other_searched - 1;
    target.command("publish 1");
    // A record from before the last search needs no other one.
    assert_eq!(names(&mut processes, before), ["a", "b"]);
    assert_eq!(names(&mut processes, monotonic()), ["a", "#1"]);
    // And the threads are read in another way from now on.
    let changes = processes.poll(&mut catalog);
    assert_eq!(changes.changed, [pid]);
}
