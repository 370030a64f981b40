use otelctx_sample::format::SpanId;
use otelctx_sample::{Found, Reason, ThreadId};

use super::*;

const MS: u64 = 1_000_000;

/// A recording in progress.
#[derive(Default)]
struct Recorder {
    catalog: Catalog,
}

impl Recorder {
    fn thread(&mut self, pid: i32, tid: i32) -> ThreadId {
        let find = |(id, facts): (_, &ProcessFacts)| (facts.pid == pid).then_some(id);
        let known = self.catalog.processes().find_map(find);
        let process = known.unwrap_or_else(|| {
            self.catalog.add_process(ProcessFacts {
                pid,
                start_ticks: 7,
                comm: "shop".into(),
                resource: vec![
                    ("service.name".into(), "shop".into()),
                    ("replicas".into(), 3.into()),
                ],
                ..ProcessFacts::default()
            })
        });
        self.catalog.thread(process, tid, "worker")
    }

    /// A sample on a CPU, at this time in milliseconds. A trace of 0 is none.
    fn sample(&mut self, ms: u64, (pid, tid): (i32, i32), trace: u128, route: &str) -> Sample {
        let mut context = DecodedContext::default();
        context.trace_id = TraceId::from_bytes(trace.to_be_bytes());
        context.span_id = SpanId::from_bytes([9; 8]);
        context.attributes = vec![("http.route".into(), route.into())];
        let found = match trace {
            0 => Found::Detached,
            _ => Found::Attached(self.catalog.context(&context)),
        };
        let stack = self.catalog.native_stack(&[]);
        Sample {
            time: ms * MS,
            cpu: 0,
            thread: self.thread(pid, tid),
            event: Event::OnCpu,
            found,
            gil: None,
            user_stack: stack,
            stack_end: None,
            kernel_stack: stack,
        }
    }

    /// The same of a thread that has been waiting since then.
    fn waiting(&mut self, mut sample: Sample, since_ms: u64, call: &str, text: &str) -> Sample {
        let reason = Reason {
            call: call.into(),
            text: text.into(),
        };
        sample.event = Event::OffCpu(OffCpu {
            state: OffCpuState::Asleep,
            nanoseconds: MS,
            since: since_ms * MS,
            reason: (!call.is_empty()).then(|| self.catalog.reason(&reason)),
        });
        sample
    }
}

fn trigger(text: &str) -> Trigger {
    Trigger::new(text.parse().unwrap())
}

#[test]
fn a_trace_that_has_been_seen_for_long_fires_once() {
    let mut recorder = Recorder::default();
    let mut trigger = trigger("http.route=/checkout and seen > 500ms");
    let mut check = |ms, process, trace, route| {
        let sample = recorder.sample(ms, process, trace, route);
        trigger.check(&sample, &recorder.catalog)
    };
    assert_eq!(check(100, (1, 11), 5, "/checkout"), None);
    // Another process, another trace and another route have times of their own.
    assert_eq!(check(550, (2, 21), 5, "/checkout"), None);
    assert_eq!(check(560, (1, 12), 6, "/checkout"), None);
    assert_eq!(check(590, (1, 11), 5, "/cart"), None);
    // Not longer than that.
    assert_eq!(check(600, (1, 11), 5, "/checkout"), None);
    assert_eq!(check(700, (1, 11), 5, "/cart"), None);
    // Any thread of the process.
    let fired = check(701, (1, 12), 5, "/checkout").unwrap();
    assert_eq!((fired.pid, fired.tid, fired.time), (1, 12, 701 * MS));
    assert_eq!((&fired.comm[..], fired.seen), ("shop", Some(601 * MS)));
    assert_eq!(fired.trace, Some(TraceId::from_bytes(5_u128.to_be_bytes())));
    assert_eq!((fired.wait, fired.reason), (None, None));
    for ms in 702..2000 {
        assert_eq!(check(ms, (1, 11), 5, "/checkout"), None);
    }
    let other = check(2000, (2, 21), 5, "/checkout").unwrap();
    assert_eq!((other.pid, other.seen), (2, Some(1450 * MS)));
}

/// A catalog is replaced every ten seconds, and the IDs in it are others then.
#[test]
fn a_trace_is_the_same_with_another_catalog() {
    let mut trigger = trigger("seen > 500ms");
    let mut fired = Vec::new();
    for ms in (100..5000).step_by(100) {
        let mut recorder = Recorder::default();
        recorder.thread(ms as i32, 1);
        let sample = recorder.sample(ms, (1, 11), 5, "/checkout");
        let found = trigger.check(&sample, &recorder.catalog);
        fired.extend(found.map(|it| it.time / MS));
    }
    assert_eq!(fired, [700]);
}

#[test]
fn each_long_wait_fires_once() {
    let mut recorder = Recorder::default();
    let mut trigger = trigger("wait > 2s");
    let mut check = |ms, tid, since| {
        let sample = recorder.sample(ms, (1, tid), 0, "");
        let sample = recorder.waiting(sample, since, "poll", "poll for 127.0.0.1:5432 (postgres)");
        trigger.check(&sample, &recorder.catalog)
    };
    assert_eq!(check(3000, 11, 1000), None);
    let fired = check(3001, 11, 1000).unwrap();
    assert_eq!(
        (fired.wait, fired.trace, fired.seen),
        (Some(2001 * MS), None, None)
    );
    assert_eq!(fired.reason.unwrap(), "poll for 127.0.0.1:5432 (postgres)");
    assert_eq!(check(4000, 11, 1000), None);
    // Another thread's wait, and another one of the same thread.
    assert_eq!(check(4000, 12, 1000).unwrap().tid, 12);
    assert_eq!(check(9000, 11, 5000).unwrap().wait, Some(4000 * MS));
    // Unknown since when.
    assert_eq!(check(9000, 13, 0), None);
}

#[test]
fn only_threads_that_wait_for_a_lock_wait_for_a_lock() {
    let held = "lock held by thread 4731, /cart 4bf92f…";
    let expected = [
        ("futex", held, true),
        ("futex", "futex", false),
        ("poll", "lock", false),
        ("", "", false),
    ];
    for (call, text, is_lock) in expected {
        let mut recorder = Recorder::default();
        let sample = recorder.sample(1000, (1, 11), 5, "/cart");
        let sample = recorder.waiting(sample, 899, call, text);
        let fired = trigger("lock wait > 100ms").check(&sample, &recorder.catalog);
        assert_eq!(fired.is_some(), is_lock, "{call} {text}");
        let fired = trigger("wait > 100ms").check(&sample, &recorder.catalog);
        assert!(fired.is_some(), "{call} {text}");
    }
}

/// A thread in the queue, on a CPU or stopped waits for nobody.
#[test]
fn only_sleep_is_a_wait() {
    for (state, waits) in [
        (OffCpuState::Queued, false),
        (OffCpuState::Asleep, true),
        (OffCpuState::Disk, true),
        (OffCpuState::Stopped, false),
    ] {
        let mut recorder = Recorder::default();
        let sample = recorder.sample(1000, (1, 11), 5, "/cart");
        let mut sample = recorder.waiting(sample, 100, "poll", "poll");
        let Event::OffCpu(off) = &mut sample.event else {
            panic!("{sample:?}");
        };
        off.state = state;
        let fired = trigger("wait > 100ms").check(&sample, &recorder.catalog);
        assert_eq!(fired.is_some(), waits, "{state:?}");
    }
    let mut recorder = Recorder::default();
    let sample = recorder.sample(1000, (1, 11), 5, "/cart");
    let fired = trigger("wait > 0ms").check(&sample, &recorder.catalog);
    assert_eq!(fired, None);
}

#[test]
fn attributes_are_those_of_the_context_then_of_the_resource() {
    let holds = |text: &str, trace| {
        let mut recorder = Recorder::default();
        let sample = recorder.sample(1000, (1, 11), trace, "/cart");
        trigger(text).check(&sample, &recorder.catalog).is_some()
    };
    for (text, expected) in [
        ("http.route=/cart", true),
        ("http.route=/car", false),
        ("http.route=/c*", true),
        ("http.route!=/c*", false),
        ("http.route!=/checkout", true),
        ("http.route", true),
        ("service.name=shop and http.route=/cart", true),
        ("service.name=shop and http.route=/other", false),
        ("replicas=3", true),
        ("absent", false),
        ("absent!=1", true),
    ] {
        assert_eq!(holds(text, 5), expected, "{text}");
    }
    assert!(holds("service.name=shop", 0) && !holds("http.route", 0));
}

/// Without a trace and a wait, there is nothing to distinguish samples by but the process.
#[test]
fn an_attribute_alone_fires_for_each_trace_and_process() {
    let mut recorder = Recorder::default();
    let mut trigger = trigger("service.name=shop");
    let mut check = |pid, trace| {
        let sample = recorder.sample(1000, (pid, pid + 10), trace, "/cart");
        trigger.check(&sample, &recorder.catalog).is_some()
    };
    let fired = [(1, 0), (1, 0), (2, 0), (1, 5), (1, 5), (1, 6)];
    let fired = fired.map(|(pid, trace)| check(pid, trace));
    assert_eq!(fired, [true, false, true, true, false, true]);
}

/// The oldest traces are forgotten: their time starts again.
#[test]
fn memory_is_bounded_by_the_newest_traces() {
    let mut recorder = Recorder::default();
    let mut trigger = trigger("seen > 1s");
    let mut check = |ms, trace| {
        let sample = recorder.sample(ms, (1, 11), trace, "/cart");
        trigger.check(&sample, &recorder.catalog)
    };
    for trace in 1..=MAX_TRACES as u128 {
        assert_eq!(check(0, trace), None);
    }
    assert_eq!(check(1001, 1).unwrap().seen, Some(1001 * MS));
    for trace in 0..3 * MAX_TRACES as u128 {
        assert_eq!(check(1001, 1_000_000 + trace), None);
    }
    assert_eq!(check(3000, 2), None);
    assert_eq!(
        check(3000, 1_000_000 + 3 * MAX_TRACES as u128 - 1)
            .unwrap()
            .seen,
        Some(1999 * MS)
    );
}
