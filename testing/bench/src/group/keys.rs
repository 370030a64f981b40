//! Adding keys to the published key map at run time.

use otelctx_reader::{ContextState, Process};

use crate::child::Role;
use crate::group::instructions;
use crate::pair::{Pair, quantile};
use crate::row::Report;

/// Child processes: each can use its first key once.
const PROCESSES: usize = 51;

pub(crate) fn run(report: &mut Report) {
    report.group("keys");
    let (mut first, mut last) = (Vec::new(), Vec::new());
    for _ in 0..PROCESSES {
        match first_uses() {
            Ok([first_us, last_us]) => {
                first.push(first_us);
                last.push(last_us);
            }
            Err(why) => return report.failed("first use", &why),
        }
    }
    report.alone(
        "first use of key 1, median of processes",
        quantile(first, 0.5),
        "µs",
        20.0,
    );
    report.alone(
        "first use of key 256, median of processes",
        quantile(last, 0.5),
        "µs",
        20.0,
    );
    while_keys_are_added(report);
}

/// Times of the first use of key 1 and of key 256 in a new process, in microseconds, after checking
/// that a reader sees both.
fn first_uses() -> Result<[f64; 2], String> {
    let child = Role::start(&["keys"])?;
    let mut process = Process::open(child.pid()).map_err(|error| error.to_string())?;
    let ContextState::Published(context) = process.context().map_err(|error| error.to_string())?
    else {
        return Err("the process publishes nothing readable".into());
    };
    let keys = context
        .keys
        .clone()
        .map_err(|error| error.to_string())?
        .unwrap_or_default();
    for index in [0_u8, 255] {
        let name = format!("benchmark.attribute.{}", u32::from(index) + 1);
        if keys.get(index) != Some(name.as_str()) {
            return Err(format!("key {index} is {:?}, not {name}", keys.get(index)));
        }
    }
    Ok([
        child.number("key-1 ")? / 1e3,
        child.number("key-256 ")? / 1e3,
    ])
}

/// Attaching depends on no state that adding keys changes: it takes as many instructions as without.
fn while_keys_are_added(report: &mut Report) {
    // Two works of bin/counted.rs.
    let (alone, busy) = ("attach + detach", "attach + detach while keys are added");
    match (instructions::count(alone), instructions::count(busy)) {
        (Ok(Some(alone)), Ok(Some(with))) => {
            report.pair(busy, Pair::of(with, alone), "instructions", 1.0);
        }
        (Ok(_), Ok(_)) => report.skipped(busy, instructions::NO_VALGRIND),
        (Err(why), _) | (_, Err(why)) => report.failed(busy, &why),
    }
}
