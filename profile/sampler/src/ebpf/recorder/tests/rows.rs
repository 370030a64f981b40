//! Rows of unwind tables while processes come and go.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use aya::maps::{ArrayOfMaps, Map, MapData, MapInfo, MapType};
use otelctx_fixtures::Btrfs;
use otelctx_sample::Counts;

use super::*;

/// Number of shards that the program finds rows in, as the kernel has them.
fn shards(recorder: &Recorder) -> usize {
    let ids = recorder.loaded.map_ids();
    let infos = ids.iter().map(|id| MapInfo::from_id(*id).unwrap());
    let is_shards = |info: &MapInfo| info.map_type().unwrap() == MapType::ArrayOfMaps;
    let id = infos
        .filter(is_shards)
        .map(|info| info.id())
        .next()
        .unwrap();
    let map = Map::from_map_data(MapData::from_id(id).unwrap()).unwrap();
    let shards: ArrayOfMaps<MapData, MapData> = map.try_into().unwrap();
    (0..shards.len())
        .filter(|index| shards.get(index, 0).is_ok())
        .count()
}

/// Whether callers are lost in code with neither unwind tables nor frame pointers. On aarch64, which has registers enough,
/// it leaves x29 to its callers, so that the walk goes on past it. Says so if they are not.
fn are_callers_lost() -> bool {
    let are_lost = cfg!(target_arch = "x86_64");
    if !are_lost {
        eprintln!("skipped: x29 leads past code without frame pointers");
    }
    are_lost
}

/// A program without frame pointers, whose thread knows its own stack.
struct Spinning {
    target: Target,
    /// Where `descend` and `work` begin.
    functions: [u64; 2],
    /// All frames but the innermost one, once they are known.
    callers: Option<Vec<u64>>,
}

impl Spinning {
    const DEPTH: usize = 20;

    fn start(program: &Path) -> Self {
        let target = Target::spawn(Command::new(program).arg(format!("depth={}", Self::DEPTH)));
        let mut functions = target.lines[0].split(' ').map(|it| it.parse().unwrap());
        let functions = [(); 2].map(|()| functions.next().unwrap());
        Self {
            target,
            functions,
            callers: None,
        }
    }

    /// Checks a stack of its thread against what the thread does, and against all earlier ones.
    fn check(&mut self, stack: &[u64]) {
        // Each has no more bytes (`spin.c`).
        let is_in = |address: &u64, function: u64| (function..function + 256).contains(address);
        let [descend, work] = self.functions;
        assert!(stack.len() > Self::DEPTH, "{stack:x?}");
        assert!(
            stack[..Self::DEPTH].iter().all(|it| is_in(it, descend)),
            "{stack:x?}"
        );
        assert!(is_in(&stack[Self::DEPTH], work), "{stack:x?}");
        let callers = self.callers.get_or_insert_with(|| stack[1..].to_vec());
        assert_eq!(stack[1..], *callers);
    }
}

/// `None`, with a message, if the kernel does not permit unwind tables.
fn start_with_tables(options: &Options) -> Option<Recorder> {
    let recorder = start(options)?;
    let tables = recorder.without_tables().map_or(Ok(()), Err);
    Feature::Tables.or_skip(tables).map(|()| recorder)
}

/// Starts to sample a process that runs already, and waits for its rows.
fn add(recorder: &mut Recorder, pid: i32) {
    start_sampling(recorder, pid);
    let process = reader::remote::Process::open(pid).unwrap();
    recorder.loaded.unwinding.read(&process);
    recorder.loaded.unwinding.wait(TIMEOUT);
    // Stacks that were taken before have no rows.
    recorder.drain(&mut Catalog::new(), &mut |_| {});
    recorder.processes_mut().reset_catalog();
}

/// Ends a program, and waits until that is known.
fn end(recorder: &mut Recorder, target: Target) {
    let pid = target.pid();
    drop(target);
    let begin = Instant::now();
    while recorder.processes.get_mut(pid).is_some() {
        assert!(begin.elapsed() < TIMEOUT);
        std::thread::sleep(Duration::from_millis(20));
        recorder.drain(&mut Catalog::new(), &mut |_| {});
        recorder.processes_mut().reset_catalog();
    }
}

/// Samples until there are stacks of each of these programs, and checks them.
fn check_stacks(recorder: &mut Recorder, all: &mut [&mut Spinning]) {
    let mut catalog = Catalog::new();
    let mut missing: HashSet<i32> = all.iter().map(|it| it.target.pid()).collect();
    let begin = Instant::now();
    while !missing.is_empty() {
        assert!(begin.elapsed() < TIMEOUT * 2, "no samples of {missing:?}");
        std::thread::sleep(Duration::from_millis(20));
        let mut samples = Vec::new();
        recorder.drain(&mut catalog, &mut |sample| samples.push(sample));
        for sample in samples {
            let thread = catalog.thread_facts(sample.thread);
            let pid = catalog.process(thread.process).pid;
            let spinning = all.iter_mut().find(|it| it.target.pid() == pid);
            // The first thread only waits for its input.
            if let Some(spinning) = spinning.filter(|_| thread.tid != pid) {
                let frames = catalog.frames(sample.user_stack);
                let stack: Vec<u64> = frames.filter_map(Frame::address).collect();
                spinning.check(&stack);
                missing.remove(&pid);
            }
        }
    }
    recorder.processes_mut().reset_catalog();
}

/// How many samples ended in a program's file, by the reason.
fn ends(recorder: &Recorder, program: &Path) -> BTreeMap<StackEnd, u64> {
    let name = program.file_name().unwrap().to_str().unwrap();
    let places = recorder
        .processes()
        .tally
        .incomplete_stacks
        .sorted()
        .into_iter();
    let places = places.filter(|place| place.module == name);
    places.map(|place| (place.end, place.samples)).collect()
}

/// Until the recorder passes them on, the program has no rows, as while they are made.
#[test]
fn code_without_tables_is_distinguished_from_code_whose_tables_are_not_ready() {
    check_until_ready(Sampled::own().workers_without_frame_pointers(&[]));
}

/// Frame pointers lead to the C library's code that has called the thread's function; there they are 0. Another process
/// would have the library's rows already, if it were a file of its own.
#[test]
fn no_stack_is_complete_before_the_tables_are_ready() {
    check_until_ready(Sampled::own().static_workers());
}

/// Checks how stacks of a program end, before its tables are ready and after that.
fn check_until_ready(with: Option<PathBuf>) {
    if !are_callers_lost() {
        return;
    }
    let (Some(with), Some(without)) = (with, Sampled::own().workers_without_tables()) else {
        return;
    };
    let start_busy = |program: &Path| Target::spawn(Command::new(program).arg("busy"));
    let started = start_busy(&without);
    let mut options = Options::new(Targets::Processes(vec![started.pid()]));
    (options.frequency, options.without_second_walk) = (499, true);
    let Some(mut recorder) = start_with_tables(&options) else {
        return;
    };
    let target = start_busy(&with);
    let pid = target.pid();
    recorder.processes.add(pid).unwrap();
    recorder.processes.scan(pid);
    let process = reader::remote::Process::open(pid).unwrap();
    // Before it is sampled: its mappings are known then.
    recorder.loaded.unwinding.read(&process);
    recorder.configure(pid);
    let mut catalog = Catalog::new();
    let begin = Instant::now();
    let (mut early, mut samples) = (BTreeMap::new(), Vec::new());
    // The end of the first drain passes the rows on: there must be samples before, also on a busy machine.
    let cpu_time = || process.stat().unwrap().cpu_time().unwrap();
    let before = cpu_time();
    while cpu_time() < before + 100_000_000 {
        assert!(begin.elapsed() < TIMEOUT);
        std::thread::sleep(Duration::from_millis(1));
    }
    while early.is_empty() {
        assert!(begin.elapsed() < TIMEOUT);
        std::thread::sleep(Duration::from_millis(100));
        recorder.drain(&mut catalog, &mut |sample| samples.push(sample));
        early = ends(&recorder, &with);
    }
    let early: Vec<StackEnd> = early.into_keys().collect();
    assert_eq!(early, [StackEnd::TablesNotReady]);
    let complete = samples.iter().filter(|it| {
        let process = catalog.thread_facts(it.thread).process;
        catalog.process(process).pid == pid && it.stack_end == Some(StackEnd::Start)
    });
    assert_eq!(complete.count(), 0);

    recorder.loaded.unwinding.wait(TIMEOUT);
    // The first passes the rows on, the second has the samples of the moment before.
    for _ in 0..2 {
        recorder.drain(&mut catalog, &mut |_| {});
    }
    let before = ends(&recorder, &with);
    let mut samples = 0;
    while samples < 100 {
        assert!(begin.elapsed() < TIMEOUT * 2);
        std::thread::sleep(Duration::from_millis(20));
        recorder.drain(&mut catalog, &mut |_| samples += 1);
    }
    assert_eq!(ends(&recorder, &with), before);
    assert_ne!(recorder.processes().counts().complete_stacks, 0);
    let ends: Vec<StackEnd> = ends(&recorder, &without).into_keys().collect();
    assert_eq!(ends, [StackEnd::NoTables]);
}

/// No rows are made, as while they are not ready: the stacks are walked again, over copies of them.
#[test]
fn early_stacks_equal_what_the_program_knows_of_its_own() {
    let Some([program, _]) = two_spinning() else {
        return;
    };
    let mut spinning = Spinning::start(&program);
    let mut options = Options::new(Targets::Processes(vec![spinning.target.pid()]));
    (options.frequency, options.holds_rows) = (499, true);
    let Some(mut recorder) = start_with_tables(&options) else {
        return;
    };
    for _ in 0..20 {
        check_stacks(&mut recorder, &mut [&mut spinning]);
    }
    assert_eq!(ends(&recorder, &program), BTreeMap::new());
    let counts = recorder.processes().counts();
    assert_eq!(counts.complete_stacks, counts.all_stacks());
}

/// Each CPU keeps which mappings the process has that it has sampled last.
#[test]
fn tables_are_not_used_for_a_program_that_replaces_theirs() {
    let Some(program) = Sampled::own().workers_without_frame_pointers(&[]) else {
        return;
    };
    let script = "trap 'exec \"$0\" busy' USR1; echo ready; while :; do :; done";
    let target = Target::spawn(Command::new("sh").args(["-c", script]).arg(&program));
    let mut options = Options::new(Targets::Processes(vec![target.pid()]));
    options.frequency = 499;
    options.without_mappings = true;
    let Some(mut recorder) = start_with_tables(&options) else {
        return;
    };
    recorder.loaded.unwinding.wait(TIMEOUT);
    // Of a shell without tables, no stack is complete.
    drain_until(&mut recorder, |counts| {
        let [by_frame_pointers, ..] = counts.incomplete_stacks;
        counts.all_stacks() - by_frame_pointers >= 20
    });
    // SAFETY: it only sends a signal.
    assert_eq!(unsafe { libc::kill(target.pid(), libc::SIGUSR1) }, 0);
    let begin = Instant::now();
    let (mut replaced, mut ends) = (None, Vec::new());
    while ends.len() < 20 {
        assert!(begin.elapsed() < TIMEOUT * 2);
        std::thread::sleep(Duration::from_millis(20));
        // The recorder takes no note of it, and passes on no mappings of the new program.
        recorder.loaded.events.begin();
        while let Some((head, mut parts)) = recorder.loaded.events.next(u64::MAX) {
            match head.kind {
                kind::EXEC => replaced = Some(head.time),
                kind::ON_CPU if replaced.is_some_and(|time| head.time > time) => {
                    let stack = parts.find(|part| part.kind == part::USER_STACK);
                    ends.extend(stack.map(|stack| stack.outcome));
                }
                _ => {}
            }
        }
    }
    ends.dedup();
    assert_eq!(ends, [stack_end::BY_FRAME_POINTERS]);
}

/// Whether the program finds mappings that are in no list, by a stack of this process.
fn finds_mappings(recorder: &mut Recorder, pid: i32) -> bool {
    let (end, _) = take_stacks(recorder, pid, 1, |_| true)[0];
    let found = if end & stack_end::ALL_MAPPINGS != 0 {
        Ok(())
    } else {
        Err("the kernel has no tree of mappings: it needs Linux 6.1")
    };
    Feature::Mappings.or_skip(found).is_some()
}

/// Checks that a process's stacks are walked by frame pointers, which lead to the thread's first function and no further:
/// that is no end which code without rows would tell.
fn check_without_rows(recorder: &mut Recorder, process: &Spinning) {
    for (end, stack) in take_stacks(recorder, process.target.pid(), 20, |_| true) {
        assert_eq!(stack_end::of(end), StackEnd::NoTables, "{stack:x?}");
        assert_eq!(stack.len(), Spinning::DEPTH + 1, "{stack:x?}");
    }
}

/// A process whose mappings the recorder does not know, or has no room for.
#[test]
fn the_program_finds_mappings_that_are_in_no_list() {
    if !are_callers_lost() {
        return;
    }
    let Some([program, other]) = two_spinning() else {
        return;
    };
    let copy = std::env::temp_dir().join(format!("otelctx-unlisted-{}", std::process::id()));
    let copy = Folder(copy);
    std::fs::create_dir_all(&copy.0).unwrap();
    let file = copy.0.join("program");
    otelctx_fixtures::copy_program(&program, &file);
    let mut known = Spinning::start(&program);
    let mut first = Spinning::start(&file);
    let pids = [&known, &first].map(|it| it.target.pid());
    let mut options = Options::new(Targets::Processes(pids.to_vec()));
    options.frequency = 499;
    options.max_mappings = Some(1);
    let Some(mut recorder) = start_with_tables(&options) else {
        return;
    };
    recorder.loaded.unwinding.wait(TIMEOUT);
    if !finds_mappings(&mut recorder, pids[0]) {
        return;
    }
    recorder.drain(&mut Catalog::new(), &mut |_| {});
    recorder.processes_mut().reset_catalog();
    check_stacks(&mut recorder, &mut [&mut known, &mut first]);

    // Another process of the same file, before its rows are requested.
    let mut second = Spinning::start(&file);
    start_sampling(&mut recorder, second.target.pid());
    for (end, stack) in take_stacks(&mut recorder, second.target.pid(), 20, |_| true) {
        second.check(&stack);
        assert_eq!(stack_end::of(end), StackEnd::Start);
        // The C library's: start_thread and clone3.
        assert_eq!(stack.len(), Spinning::DEPTH + 3);
    }

    // The same file with other contents, which have other rows: those of before are not used.
    end(&mut recorder, second.target);
    end(&mut recorder, first.target);
    otelctx_fixtures::copy_program(&other, &file);
    let mut changed = Spinning::start(&file);
    start_sampling(&mut recorder, changed.target.pid());
    check_without_rows(&mut recorder, &changed);
    // After this time, contents of files are checked again (`RECHECK_INTERVAL`).
    std::thread::sleep(Duration::from_secs(1));
    let process = reader::remote::Process::open(changed.target.pid()).unwrap();
    recorder.loaded.unwinding.read(&process);
    recorder.loaded.unwinding.wait(TIMEOUT);
    recorder.drain(&mut Catalog::new(), &mut |_| {});
    recorder.processes_mut().reset_catalog();
    check_stacks(&mut recorder, &mut [&mut known, &mut changed]);
}

/// A program that is about to start, and all that runs: their first samples find rows in the kernel.
#[test]
fn rows_are_there_before_the_first_sample() {
    if !are_callers_lost() {
        return;
    }
    let Some([program, other]) = two_spinning() else {
        return;
    };
    let mut running = Spinning::start(&other);
    let mut options = Options::new(Targets::All);
    options.frequency = 499;
    options.max_mappings = Some(1);
    options.code_files = vec![program.clone(), "/no/such/file".into(), "/dev/zero".into()];
    let Some(mut recorder) = start_with_tables(&options) else {
        return;
    };
    if !finds_mappings(&mut recorder, running.target.pid()) {
        return;
    }
    // On a busy machine, the time until sampling starts is not sufficient for all that runs.
    recorder.read_ahead(&options.code_files, TIMEOUT);
    // Leaves out samples from before.
    take_stacks(&mut recorder, running.target.pid(), 20, |_| true);
    let mut started = Spinning::start(&program);
    for (name, process) in [("running", &mut running), ("started", &mut started)] {
        for (end, stack) in take_stacks(&mut recorder, process.target.pid(), 20, |_| true) {
            process.check(&stack);
            assert_eq!(stack_end::of(end), StackEnd::Start, "{name}: {stack:x?}");
        }
    }
}

/// Mappings of both show the same device.
#[test]
fn files_with_the_same_inode_number_in_two_subvolumes_have_their_own_rows() {
    let Some([program, other]) = two_spinning() else {
        return;
    };
    let Some(mounted) = Btrfs::mount("rows") else {
        return;
    };
    let mut inodes = Vec::new();
    let mut all = Vec::new();
    for (name, program) in [("first", program), ("second", other)] {
        let Some(subvolume) = mounted.subvolume(name) else {
            return;
        };
        let copy = subvolume.join("program");
        otelctx_fixtures::copy_program(&program, &copy);
        inodes.push(std::fs::metadata(&copy).unwrap().ino());
        all.push(Spinning::start(&copy));
    }
    assert_eq!(inodes[0], inodes[1]);
    let pids: Vec<i32> = all.iter().map(|it| it.target.pid()).collect();
    let mut options = Options::new(Targets::Processes(pids.clone()));
    options.frequency = 499;
    options.without_mappings = true;
    let Some(mut recorder) = start_with_tables(&options) else {
        return;
    };
    // What the mappings show is distinguished when they are read again: of each process in its own time.
    let begin = Instant::now();
    let mut catalog = Catalog::new();
    let mut missing: HashSet<i32> = pids.iter().copied().collect();
    while !missing.is_empty() {
        assert!(begin.elapsed() < TIMEOUT, "no whole stacks of {missing:?}");
        std::thread::sleep(Duration::from_millis(20));
        let mut samples = Vec::new();
        recorder.drain(&mut catalog, &mut |sample| samples.push(sample));
        for sample in samples {
            let thread = catalog.thread_facts(sample.thread);
            let pid = catalog.process(thread.process).pid;
            if thread.tid != pid && sample.stack_end == Some(StackEnd::Start) {
                missing.remove(&pid);
            }
        }
    }
    recorder.processes_mut().reset_catalog();
    recorder.loaded.unwinding.wait(TIMEOUT);
    recorder.drain(&mut Catalog::new(), &mut |_| {});
    recorder.processes_mut().reset_catalog();
    check_stacks(&mut recorder, &mut all.iter_mut().collect::<Vec<_>>());
    for process in all {
        // With the C library's: start_thread and clone3.
        assert_eq!(process.callers.unwrap().len(), Spinning::DEPTH + 2);
    }
}

/// The files of three processes, of which each takes more than a third of the room.
#[test]
fn code_whose_tables_have_no_room_is_distinguished_from_code_without_tables() {
    let Some(files) = (1..=3).map(large).collect::<Option<Vec<_>>>() else {
        return;
    };
    let mut all: Vec<Spinning> = files.iter().map(|it| Spinning::start(it)).collect();
    let mut options = Options::new(Targets::Processes(vec![all[0].target.pid()]));
    options.frequency = 499;
    (options.kept_rows, options.max_rows) = (Some(0), Some(1));
    let Some(mut recorder) = start_with_tables(&options) else {
        return;
    };
    recorder.loaded.unwinding.wait(TIMEOUT);
    add(&mut recorder, all[1].target.pid());
    check_stacks(&mut recorder, &mut all[..2].iter_mut().collect::<Vec<_>>());
    add(&mut recorder, all[2].target.pid());
    let begin = Instant::now();
    let mut last = BTreeMap::new();
    while !last.contains_key(&StackEnd::TooManyTables) {
        assert!(begin.elapsed() < TIMEOUT, "{last:?}");
        sample_complete_stacks(&mut recorder, 1);
        last = ends(&recorder, &files[2]);
    }
    assert!(!last.contains_key(&StackEnd::NoTables), "{last:?}");
    for file in &files[..2] {
        assert!(!ends(&recorder, file).contains_key(&StackEnd::TooManyTables));
    }
}

/// Rows that no list refers to are given back, and their room is used again.
#[test]
fn the_program_does_not_find_rows_that_were_given_back() {
    if !are_callers_lost() {
        return;
    }
    let Some([program, other]) = two_spinning() else {
        return;
    };
    let process = Spinning::start(&program);
    let pid = process.target.pid();
    let mut options = Options::new(Targets::Processes(vec![pid]));
    options.frequency = 499;
    (options.kept_rows, options.max_mappings) = (Some(0), Some(1));
    let Some(mut recorder) = start_with_tables(&options) else {
        return;
    };
    recorder.loaded.unwinding.wait(TIMEOUT);
    if !finds_mappings(&mut recorder, pid) {
        return;
    }
    let take = |recorder: &mut Recorder| take_stacks(recorder, pid, 1, |_| true).pop().unwrap().1;
    let whole = take(&mut recorder);
    assert_eq!(whole.len(), Spinning::DEPTH + 3);
    // As if it had ended: what it has mapped keeps its rows.
    recorder.loaded.unwinding.forget(pid);
    let begin = Instant::now();
    while take(&mut recorder).len() == whole.len() {
        assert!(begin.elapsed() < TIMEOUT, "they are kept");
    }
    // Nothing is drained: a sample of the process would ask for its rows again.
    let mut other = Spinning::start(&other);
    start_sampling(&mut recorder, other.target.pid());
    let opened = reader::remote::Process::open(other.target.pid()).unwrap();
    recorder.loaded.unwinding.read(&opened);
    recorder.loaded.unwinding.wait(TIMEOUT);
    drop(take_stacks(&mut recorder, other.target.pid(), 1, |_| true));
    for (_, stack) in take_stacks(&mut recorder, other.target.pid(), 20, |_| true) {
        other.check(&stack);
    }
    // Its frame pointers are right, and the C library has rows again.
    for (_, stack) in take_stacks(&mut recorder, pid, 20, |_| true) {
        assert_eq!(stack[1..], whole[1..]);
    }
}

/// A process without room for its mappings, and then with it.
#[test]
fn mappings_without_room_are_placed_when_there_is_room() {
    if !are_callers_lost() {
        return;
    }
    let Some(program) = Sampled::own().workers_without_frame_pointers(&[]) else {
        return;
    };
    let [first, second] = [(); 2].map(|()| Target::spawn(Command::new(&program).arg("busy")));
    let mut mappings = 0;
    let process = reader::remote::Process::open(first.pid()).unwrap();
    let counted = process.executable_mappings(&mut |_| {
        mappings += 1;
        ControlFlow::Continue(())
    });
    counted.unwrap();
    let mut options = Options::new(Targets::Processes(vec![first.pid()]));
    options.frequency = 499;
    // Each process takes one more than it has mappings.
    options.max_mappings = Some(mappings + 2);
    options.without_mappings = true;
    let Some(mut recorder) = start_with_tables(&options) else {
        return;
    };
    recorder.loaded.unwinding.wait(TIMEOUT);
    sample_complete_stacks(&mut recorder, 1);

    let without = ends(&recorder, &program);
    add(&mut recorder, second.pid());
    let begin = Instant::now();
    while ends(&recorder, &program) == without {
        assert!(begin.elapsed() < TIMEOUT);
        sample_complete_stacks(&mut recorder, 1);
    }
    let mut with = ends(&recorder, &program);
    assert!(with.remove(&StackEnd::TooManyMappings).is_some());
    let mut without = without;
    without.remove(&StackEnd::TooManyMappings);
    // Until its mappings are read, the second one's stacks are walked by frame pointers.
    with.remove(&StackEnd::FramePointers);
    without.remove(&StackEnd::FramePointers);
    assert_eq!(with, without);

    end(&mut recorder, first);
    // The last samples of the first process, and some of the other from before there was room, may still come.
    let begin = Instant::now();
    loop {
        let before = ends(&recorder, &program);
        sample_complete_stacks(&mut recorder, 20);
        if ends(&recorder, &program) == before {
            break;
        }
        assert!(begin.elapsed() < TIMEOUT);
    }
}

/// Samples until there are `count` more complete stacks.
fn sample_complete_stacks(recorder: &mut Recorder, count: u64) {
    let until = recorder.processes().counts().complete_stacks + count;
    drain_until(recorder, |counts| counts.complete_stacks >= until);
}

/// Samples until this is true of the counts.
fn drain_until(recorder: &mut Recorder, is_enough: impl Fn(&Counts) -> bool) {
    let begin = Instant::now();
    while !is_enough(&recorder.processes().counts()) {
        assert!(
            begin.elapsed() < TIMEOUT,
            "{:?}",
            recorder.processes().counts()
        );
        std::thread::sleep(Duration::from_millis(20));
        recorder.drain(&mut Catalog::new(), &mut |_| {});
        recorder.processes_mut().reset_catalog();
    }
}

/// Two programs that know their own stacks, which differ.
fn two_spinning() -> Option<[PathBuf; 2]> {
    let programs = Sampled::own();
    let program = programs.stacks_without_frame_pointers("gcc")?;
    Some([program, programs.other_stacks_without_frame_pointers()?])
}

/// A program that knows its own stack, with 90,000 rows, which are others for each number.
fn large(number: u32) -> Option<PathBuf> {
    let number = format!("-DNUMBER=\"{number}\"");
    Sampled::own().varied_stacks("gcc", &["many_rows.c"], &[&number])
}

/// A directory that is removed when dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Five copies at five paths take the room of one.
#[test]
fn rows_of_copies_of_a_file_are_made_once() {
    let Some(file) = large(1) else { return };
    let folder = std::env::temp_dir().join(format!("otelctx-copies-{}", std::process::id()));
    let folder = Folder(folder);
    std::fs::create_dir_all(&folder.0).unwrap();
    let copies: Vec<PathBuf> = (0..5).map(|it| folder.0.join(it.to_string())).collect();
    for copy in &copies {
        otelctx_fixtures::copy_program(&file, copy);
    }
    let mut all: Vec<Spinning> = copies.iter().map(|it| Spinning::start(it)).collect();
    let mut options = Options::new(Targets::Processes(vec![all[0].target.pid()]));
    options.frequency = 499;
    let Some(mut recorder) = start_with_tables(&options) else {
        return;
    };
    recorder.loaded.unwinding.wait(TIMEOUT);
    let one = shards(&recorder);
    for other in &all[1..] {
        add(&mut recorder, other.target.pid());
    }
    check_stacks(&mut recorder, &mut all.iter_mut().collect::<Vec<_>>());
    // It has no room for those of all five.
    assert_eq!(shards(&recorder), one);
}

#[test]
fn rows_of_files_that_no_process_has_mapped_make_room_for_others() {
    let (Some(small), Some(files)) = (
        Sampled::own().stacks_without_frame_pointers("gcc"),
        (1..=6).map(large).collect::<Option<Vec<_>>>(),
    ) else {
        return;
    };
    let mut living = Spinning::start(&small);
    let mut options = Options::new(Targets::Processes(vec![living.target.pid()]));
    options.frequency = 499;
    // None.
    options.kept_rows = Some(0);
    let Some(mut recorder) = start_with_tables(&options) else {
        return;
    };
    recorder.loaded.unwinding.wait(TIMEOUT);
    recorder.drain(&mut Catalog::new(), &mut |_| {});
    recorder.processes_mut().reset_catalog();
    check_stacks(&mut recorder, &mut [&mut living]);
    assert_eq!(shards(&recorder), 1);

    // All at the same time: 450,000 rows.
    let mut others: Vec<Spinning> = Vec::new();
    for file in &files[..5] {
        others.push(Spinning::start(file));
        add(&mut recorder, others.last().unwrap().target.pid());
    }
    let mut all: Vec<&mut Spinning> = others.iter_mut().chain([&mut living]).collect();
    check_stacks(&mut recorder, &mut all);
    // Those of the C library, which differ, may take a part of another one.
    assert!((2..=3).contains(&shards(&recorder)));

    for other in others {
        end(&mut recorder, other.target);
    }
    // Nobody asks for rows, and still they are given back.
    let begin = Instant::now();
    while shards(&recorder) > 1 {
        assert!(begin.elapsed() < TIMEOUT * 2);
        check_stacks(&mut recorder, &mut [&mut living]);
    }
    // Now one after the other, each in the place of the one before: first a new one, then the same again.
    for file in files.iter().rev() {
        let mut other = Spinning::start(file);
        add(&mut recorder, other.target.pid());
        check_stacks(&mut recorder, &mut [&mut living, &mut other]);
        assert_eq!(shards(&recorder), 1);
        end(&mut recorder, other.target);
    }
}
