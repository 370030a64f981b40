//! Benchmarks of every bound the project states.

fn main() {}
