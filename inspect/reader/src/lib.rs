#![doc = include_str!("../README.md")]

mod detected;
mod error;
mod options;
mod process;
mod process_context;
mod record;
mod record_keys;
pub mod runtime;
mod sleeping;
pub mod sweep;
mod unreadable;
mod variables;

pub use detected::Detected;
pub use error::Error;
pub use options::Options;
pub use otelctx_format as format;
pub use otelctx_format::SYMBOL;
pub use otelctx_remote as remote;
pub use otelctx_remote::FileCache;
pub use otelctx_sample as sample;
pub use otelctx_sample::{Found, ReadStep};
pub use process::{Poll, Process, Reading, StopReason, StoppedThread, Thread};
pub use process_context::{Broken, ContextState, ProcessContext};
pub use record_keys::RecordKeys;
pub use unreadable::Unreadable;
pub use variables::{ReadRecord, ThreadSupport, ThreadVariables};
