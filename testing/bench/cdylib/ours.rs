//! A library with this project's side, for a C program to load.

#![allow(dead_code, unreachable_pub)]

#[path = "../src/work/input.rs"]
mod input;
#[path = "../src/work/ours.rs"]
mod ours;

/// Publishes the process context.
#[unsafe(no_mangle)]
pub extern "C" fn bench_set_up() {
    std::mem::forget(ours::set_up());
}

/// Does the work at an index of the table `count` times.
#[unsafe(no_mangle)]
pub extern "C" fn bench_run(work: usize, count: u64) {
    ours::WORKS[work](count);
}
