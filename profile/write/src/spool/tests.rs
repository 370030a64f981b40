mod formats;
mod kept;

use std::fs::OpenOptions;

use otelctx_sample::format::process_context::Value;
use otelctx_sample::format::record::DecodedContext;
use otelctx_sample::format::{SpanId, TraceId};
use otelctx_sample::{
    Event, Found, Frame, GilState, Mapping, Module, NamedFrame, OffCpu, OffCpuState, ProcessFacts,
    ProcessId, ReadStep, Reason, StackEnd,
};

use super::*;

const PERIOD: NonZeroU64 = NonZeroU64::new(10_000_000).unwrap();

const MAX_SMALL_CATALOG: usize = 4096;

fn small() -> Limits {
    Limits {
        rotation: Rotation::new(MAX_SMALL_CATALOG, 10),
        part_memory: 1 << 20,
    }
}

fn spool(limits: Limits) -> Spool {
    Spool::with(file::unlinked(&std::env::temp_dir()).unwrap(), limits)
}

fn clock(end: u64) -> Clock {
    Clock {
        start: 1000,
        end,
        start_unix: 1_700_000_000_000_000_000,
    }
}

/// Adds two processes, like a sampler whose catalog was replaced.
fn processes(catalog: &mut Catalog, published: bool) -> [ProcessId; 2] {
    let module = catalog.module(Module {
        path: "/usr/bin/shop".into(),
        build_id: vec![1, 2, 3],
        device: 7,
        inode: 8,
    });
    [1, 2].map(|pid| {
        let name = Value::Array(vec!["shop".into(), Value::Int(i64::from(pid))]);
        let mut resource = vec![("service.name".to_owned(), name)];
        if published {
            resource.push(("deployment".to_owned(), Value::Bool(true)));
        }
        catalog.add_process(ProcessFacts {
            pid,
            start_ticks: 77,
            comm: "shop".into(),
            executable: "/usr/bin/shop".into(),
            container_id: (pid == 1).then(|| "c".repeat(64)),
            pod_uid: (pid == 1).then(|| "0123456789abcdef0123456789abcdef".to_owned()),
            opted_out: pid == 1,
            resource,
            published,
            mappings: vec![Mapping {
                start: 0x1000,
                end: 0x2000,
                offset: 0,
                module,
                since: 1,
            }],
        })
    })
}

fn reason(number: u64) -> Reason {
    Reason {
        call: "poll".into(),
        text: format!("poll for {}", number % 3),
    }
}

/// The sample with this number, each with its own trace and stack.
fn sample(catalog: &mut Catalog, processes: [ProcessId; 2], number: u64) -> Sample {
    let mut context = DecodedContext::default();
    context.trace_id = TraceId::from_bytes(u128::from(number + 1).to_be_bytes());
    context.span_id = SpanId::from_bytes([9; 8]);
    context.attributes = vec![("http.route".into(), format!("/{number}"))];
    let step = ReadStep::ALL[number as usize % ReadStep::ALL.len()];
    let found = match number % 5 {
        0 => Found::Detached,
        1 => Found::Unreadable(step),
        2 => Found::Invalid,
        3 => Found::NotPublished,
        _ => Found::Attached(catalog.context(&context)),
    };
    let process = processes[number as usize % 2];
    let named = Frame::from(NamedFrame {
        function: format!("f{}", number % 3),
        file: "shop.py".into(),
        line: 7,
        ..NamedFrame::default()
    });
    Sample {
        time: 1000 + number,
        cpu: number as u32 % 4,
        thread: catalog.thread(process, 100 + (number % 3) as i32, "worker"),
        event: match number % 7 {
            0 => Event::OffCpu(OffCpu {
                state: match number / 7 % 5 {
                    4 => OffCpuState::Unknown,
                    state => OffCpuState::ALL[state as usize],
                },
                nanoseconds: number,
                since: 1000,
                reason: number
                    .is_multiple_of(2)
                    .then(|| catalog.reason(&reason(number))),
            }),
            _ => Event::OnCpu,
        },
        found,
        gil: [
            None,
            Some(GilState::Held),
            Some(GilState::Waiting),
            Some(GilState::Released),
        ][number as usize % 4],
        user_stack: catalog.stack(&[Frame::instruction(number), named]),
        stack_end: StackEnd::ALL.get(number as usize % 12).copied(),
        kernel_stack: catalog.native_stack(&[]),
    }
}

/// A sample and everything that it refers to, as text.
fn described(catalog: &Catalog, sample: &Sample) -> String {
    let thread = catalog.thread_facts(sample.thread);
    let process = catalog.process(thread.process);
    let context = match &sample.found {
        Found::Attached(id) => format!("{:?}", catalog.context_facts(*id)),
        other => format!("{other:?}"),
    };
    let stack: Vec<_> = catalog.frames(sample.user_stack).collect();
    let mapping = process.mapping_at(0x1800, sample.time);
    let module = mapping.map(|mapping| catalog.module_facts(mapping.module));
    let (pid, executable) = (process.pid, &process.executable);
    let event = match sample.event {
        Event::OffCpu(off) => {
            let reason = off.reason.map(|it| catalog.reason_facts(it));
            format!(
                "{:?} {} {} {reason:?}",
                off.state, off.nanoseconds, off.since
            )
        }
        _ => "on CPU".to_owned(),
    };
    format!(
        "{} {} {event} {pid} {executable} {:?} {} {} {context} {stack:?} {module:?}",
        sample.time, sample.cpu, process.container_id, thread.tid, thread.name
    )
}

/// Records this many samples. Returns them as text, and the recording.
fn record(limits: Limits, samples: u64) -> (Vec<String>, Vec<Recording>) {
    let mut spool = spool(limits);
    let mut catalog = Catalog::new();
    let mut known = processes(&mut catalog, false);
    let mut before = Vec::new();
    for number in 0..samples {
        let sample = sample(&mut catalog, known, number);
        before.push(described(&catalog, &sample));
        spool.push(&sample);
        if spool.write(&mut catalog).unwrap() {
            assert_eq!(catalog.stack_count(), 0);
            known = processes(&mut catalog, true);
        }
    }
    assert_eq!(spool.len(), samples);
    let mut counts = Counts::default();
    counts.lost = 3;
    let parts = spool.finish(catalog, clock(1000 + samples), PERIOD, counts);
    (before, parts.map(Result::unwrap).collect())
}

fn all_described(recordings: &[Recording]) -> Vec<String> {
    let of = |it: &Recording| {
        it.samples
            .iter()
            .map(|one| described(&it.catalog, one))
            .collect()
    };
    recordings
        .iter()
        .flat_map(|it| -> Vec<String> { of(it) })
        .collect()
}

#[test]
fn what_is_spooled_comes_back() {
    for (limits, replaced) in [(LIMITS, false), (small(), true)] {
        let (before, recordings) = record(limits, 600);
        assert_eq!(all_described(&recordings), before);
        let [recording] = &recordings[..] else {
            panic!("{}", recordings.len())
        };
        assert_eq!(recording.clock, clock(1600));
        assert_eq!((recording.period, recording.counts.lost), (PERIOD, 3));
        // However often the catalog was replaced, each process occurs once, with its last facts.
        let processes: Vec<_> = recording.catalog.processes().map(|(_, it)| it).collect();
        let pids: Vec<i32> = processes.iter().map(|it| it.pid).collect();
        assert_eq!(pids, [1, 2]);
        assert_eq!(processes[0].published, replaced);
        assert_eq!(processes[0].resource.len(), if replaced { 2 } else { 1 });
        assert_eq!(processes[0].mappings.len(), 1);
    }
}

#[test]
fn a_long_recording_has_parts_that_follow_each_other() {
    let limits = Limits {
        part_memory: 200_000,
        ..small()
    };
    let (before, recordings) = record(limits, 5000);
    assert_eq!(all_described(&recordings), before);
    assert!(recordings.len() >= 3, "{}", recordings.len());
    let mut start = 1000;
    for recording in &recordings {
        let Clock {
            start: begin, end, ..
        } = recording.clock;
        assert_eq!(begin, start);
        assert!(
            recording
                .samples
                .iter()
                .all(|it| (begin..end).contains(&it.time))
        );
        assert_eq!(recording.clock.unix(begin), clock(0).unix(begin));
        // At most one segment more than the limit.
        assert!(recording.samples.len() < 1100);
        start = end;
    }
    assert_eq!(start, 6000);
    let lost: Vec<u64> = recordings.iter().map(|it| it.counts.lost).collect();
    assert_eq!((lost[0], lost.iter().sum::<u64>()), (3, 3));
}

/// A process that executes another program is another process in the recording.
#[test]
fn a_process_that_executes_another_program_stays_two() {
    let mut spool = spool(small());
    let mut catalog = Catalog::new();
    for executable in ["/bin/sh", "/usr/bin/shop", "/bin/sh"] {
        let id = catalog.add_process(ProcessFacts {
            pid: 1,
            start_ticks: 77,
            executable: executable.into(),
            ..ProcessFacts::default()
        });
        let sample = sample(&mut catalog, [id, id], 1);
        spool.push(&sample);
    }
    let mut parts = spool.finish(catalog, clock(2000), PERIOD, Counts::default());
    let recording = parts.next().unwrap().unwrap();
    assert!(parts.next().is_none());
    let executables = recording.catalog.processes().map(|(_, it)| &it.executable);
    let executables: Vec<_> = executables.collect();
    assert_eq!(executables, ["/bin/sh", "/usr/bin/shop", "/bin/sh"]);
}

/// `/dev/full` is a full disk (full(4)).
#[test]
fn nothing_is_lost_when_the_disk_is_full() {
    let full = OpenOptions::new().read(true).write(true).open("/dev/full");
    let mut spool = Spool::with(full.unwrap(), small());
    let mut catalog = Catalog::new();
    let known = processes(&mut catalog, true);
    let mut before = Vec::new();
    let error = loop {
        let sample = sample(&mut catalog, known, before.len() as u64);
        before.push(described(&catalog, &sample));
        spool.push(&sample);
        match spool.write(&mut catalog) {
            Ok(replaced) => assert!(!replaced),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    let parts = spool.finish(catalog, clock(9000), PERIOD, Counts::default());
    let recordings: Vec<Recording> = parts.map(Result::unwrap).collect();
    assert_eq!(all_described(&recordings), before);
}

#[test]
fn memory_is_bounded_while_it_records() {
    let mut spool = spool(small());
    let mut catalog = Catalog::new();
    let mut known = processes(&mut catalog, true);
    let mut most = 0;
    for number in 0..20_000 {
        let sample = sample(&mut catalog, known, number);
        spool.push(&sample);
        most = most.max(catalog.memory());
        if spool.write(&mut catalog).unwrap() {
            known = processes(&mut catalog, true);
        }
    }
    assert!(most < 3 * MAX_SMALL_CATALOG, "{most}");
    assert!(spool.buffer.capacity() <= 2 * BUFFER);
}
