//! A recording with waits, of which every number is known.

#![allow(dead_code)]

use std::num::NonZeroU64;

use otelctx_profile::sample::format::process_context::Value;
use otelctx_profile::sample::format::record::DecodedContext;
use otelctx_profile::sample::format::{SpanId, TraceId};
use otelctx_profile::sample::{
    Catalog, Counts, Event, Found, Frame, FrameKind, NamedFrame, OffCpu, OffCpuState, ProcessFacts,
    Reason, Sample, StackId, ThreadId,
};
use otelctx_profile::{Clock, NoSymbols, Options, Profile, Recording};

/// 2023-11-14 22:13:20 UTC.
pub(crate) const START_UNIX: u64 = 1_700_000_000_000_000_000;
/// 100 Hz.
pub(crate) const PERIOD: u64 = 10_000_000;
pub(crate) const MS: u64 = 1_000_000;

pub(crate) const POLL: &str = "poll for 127.0.0.1:5432 (postgres)";
pub(crate) const READ: &str = "read /var/log/x";
pub(crate) const LOCK: &str = "lock held by thread 71, /cart";

fn named(function: &str) -> Frame {
    let kind = match function {
        "poll" => FrameKind::NATIVE,
        _ => FrameKind::CPYTHON,
    };
    Frame::from(NamedFrame {
        kind,
        function: function.into(),
        file: if function == "poll" { "" } else { "shop.py" }.into(),
        line: 1,
        ..NamedFrame::default()
    })
}

/// A thread of the shop at a moment, of each of which there are several.
struct Row {
    number: u64,
    thread: ThreadId,
    found: Found,
    stack: StackId,
    event: Event,
}

/// Process `shop` (7) with threads `worker-1` (71), `worker-2` (72) and `idle` (73):
///
/// | samples | thread | trace, route | stack | |
/// |---|---|---|---|---|
/// | 4 | worker-1 | 1, /cart | serve, cart | on a CPU |
/// | 2 | worker-1 | 1, /cart | serve, cart, query, poll | asleep for 30 ms, [`POLL`] |
/// | 1 | worker-1 | 1, /cart | serve, cart | queued for 5 ms |
/// | 1 | worker-1 | 1, /cart | serve, cart | stopped for 1 ms |
/// | 1 | worker-2 | 2, /report | serve, report | on a CPU |
/// | 1 | worker-2 | 2, /report | serve, report | disk for 7 ms, [`READ`] |
/// | 1 | worker-2 | 3, /wait | serve, wait | asleep for 20 ms, [`LOCK`] |
/// | 3 | idle | none | serve | asleep for 100 ms, `epoll_wait` |
/// | 1 | idle | none | serve | queued for 2 ms |
///
/// Trace 2's context has the attribute `wait.call=mine`, too.
pub(crate) fn recording() -> Recording {
    let mut catalog = Catalog::new();
    let shop = catalog.add_process(ProcessFacts {
        pid: 7,
        comm: "shop".into(),
        resource: vec![("service.name".into(), Value::from("shop"))],
        published: true,
        ..ProcessFacts::default()
    });
    let [one, two, idle] = [(71, "worker-1"), (72, "worker-2"), (73, "idle")]
        .map(|(tid, name)| catalog.thread(shop, tid, name));
    let mut context = |trace: u8, attributes: &[(&str, &str)]| {
        let mut context = DecodedContext::default();
        context.trace_id = TraceId::from_bytes([trace; 16]);
        context.span_id = SpanId::from_bytes([trace; 8]);
        let owned = |(key, value): &(&str, &str)| ((*key).into(), (*value).into());
        context.attributes = attributes.iter().map(owned).collect();
        Found::Attached(catalog.context(&context))
    };
    let cart = context(1, &[("http.route", "/cart")]);
    let report = context(2, &[("http.route", "/report"), ("wait.call", "mine")]);
    let lock = context(3, &[("http.route", "/wait")]);
    let mut stack = |names: &[&str]| {
        let frames: Vec<Frame> = names.iter().rev().map(|name| named(name)).collect();
        catalog.stack(&frames)
    };
    let in_serve = stack(&["serve"]);
    let in_cart = stack(&["serve", "cart"]);
    let in_query = stack(&["serve", "cart", "query", "poll"]);
    let in_report = stack(&["serve", "report"]);
    let in_wait = stack(&["serve", "wait"]);
    let empty = stack(&[]);
    let mut off = |state, milliseconds, call: &str, text: &str| {
        let reason = Reason {
            call: call.into(),
            text: text.into(),
        };
        let reason = (!call.is_empty()).then(|| catalog.reason(&reason));
        Event::OffCpu(OffCpu {
            state,
            nanoseconds: milliseconds * MS,
            since: 0,
            reason,
        })
    };
    use OffCpuState::{Asleep, Disk, Queued, Stopped};
    let rows = [
        (4, one, cart, in_cart, Event::OnCpu),
        (2, one, cart, in_query, off(Asleep, 30, "poll", POLL)),
        // A runnable thread may have a call.
        (1, one, cart, in_cart, off(Queued, 5, "futex", "futex")),
        (1, one, cart, in_cart, off(Stopped, 1, "", "")),
        (1, two, report, in_report, Event::OnCpu),
        (1, two, report, in_report, off(Disk, 7, "read", READ)),
        (1, two, lock, in_wait, off(Asleep, 20, "futex", LOCK)),
        (
            3,
            idle,
            Found::Detached,
            in_serve,
            off(Asleep, 100, "epoll_wait", "epoll_wait"),
        ),
        (1, idle, Found::Detached, in_serve, off(Queued, 2, "", "")),
    ];
    let rows = rows.map(|(number, thread, found, stack, event)| Row {
        number,
        thread,
        found,
        stack,
        event,
    });
    let samples = rows
        .iter()
        .flat_map(|row| (0..row.number).map(move |_| row));
    let samples = samples.enumerate().map(|(index, row)| Sample {
        time: index as u64 * PERIOD,
        cpu: 0,
        thread: row.thread,
        event: row.event,
        found: row.found,
        gil: None,
        user_stack: row.stack,
        stack_end: None,
        kernel_stack: empty,
    });
    Recording {
        samples: samples.collect(),
        catalog,
        clock: Clock {
            start: 0,
            end: 1_000_000_000,
            start_unix: START_UNIX,
        },
        period: NonZeroU64::new(PERIOD).unwrap(),
        counts: Counts::default(),
    }
}

pub(crate) fn profile() -> Profile {
    Profile::new(recording(), &mut NoSymbols)
}

/// The same without the samples on a CPU.
pub(crate) fn waits_only() -> Profile {
    let mut recording = recording();
    recording.samples.retain(|it| it.event != Event::OnCpu);
    Profile::new(recording, &mut NoSymbols)
}

pub(crate) fn written(profile: &Profile, format: otelctx_profile::Format) -> Vec<u8> {
    let mut bytes = Vec::new();
    profile
        .write(format, &Options::default(), &mut bytes)
        .unwrap();
    bytes
}
