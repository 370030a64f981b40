//! One file a verb.

pub(crate) mod check;
pub(crate) mod demo;
pub(crate) mod dump;
pub(crate) mod ps;
