//! Formatting of output.

pub(crate) mod attributes;
pub(crate) mod clock;
pub(crate) mod counts;
pub(crate) mod json;
pub(crate) mod names;
pub(crate) mod table;
pub(crate) mod terminal;
pub(crate) mod text;
