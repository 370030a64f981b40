//! A recording made by hand, of which every number is known.

#![allow(dead_code)]

use std::num::NonZeroU64;

use otelctx_profile::sample::format::process_context::Value;
use otelctx_profile::sample::format::record::DecodedContext;
use otelctx_profile::sample::format::{SpanId, TraceFlags, TraceId};
use otelctx_profile::sample::{
    Catalog, Counts, Event, Found, Mapping, Module, ModuleId, OffCpu, OffCpuState, ProcessFacts,
    Sample,
};
use otelctx_profile::{Clock, Function, Identity, Profile, Recording, SymbolQuery, Symbolizer};

/// 100 Hz.
pub(crate) const PERIOD: u64 = 10_000_000;
pub(crate) const START_UNIX: u64 = 1_700_000_000_000_000_000;
pub(crate) const START: u64 = 5_000;

/// Where the shop's program is mapped; its first byte is byte 0x1000 of the file.
pub(crate) const CODE: u64 = 0x7000_0000;

/// Knows `main` (offset 0x1000), `serve` (0x1100) with `parse` inlined at 0x1180, and the kernel.
pub(crate) struct Names;

/// A recording of a second with these samples.
pub(crate) fn recording_of(catalog: Catalog, samples: Vec<Sample>, counts: Counts) -> Recording {
    Recording {
        catalog,
        samples,
        clock: Clock {
            start: START,
            end: START + 1_000_000_000,
            start_unix: START_UNIX,
        },
        period: NonZeroU64::new(PERIOD).unwrap(),
        counts,
    }
}

fn function(name: &str, line: u32) -> Function {
    Function {
        name: name.into(),
        system_name: format!("_{name}"),
        file: "/src/shop.rs".into(),
        line,
        // Each in a column of its own.
        column: if line == 0 { 0 } else { line + 100 },
    }
}

impl Symbolizer for Names {
    fn functions(&mut self, query: SymbolQuery<'_>, addresses: &[u64]) -> Vec<Vec<Function>> {
        let name = |address: &u64| match *address {
            _ if query.module.is_kernel() => vec![function("do_syscall_64", 0)],
            0x1000..0x1100 => vec![function("main", 10)],
            0x1180..0x1200 => vec![function("parse", 7), function("serve", 21)],
            0x1100..0x1180 => vec![function("serve", 20)],
            _ => Vec::new(),
        };
        addresses.iter().map(name).collect()
    }

    fn identity(&mut self, query: SymbolQuery<'_>) -> Identity {
        Identity {
            build_id: query.module.build_id.clone(),
            htlhash: query.module.has_file().then_some([0xab; 16]),
        }
    }
}

pub(crate) fn context(trace: u8, span: u8, attributes: &[(&str, &str)]) -> DecodedContext {
    let mut context = DecodedContext::default();
    context.trace_id = TraceId::from_bytes([trace; 16]);
    context.span_id = SpanId::from_bytes([span; 8]);
    context.attributes = attributes
        .iter()
        .map(|(key, value)| ((*key).into(), (*value).into()))
        .collect();
    context
}

pub(crate) fn span(id: u64) -> SpanId {
    SpanId::from_bytes(id.to_be_bytes())
}

pub(crate) fn module(catalog: &mut Catalog) -> ModuleId {
    catalog.module(Module {
        path: "/usr/bin/shop".into(),
        build_id: vec![0xde, 0xad],
        device: 1,
        inode: 2,
    })
}

/// Process `shop` with threads `worker-1` (4712) and `worker-2` (4713), and `other`, which
/// publishes nothing:
///
/// | samples | thread | context | stack, innermost first |
/// |---|---|---|---|
/// | 3 | worker-1 | trace 1, span 1, /cart | parse, serve (inlined), main |
/// | 1 | worker-1 | the same, other flags | the same |
/// | 2 | worker-1 | trace 1, span 2, /cart | parse, serve, main |
/// | 1 | worker-1 | trace 1, span 1, /pay | parse, serve, main |
/// | 1 | worker-2 | trace 1, span 1, /cart | parse, serve, main |
/// | 2 | worker-2 | none | kernel, serve, main |
/// | 1 | worker-2 | no ids, `thread.name` | main |
/// | 1, off for 7 ms | worker-2 | trace 1, span 1, /cart | kernel |
/// | 1 | other | not published | unknown memory |
pub(crate) fn recording() -> Recording {
    let mut catalog = Catalog::new();
    let module = module(&mut catalog);
    let shop = catalog.add_process(ProcessFacts {
        pid: 4711,
        comm: "shop".into(),
        executable: "/usr/bin/shop".into(),
        container_id: Some("c0ffee".into()),
        resource: vec![
            ("service.name".into(), Value::from("shop")),
            ("threadlocal.schema_version".into(), Value::from("x")),
            ("zones".into(), Value::Array(vec![Value::from(1_i64)])),
        ],
        published: true,
        mappings: vec![Mapping {
            start: CODE,
            end: CODE + 0x1000,
            offset: 0x1000,
            module,
            since: 0,
        }],
        ..ProcessFacts::default()
    });
    let other = catalog.add_process(ProcessFacts {
        pid: 9,
        comm: "other".into(),
        ..ProcessFacts::default()
    });
    let worker1 = catalog.thread(shop, 4712, "worker-1");
    let worker2 = catalog.thread(shop, 4713, "worker-2");
    let lone = catalog.thread(other, 9, "other;x");
    let mut unsampled = context(1, 1, &[("http.route", "/cart")]);
    unsampled.trace_flags = TraceFlags(1);
    let contexts = [
        context(1, 1, &[("http.route", "/cart")]),
        unsampled,
        context(1, 2, &[("http.route", "/cart")]),
        context(1, 1, &[("http.route", "/pay")]),
        context(0, 0, &[("thread.name", "mine")]),
    ];
    let [cart, cart_flags, cart_2, pay, no_ids] =
        contexts.map(|context| Found::Attached(catalog.context(&context)));
    let empty = catalog.native_stack(&[]);
    let parse = catalog.native_stack(&[CODE + 0x180, CODE + 0x20]);
    // The second address is the first of `serve`, behind a call at the end of `main`.
    let serve = catalog.native_stack(&[CODE + 0x110, CODE + 0x100]);
    let main = catalog.native_stack(&[CODE + 0x10]);
    let unknown = catalog.native_stack(&[0x1234]);
    let kernel = catalog.native_stack(&[0xffff_ffff_8100_0000]);
    let on = Event::OnCpu;
    let off = Event::OffCpu(OffCpu {
        state: OffCpuState::Asleep,
        nanoseconds: 7_000_000,
        since: 0,
        reason: None,
    });
    let looks = [
        (worker1, on, cart, parse, empty),
        (worker1, on, cart, parse, empty),
        (worker1, on, cart_2, parse, empty),
        (worker1, on, cart, parse, empty),
        (worker1, on, cart_flags, parse, empty),
        (worker1, on, cart_2, parse, empty),
        (worker1, on, pay, parse, empty),
        (worker2, on, cart, parse, empty),
        (worker2, on, Found::Detached, serve, kernel),
        (worker2, on, Found::Detached, serve, kernel),
        (worker2, on, no_ids, main, empty),
        (worker2, off, cart, empty, kernel),
        (lone, on, Found::NotPublished, unknown, empty),
    ];
    let mut counts = Counts::default();
    let sample = |(index, look): (usize, _)| {
        let (thread, event, found, user_stack, kernel_stack) = look;
        counts.add(found);
        Sample {
            time: START + index as u64 * PERIOD,
            cpu: 0,
            thread,
            event,
            found,
            gil: None,
            user_stack,
            stack_end: None,
            kernel_stack,
        }
    };
    let samples = looks.into_iter().enumerate().map(sample).collect();
    recording_of(catalog, samples, counts)
}

pub(crate) fn profile() -> Profile {
    Profile::new(recording(), &mut Names)
}
