//! Records in a Rust executable, against libdd-otel-thread-ctx in the same one.
//!
//! The two define the same thread-local variable, which the linker makes one. Each side detaches
//! what it attached at the end of each round.

use crate::row::Report;
use crate::work::{WORKS, libdd, ours, reference};
use crate::{machine, pair};

pub(crate) fn run(report: &mut Report) {
    report.group("publisher");
    let _pinned = machine::Pinned::to(0);
    ours::set_up();
    for (index, (name, bound)) in WORKS.into_iter().enumerate() {
        let pair = pair::compare(ours::WORKS[index], libdd::WORKS[index]);
        report.pair(name, pair, "ns", bound);
    }
    let pair = pair::compare(ours::WORKS[0], reference::swap_and_back);
    let work = format!("{}, to a load and two stores", WORKS[0].0);
    report.pair(work, pair, "ns", 1.3);
}
