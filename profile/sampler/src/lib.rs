//! Samples running threads: what each was working on (its OpenTelemetry context), and its stacks.
//!
//! If the kernel permits eBPF, a program on each CPU's clock reads the interrupted thread's record
//! and stacks in one or two microseconds. Otherwise, running threads are stopped with ptrace
//! ([`Method`]). Processes are tracked when they start, execute another program, load libraries or
//! start to publish.
//!
//! The caller must call [`Sampler::drain`] every [`INTERVAL`], with the same
//! [`Catalog`](otelctx_sample::Catalog) each time.
//!
//! This crate does not resolve function names (`otelctx-symbolize`), or aggregate and write samples
//! (`otelctx-profile`).
//!
//! It leaves nothing behind, however it ends: descriptors alone keep what it has in the kernel.
//!
//! ```no_run
//! use otelctx_sample::{Catalog, Found};
//! use otelctx_sampler::{INTERVAL, Options, Sampler, Targets};
//!
//! # fn main() -> Result<(), otelctx_sampler::Error> {
//! let mut sampler = Sampler::start(&Options::new(Targets::Processes(vec![4711])))?;
//! let mut catalog = Catalog::new();
//! let mut found = Vec::new();
//! while sampler.has_targets() {
//!     std::thread::sleep(INTERVAL);
//!     sampler.drain(&mut catalog, &mut |sample| found.push(sample.found));
//! }
//! for context in found {
//!     if let Found::Attached(id) = context {
//!         println!("{}", catalog.context_facts(id).trace_id);
//!     }
//! }
//! # Ok(())
//! # }
//! ```

use std::time::Duration;

mod backend;
mod clock;
mod code;
mod ebpf;
mod error;
mod generated;
mod key_maps;
mod observation;
mod options;
mod priority;
mod process;
mod processes;
mod ptrace;
mod refusal;
mod sampler;
mod second_walk;
mod signals;
mod tally;
mod user_stack;
mod vdso;
mod waits;
mod walkers;

pub(crate) use clock::nanoseconds;
pub use clock::{calendar_time, monotonic};
pub use ebpf::{Snapshots, ThreadSnapshot};
pub use error::Error;
pub use generated::GeneratedNames;
#[doc(hidden)]
pub use generated::announced_functions;
pub use options::{KernelObject, Options, Targets, WaitMethod};
pub use otelctx_sample as sample;
pub use refusal::Refusal;
pub use sampler::{Method, Sampler};
pub use tally::{IncompleteStacks, IncompleteSteps, Totals};
pub use waits::WaitFacts;

/// Maximum time between two calls of [`Sampler::drain`]; see also [`Sampler::interval`].
pub const INTERVAL: Duration = Duration::from_millis(20);
