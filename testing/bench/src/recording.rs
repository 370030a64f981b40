//! A recording of a million samples.

use std::num::NonZeroU64;

use otelctx_profile::sample::format::process_context::Value;
use otelctx_profile::sample::format::record::DecodedContext;
use otelctx_profile::sample::format::{SpanId, TraceId};
use otelctx_profile::sample::{
    Catalog, Counts, Event, Found, Frame, FrameKind, NamedFrame, ProcessFacts, Sample,
};
use otelctx_profile::{Clock, Recording};

pub(crate) const SAMPLES: usize = 1_000_000;
pub(crate) const TRACES: usize = 2_000;
const ROUTES: usize = 40;
/// Of 30 frames each.
const STACKS: usize = 50_000;
/// Makes span IDs of numbers that have no pattern.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
/// 100 Hz.
const PERIOD: u64 = 10_000_000;

/// Returns numbers without a pattern, always the same ones.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        // xorshift64 (Marsaglia, Xorshift RNGs, 2003).
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// A recording of processes of one service each, whose routes have stacks of their own, with this number
/// of spans in all traces.
pub(crate) fn recording(processes: usize, threads_of_each: usize, spans: usize) -> Recording {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut catalog = Catalog::new();
    let frame = |number: usize| {
        Frame::from(NamedFrame {
            kind: FrameKind::CPYTHON,
            function: format!("function_{number}"),
            file: format!("shop/module_{}.py", number % 400),
            line: number as u32 % 900 + 1,
            ..NamedFrame::default()
        })
    };
    let stacks: Vec<_> = (0..STACKS)
        .map(|stack| {
            let depth = 30;
            let frames = (0..depth).map(|level| match level {
                // Functions further out are shared.
                0..5 => frame(stack % 20_000),
                5..15 => frame(stack / 10 % 5_000),
                _ => frame(stack / 1000 * 30 + level),
            });
            catalog.stack(&frames.collect::<Vec<_>>())
        })
        .collect();
    let mut threads = Vec::new();
    for process in 0..processes {
        let pid = 1000 + 100 * process as i32;
        let id = catalog.add_process(ProcessFacts {
            pid,
            comm: "shop".into(),
            resource: vec![(
                "service.name".into(),
                Value::from(&*format!("service-{}", process % 20)),
            )],
            published: true,
            ..ProcessFacts::default()
        });
        for thread in 0..threads_of_each {
            let tid = pid + thread as i32;
            threads.push(catalog.thread(id, tid, &format!("worker-{thread}")));
        }
    }
    let contexts: Vec<_> = (1..=spans)
        .map(|span| {
            let trace = (span - 1) % TRACES + 1;
            let mut context = DecodedContext::default();
            context.trace_id = TraceId::from_bytes((trace as u128).to_be_bytes());
            context.span_id = SpanId::from_bytes((span as u64).wrapping_mul(ODD).to_be_bytes());
            let route = format!("/route/{}", trace % ROUTES);
            context.attributes = vec![("http.route".into(), route)];
            catalog.context(&context)
        })
        .collect();
    let empty = catalog.stack(&[]);
    let samples = (0..SAMPLES).map(|number| {
        // A thread works on a trace for a while.
        let thread = number / 50 % threads.len();
        Sample {
            time: number as u64 * PERIOD / 8,
            cpu: (number % 8) as u32,
            thread: threads[thread],
            event: Event::OnCpu,
            found: Found::Attached(contexts[(number / (SAMPLES / spans).min(50) * 7) % spans]),
            gil: None,
            user_stack: stacks[random.below(STACKS)],
            stack_end: None,
            kernel_stack: empty,
        }
    });
    Recording {
        samples: samples.collect(),
        clock: Clock {
            start: 0,
            end: SAMPLES as u64 * PERIOD / 8,
            start_unix: 1_700_000_000_000_000_000,
        },
        period: NonZeroU64::new(PERIOD).expect("not zero"),
        counts: Counts::default(),
        catalog,
    }
}
