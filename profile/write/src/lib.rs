//! Profiles from samples: resolves functions, groups equal samples, and writes the formats that
//! common tools read.
//!
//! | ending | format | opens in |
//! |---|---|---|
//! | `.otlp` | OTLP profiles, `v1development` | OpenTelemetry Collector, `otelctx report` |
//! | `.pb.gz` | pprof; trace, span and attributes are labels | `go tool pprof`, pprof viewers |
//! | `.json.gz` | Firefox Profiler; spans are markers | profiler.firefox.com |
//! | `.html` | page | a browser; needs no network |
//! | `.svg` | flame graph | a browser |
//! | `.speedscope.json` | speedscope, a profile for each thread | <https://www.speedscope.app> |
//! | `.folded` | one stack per line with its count | flame graph tools |
//! | `.parquet` | Parquet; one row per sample | DuckDB, ClickHouse, other engines |
//!
//! Samples that differ in trace, span, attributes or thread are never merged where the format can
//! keep them apart: in all but flame graphs, folded stacks and speedscope's files, which
//! have no contexts.
//!
//! [`report::Report`] sums up recordings in OTLP, pprof and folded stacks, and
//! [`convert`] writes their selected samples in another format.
//!
//! This crate does not take samples, and leaves resolving functions to a [`Symbolizer`].

mod attributes;
mod digits;
mod distinct;
mod error;
mod file;
mod location;
mod messages;
mod names;
mod profile;
mod recorded_file;
mod recording;
pub mod report;
mod resolve;
pub mod rules;
mod selection;
mod spool;
mod trigger;
mod view;
mod wait;
mod write;

pub use attributes::{
    CALL as CALL_ATTRIBUTE, GIL as GIL_ATTRIBUTE, REASON as REASON_ATTRIBUTE,
    STATE as STATE_ATTRIBUTE,
};
pub use distinct::DistinctCount;
pub use error::{Error, InputFormat};
pub use file::check_writable;
pub use location::{Location, LocationIndex, Place};
pub use names::short_name;
pub use otelctx_sample as sample;
pub use otelctx_sample::{Function, Identity, NoSymbols, SymbolQuery, Symbolizer, UnnamedModule};
pub use profile::{Group, Kind, Profile};
pub use recording::{Clock, Recording};
pub use resolve::{NamedModule, RecordedFile};
#[doc(hidden)]
pub use resolve::{unnamed_modules, write_named};
pub use spool::{KeptSpool, Parts, Spool};
pub use trigger::{Expression, ExpressionError, Match, Trigger};
#[doc(hidden)]
pub use view::load;
pub use view::{
    Input, Span, SpanReport, SpanTime, SpannedTrace, Spans, awaited, convert, converted,
};
pub use write::{Aggregate, Format, Options, OtlpMessages, utc};
