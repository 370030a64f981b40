//! The otelctx command: ps, dump, check and demo.

fn main() {}
