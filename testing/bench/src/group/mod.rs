//! The groups of the table, one file each.

mod cdylib;
mod footprint;
pub(crate) mod instructions;
mod keys;
mod memory;
mod node;
pub(crate) mod profile;
mod publisher;
pub(crate) mod python;
mod reader;
pub(crate) mod replay;
mod report;
mod resolve;
mod rows;
mod runtime;
pub(crate) mod sampler;
mod scale;
mod shares;
mod stop;
pub(crate) mod symbolize;
mod traced;

use crate::row::Report;

/// A group of rows.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) name: &'static str,
    pub(crate) summary: &'static str,
    /// Whether it runs when no group is named.
    pub(crate) by_default: bool,
    pub(crate) run: fn(&mut Report),
}

/// All groups, in the order in which they run.
pub(crate) static GROUPS: &[Group] = &[
    Group {
        name: "publisher",
        summary: "records in a Rust executable",
        by_default: true,
        run: publisher::run,
    },
    Group {
        name: "cdylib",
        summary: "records in libraries that a C program loads",
        by_default: true,
        run: cdylib::run,
    },
    Group {
        name: "keys",
        summary: "adding keys at run time",
        by_default: true,
        run: keys::run,
    },
    Group {
        name: "traced",
        summary: "contexts of OpenTelemetry and tracing",
        by_default: true,
        run: traced::run,
    },
    Group {
        name: "reader",
        summary: "reading a process context",
        by_default: true,
        run: reader::run,
    },
    Group {
        name: "resolve",
        summary: "bytes read of a module of 1 GiB",
        by_default: true,
        run: resolve::run,
    },
    Group {
        name: "rows",
        summary: "unwinding: rows of installed files",
        by_default: true,
        run: rows::run,
    },
    Group {
        name: "scale",
        summary: "many mappings, many processes, many threads; two minutes",
        by_default: false,
        run: scale::run,
    },
    Group {
        name: "node",
        summary: "how long reading a context of Node.js takes while its thread is stopped",
        by_default: true,
        run: node::run,
    },
    Group {
        name: "python",
        summary: "dumps and recordings of Python, against py-spy; some minutes",
        by_default: false,
        run: python::run,
    },
    Group {
        name: "shares",
        summary: "shares of functions in mixed stacks of Python, against py-spy; seven minutes",
        by_default: false,
        run: shares::run,
    },
    Group {
        name: "stop",
        summary: "how long dump stops a thread",
        by_default: true,
        run: stop::run,
    },
    Group {
        name: "profile",
        summary: "naming functions, against perf, and writing recordings",
        by_default: true,
        run: profile::run,
    },
    Group {
        name: "report",
        summary: "summing up a million samples, against go tool pprof; some minutes",
        by_default: false,
        run: report::run,
    },
    Group {
        name: "sampler",
        summary: "sampling with eBPF, as root",
        by_default: true,
        run: sampler::run,
    },
    Group {
        name: "traces",
        summary: "a million samples against the program's own log, as root; some minutes",
        by_default: false,
        run: sampler::right_traces,
    },
    Group {
        name: "methods",
        summary: "ptrace against eBPF on the same programs, as root; some minutes",
        by_default: false,
        run: sampler::methods,
    },
    Group {
        name: "memory",
        summary: "record --all at 999 Hz on a busy machine, as root; ten minutes",
        by_default: false,
        run: memory::run,
    },
    Group {
        name: "replay",
        summary: "memory of recording 64 CPUs at 999 Hz, replayed, as root; twenty minutes",
        by_default: false,
        run: replay::run,
    },
    Group {
        name: "runtime",
        summary: "what a registered runtime costs processes without it (valgrind)",
        by_default: false,
        run: runtime::run,
    },
    Group {
        name: "instructions",
        summary: "instruction counts against the recorded ones (valgrind)",
        by_default: true,
        run: instructions::run,
    },
    Group {
        name: "footprint",
        summary: "build times and sizes; a minute or two",
        by_default: false,
        run: footprint::run,
    },
];
