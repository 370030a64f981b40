//! Describes each limit of a sampler on this kernel in one line.

use otelctx_sampler::{Method, Sampler};

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
    limits
}
