//! A service with axum under load: what its handlers' threads publish, seen from inside and from outside, is the request
//! that they work on.
//!
//! `OTELCTX_SAMPLES` is the number of samples to take inside handlers.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use otelctx_fixtures::http::request_all;
use otelctx_sampler::sample::{Catalog, Found};
use otelctx_sampler::{INTERVAL, Options, Sampler, Targets};

/// Meanwhile, there are more than a hundred thousand comparisons from inside.
const SAMPLES: usize = 3_000;
/// A sample this close to the start or end of work, in nanoseconds, is not judged: service and sampler
/// read the same clock in different ways.
const EDGE: u64 = 2_000;
const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;

/// What a handler worked on: trace, span and route.
type Work = (String, String, String);

/// When each thread worked on what: by thread and start.
#[derive(Default)]
struct Log(HashMap<i32, Vec<(u64, u64, Work)>>);

impl Log {
    fn add(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let [tid, start, end, trace, span, route] = words[..] else {
            panic!("{line:?}")
        };
        let number = |word: &str| word.parse().unwrap();
        let work = (trace.to_owned(), span.to_owned(), route.to_owned());
        let thread = self.0.entry(tid.parse().unwrap()).or_default();
        thread.push((number(start), number(end), work));
    }

    fn at(&self, tid: i32, time: u64) -> Option<&Work> {
        let works = self.0.get(&tid)?;
        let next = works.partition_point(|(start, ..)| *start + EDGE < time);
        let (_, end, work) = works.get(next.checked_sub(1)?)?;
        (time + EDGE < *end).then_some(work)
    }
}

/// Sends requests until `stop`.
fn send(address: &str, stop: &AtomicBool) {
    let path = |number: u32| match number % 4 {
        0 => "/wait".to_owned(),
        1 => "/fan/out".to_owned(),
        _ => format!("/compute/{number}"),
    };
    let numbers = (0..).take_while(|_| !stop.load(Ordering::Relaxed));
    request_all(address, numbers.map(path));
}

#[test]
fn every_sample_inside_a_handler_has_its_request_and_route_by_the_observer() {
    check_service("observer");
}

#[test]
fn every_sample_inside_a_handler_has_its_request_and_route_by_the_layer() {
    check_service("layer");
}

fn check_service(way: &str) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_service"))
        .arg(way)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdin: ChildStdin = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let (pid, address) = first.split_once(' ').unwrap();
    let mut options = Options::new(Targets::Processes(vec![pid.parse().unwrap()]));
    options.frequency = 4999;
    let mut sampler = Sampler::start(&options).unwrap();
    // How many to take in all for one inside a handler, with a margin. Without eBPF, they are late, and each stops a
    // thread of a busy service.
    let (enough, in_all) = match sampler.method().require_ebpf() {
        Ok(()) => (SAMPLES, 3),
        Err(_) => (SAMPLES / 20, 8),
    };
    let enough = std::env::var("OTELCTX_SAMPLES").map_or(enough, |text| text.parse().unwrap());
    let (mut catalog, mut samples) = (Catalog::new(), Vec::new());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..6)
            .map(|_| scope.spawn(|| send(address, &stop)))
            .collect();
        let start = Instant::now();
        while samples.len() < in_all * enough && start.elapsed() < TIMEOUT {
            assert!(clients.iter().all(|client| !client.is_finished()));
            std::thread::sleep(INTERVAL);
            sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let counts = sampler
        .stop(&mut catalog, &mut |sample| samples.push(sample))
        .counts;
    drop(stdin);
    let (mut log, mut compared) = (Log::default(), String::new());
    for line in lines {
        let line = line.unwrap();
        match line.strip_prefix("work ") {
            Some(work) => log.add(work),
            None => compared = line,
        }
    }
    assert!(child.wait().unwrap().success());
    for works in log.0.values_mut() {
        works.sort();
    }

    let mut routes: HashMap<&str, usize> = HashMap::new();
    for sample in &samples {
        let tid = catalog.thread_facts(sample.thread).tid;
        let Some((trace, span, route)) = log.at(tid, sample.time) else {
            continue;
        };
        let Found::Attached(context) = sample.found else {
            panic!(
                "thread {tid} at {} worked on {trace}: {sample:?}",
                sample.time
            );
        };
        let context = catalog.context_facts(context);
        let seen = (context.trace_id.to_string(), context.span_id.to_string());
        assert_eq!(
            (&seen.0, &seen.1),
            (trace, span),
            "thread {tid} at {}",
            sample.time
        );
        let attributes = [("http.route".to_owned(), route.clone())];
        assert_eq!(
            context.attributes, attributes,
            "thread {tid} at {}",
            sample.time
        );
        *routes.entry(route).or_default() += 1;
    }
    let judged: usize = routes.values().sum();
    println!(
        "{way}: {judged} of {} samples in handlers: {routes:?}; {compared}; {counts:?}",
        samples.len()
    );
    let counted: Vec<u64> = compared
        .split(' ')
        .skip(1)
        .map(|word| word.parse().unwrap())
        .collect();
    assert_eq!(counted[1], 0, "comparisons from inside that failed");
    // A hundred thousand, by eBPF: a tenth of what they usually are.
    assert!(counted[0] > 34 * enough as u64, "{compared}");
    assert!(judged >= enough, "{judged} samples in handlers");
    assert_eq!(routes.len(), 3);
}
