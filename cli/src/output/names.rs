//! Shortens names of functions.

pub(crate) use otelctx_profile::short_name as short;
