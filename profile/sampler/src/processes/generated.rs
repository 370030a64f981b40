//! Names frames in generated code, as the runtimes of processes announce them.

use otelctx_sample::Frame;
use otelctx_track::Tracked;

use super::following::Tracker;
use crate::generated;
use crate::observation::Observation;
use crate::process::SampledProcess;
use crate::tally::Tally;

/// Returns the user stack with names. `None` if it has no frame in generated code.
pub(super) fn name(
    tracker: &mut Tracker,
    seen: &Observation<'_>,
    tally: &mut Tally,
) -> Option<Vec<Frame>> {
    let code = &tracker.get(seen.pid)?.data.code;
    let in_generated = |frame: &Frame| {
        let address = frame.lookup_address()?;
        code.is_generated(address).then_some(address)
    };
    if !seen.user_stack.iter().any(|it| in_generated(it).is_some()) {
        return None;
    }
    let addresses: Vec<_> = seen.user_stack.iter().map(in_generated).collect();
    if tracker.get(seen.pid)?.data.generated.is_due() {
        update(tracker, seen.pid, tally);
    }
    let SampledProcess {
        code, generated, ..
    } = &tracker.get(seen.pid)?.data;
    let runtime = code.runtime();
    let frames = seen.user_stack.iter().zip(addresses);
    let named = frames.map(|(frame, address)| {
        let name = address.and_then(|address| generated.name(address, seen.time, runtime));
        name.unwrap_or_else(|| frame.clone())
    });
    Some(named.collect())
}

/// Returns the maximum number of generated functions of a process.
fn max_functions(tracker: &Tracker, pid: i32) -> usize {
    let others = tracker.iter().filter(|it| it.process.pid() != pid);
    generated::max_functions(others.map(|it| it.data.generated.len()).sum())
}

/// Reads the new entries of a process's runtime.
pub(super) fn update(tracker: &mut Tracker, pid: i32, tally: &mut Tally) {
    let limit = max_functions(tracker, pid);
    let Some(Tracked { process, data }) = tracker.get_mut(pid) else {
        return;
    };
    if let Some(running) = process.reader().and_then(|it| it.running().ok()) {
        if data.code.take_new_generated() {
            data.generated.searches.restart();
        }
        data.generated.is_shared = data.code.shares_generated();
        let dump = || data.code.open_jit_dump(running);
        tally.add_unread(data.generated.update(running, dump, limit));
    }
}

/// Reads the rest of the entries of a process that ends, or executes another program.
pub(super) fn finish(tracker: &mut Tracker, pid: i32, tally: &mut Tally) {
    let has_files = |it: &Tracked<SampledProcess>| it.data.generated.has_files();
    if !tracker.get(pid).is_some_and(has_files) {
        return;
    }
    let limit = max_functions(tracker, pid);
    if let Some(Tracked { data, .. }) = tracker.get_mut(pid) {
        tally.add_unread(data.generated.finish(limit));
    }
}
