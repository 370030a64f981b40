//! Describes each limit of a sampler on this kernel in one line.

use otelctx_sampler::{Method, Sampler, WaitMethod};

/// Describes the limits, most important first. Most samplers have none.
pub(super) fn limits(sampler: &Sampler) -> Vec<String> {
    let mut limits = Vec::new();
    if let Method::Ptrace(why) = sampler.method() {
        limits.push(format!(
            "sampling with ptrace, which stops threads briefly: {why}; on a busy machine, it shows \
             too little computing and too much waiting"
        ));
    }
    if let Some(why) = sampler.without_tables() {
        limits.push(format!(
            "stacks of programs without frame pointers are incomplete: {why}"
        ));
    } else if let Some(why) = sampler.without_loops() {
        let most = sampler.max_frames();
        limits.push(format!("stacks have at most {most} frames: {why}"));
    }
    if let Some(why) = sampler.without_reports() {
        limits.push(format!(
            "functions of processes that end quickly, and of code that is replaced, can have no name \
             or a wrong one: the kernel does not report mappings: {why}"
        ));
    }
    let waits = sampler.waits().and_then(|waits| of_waits(waits.method));
    limits.extend(waits.map(String::from));
    limits
}

/// Describes what scans of waits by this method lack.
fn of_waits(method: WaitMethod) -> Option<&'static str> {
    match method {
        WaitMethod::AllThreads => Some(
            "scans of waits take more CPU time where many other threads are: before Linux 6.1, eBPF \
             visits all threads of the machine",
        ),
        WaitMethod::TwoWalks => Some(
            "more waits that end soon have no context and no stack: before Linux 5.18, eBPF cannot \
             read the memory of processes, so it visits all threads of the machine before and after \
             that is read",
        ),
        WaitMethod::Files => Some(
            "waits are scanned 5 times a second at most, with more than 200 threads less often, \
             through /proc and without stopping threads: there are no kernel stacks, time in the queue \
             has no context, and stacks end at functions that are unwound by more than the stack pointer",
        ),
        _ => None,
    }
}
