//! Keeps profiles until an OpenTelemetry Collector has accepted them: for recorders that run for months, while collectors
//! restart, are slow, or are away.
//!
//! A [`Queue`] holds encoded OTLP messages, bounded in memory and, with a directory, on disk. A [`Sender`] sends them in
//! order from its own thread. [`Counts`] has what became of each message, and [`Cardinality`] bounds the attributes of
//! samples before they are encoded.
//!
//! It takes no samples, and resolves no functions.
//!
//! ```no_run
//! use std::time::Duration;
//! use otelctx_agent::{Backoff, Queue, QueueLimits, Sender};
//! use otelctx_export::{Endpoint, Exporter, Protocol};
//!
//! # fn message() -> Vec<u8> { unimplemented!() }
//! let endpoint = Endpoint::new("http://localhost:4317", Protocol::Grpc)?;
//! let queue = Queue::in_memory(QueueLimits::default());
//! let sender = Sender::start(queue.clone(), Exporter::new(&endpoint)?, Backoff::default(), |event| {
//!     eprintln!("{event}");
//! })?;
//! queue.push(message(), 17);
//! sender.stop(Duration::from_secs(5));
//! assert_eq!(queue.counts().sent.samples, 17);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod backoff;
mod cardinality;
mod counts;
mod directory;
mod liveness;
mod queue;
mod sender;

pub use backoff::Backoff;
pub use cardinality::{Cardinality, CardinalityLimits, Limited, OTHER};
pub use counts::{Counts, DropReason, Volume};
pub use directory::{DirectoryError, lock_folder};
pub use liveness::{Liveness, LivenessGuard};
pub use queue::{Queue, QueueLimits};
pub use sender::{Event, Sender};
