//! One file a verb.

mod apart;
pub(crate) mod check;
mod child;
mod choice;
pub(crate) mod demo;
pub(crate) mod dump;
mod ids;
mod partial;
mod patience;
pub(crate) mod ps;
pub(crate) mod record;
pub(crate) mod report;
mod same_memory;
mod seconds;
pub(crate) mod top;
