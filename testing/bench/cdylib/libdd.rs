//! A library with the side of libdd-otel-thread-ctx, for a C program to load.

#![allow(dead_code, unreachable_pub)]

#[path = "../src/work/input.rs"]
mod input;
#[path = "../src/work/libdd.rs"]
mod libdd;

/// Has nothing to do: this side publishes indexes of keys that are not its business.
#[unsafe(no_mangle)]
pub extern "C" fn bench_set_up() {}

/// Does the work at an index of the table `count` times.
#[unsafe(no_mangle)]
pub extern "C" fn bench_run(work: usize, count: u64) {
    libdd::WORKS[work](count);
}
