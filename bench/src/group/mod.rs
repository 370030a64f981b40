//! The groups of the table, one file each.

mod cdylib;
mod publisher;

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
];
