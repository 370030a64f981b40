//! The subcommands, each in a file or directory, and the modules that several of them share.

mod attribute_filter;
pub(crate) mod check;
mod child;
mod debug_files;
pub(crate) mod demo;
mod descendants;
pub(crate) mod dump;
mod filter;
mod ids;
mod limits;
mod needed;
mod node_contexts;
mod partial;
pub(crate) mod ps;
pub(crate) mod record;
pub(crate) mod report;
mod retry;
mod runtimes;
mod same_memory;
mod seconds;
mod selection;
mod standard_output;
pub(crate) mod symbolize;
pub(crate) mod top;
pub(crate) mod view;
mod without_symbols;
mod worker;
