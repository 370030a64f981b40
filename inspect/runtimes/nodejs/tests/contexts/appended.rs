//! Samples while attributes are appended to the record, which grows and moves meanwhile.

use std::time::{Duration, Instant};

use otelctx_fixtures::{Node, Target};
use otelctx_reader::sample::{Catalog, Found, Sample};
use otelctx_sampler::INTERVAL;

use crate::{Log, VERSIONS, context_of_number, lengths, shown, start};

/// An attribute that was appended: its context, its number in it, from 1, and from when to when.
struct Appended {
    context: usize,
    number: usize,
    from: u64,
    to: u64,
}

impl Appended {
    fn all(target: &Target) -> Vec<Self> {
        let lines = target.lines.iter();
        let appended = |line: &str| {
            let words: Vec<u64> = line.split(' ').map(|it| it.parse().unwrap()).collect();
            Self {
                context: words[0] as usize,
                number: words[1] as usize,
                from: words[2],
                to: words[3],
            }
        };
        let lines = lines.filter_map(|line| line.strip_prefix("append "));
        lines.map(appended).collect()
    }
}

/// The context with this number, after that number of attributes was appended (`append` in `contexts.js`).
fn context_with(number: usize, appended: usize) -> String {
    let context = context_of_number(number, 1);
    if appended == 0 {
        return context;
    }
    let width = 10 + 10 * appended;
    let value = format!("{number}.{appended}");
    format!("{context} user={value:-<width$}")
}

/// Numbers of samples: all, those while an attribute was appended, and those without a context.
#[derive(Debug, Default)]
struct Compared {
    samples: usize,
    while_appending: usize,
    unread: usize,
}

impl Compared {
    /// Samples a new program that runs for that many seconds. `None`, with a line, where the kernel does not permit
    /// it.
    fn add(&mut self, node: &Node, name: &str, seconds: u32) -> Option<()> {
        const MOVING: &[&str] = &["--expose-gc", "--compact-on-every-full-gc"];
        let mut command = node.publishing(MOVING, "otelctx")?;
        let mut target = Target::spawn(command.args(["append", &seconds.to_string()]));
        let mut sampler = start(target.pid(), 4999, false)?;
        let (mut catalog, mut samples) = (Catalog::new(), Vec::<Sample>::new());
        let begin = Instant::now();
        while begin.elapsed() < seconds * Duration::from_millis(700) {
            std::thread::sleep(INTERVAL);
            sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
        }
        drop(sampler);
        let log = Log::of(&mut target);
        let all = Appended::all(&target);
        for sample in &samples {
            let is_main = catalog.thread_facts(sample.thread).tid == target.pid();
            let Some(number) = Log::find(&log.contexts, sample.time).filter(|_| is_main) else {
                continue;
            };
            let next = all.partition_point(|it| it.from <= sample.time);
            let last = next.checked_sub(1).map(|it| &all[it]);
            let last = last.filter(|it| it.context == number);
            let after = last.map_or(0, |it| it.number);
            let is_appending = last.is_some_and(|it| sample.time < it.to);
            let Found::Attached(context) = sample.found else {
                println!("{name}: {:?} after {after} in {number}", sample.found);
                self.unread += 1;
                continue;
            };
            let found = shown(catalog.context_facts(context));
            let mut expected = vec![context_with(number, after)];
            if is_appending {
                expected.push(context_with(number, after - 1));
            }
            assert!(
                expected.contains(&found),
                "{name}: {found} in {expected:#?}"
            );
            self.samples += 1;
            self.while_appending += usize::from(is_appending);
        }
        Some(())
    }
}

#[test]
fn samples_have_the_attributes_of_their_time_while_more_are_appended() {
    for version in VERSIONS {
        let Some(node) = Node::with_version(version) else {
            continue;
        };
        let mut compared = Compared::default();
        let is_enough = lengths().any(|seconds| {
            let is_sampled = compared.add(&node, version, seconds).is_some();
            !is_sampled || compared.while_appending >= 100
        });
        println!("{version}: {compared:?}");
        assert!(is_enough, "{version}: {compared:?}");
        // Memory that is not there for a moment.
        assert!(
            1000 * compared.unread <= compared.samples,
            "{version}: {compared:?}"
        );
    }
}
