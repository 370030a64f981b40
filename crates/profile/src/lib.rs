//! What to do with samples: name their functions, bring like ones together, and write them in the
//! formats that people's tools read.
//!
//! | ending | format | opens in |
//! |---|---|---|
//! | `.otlp` | OTLP profiles, `v1development` | OpenTelemetry Collector, `otelctx report` |
//! | `.pb.gz` | pprof; trace, span and attributes are labels | `go tool pprof`, pprof viewers |
//! | `.json.gz` | Firefox Profiler; spans are markers | profiler.firefox.com |
//! | `.svg` | flame graph | a browser |
//! | `.folded` | one stack a line with its count | flame graph tools |
//!
//! Samples are never merged that differ in trace, span, attributes or thread where the format can
//! tell them apart: that is all but the last two, which know stacks only.
//!
//! What stays your job: taking the samples, and knowing functions' names ([`Symbolizer`]).

mod attributes;
mod file;
mod location;
mod messages;
mod profile;
mod recording;
pub mod report;
pub mod rules;
mod symbol;
pub mod worker;
mod write;

pub use file::{Error, check_writable};
pub use location::{Location, LocationIndex, Place};
pub use otelctx_sample as sample;
pub use profile::{Group, Kind, Profile};
pub use recording::{Clock, Recording};
pub use symbol::{Asked, Function, Identity, NoSymbols, Symbolizer};
pub use write::{Format, Options, OtlpMessages};
