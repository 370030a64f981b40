//! Samples of threads: the values that samplers produce and profiles are made of.
//!
//! A [`Sample`] is small and `Copy`. Data that many samples share is stored once in a [`Catalog`],
//! and samples refer to it by ID: the process with its resource and mappings, the thread with its
//! name, the context, the stacks. IDs are assigned in order from 0 and stay valid: a catalog only
//! grows.
//!
//! A sample never fails: if the thread's context could not be read, it has the reason ([`Found`]).
//!
//! A [`Symbolizer`] resolves the addresses of stacks to [`Function`]s.
//!
//! It does not take samples (`otelctx-sampler`), resolve functions (`otelctx-symbolize`), or
//! aggregate and write (`otelctx-profile`).
//!
//! ```
//! use otelctx_sample::{Catalog, Event, Found, Frame, FrameKind, GilState, NamedFrame, ProcessFacts, Sample};
//!
//! let mut catalog = Catalog::new();
//! let process = catalog.add_process(ProcessFacts { pid: 4711, ..ProcessFacts::default() });
//! let thread = catalog.thread(process, 4712, "worker-1");
//! let sample = Sample {
//!     time: 1_000,
//!     cpu: 0,
//!     thread,
//!     event: Event::OnCpu,
//!     found: Found::Detached,
//!     gil: Some(GilState::Held),
//!     // The innermost frame is Python's, and the interpreter below it is native.
//!     user_stack: catalog.stack(&[
//!         Frame::from(NamedFrame {
//!             kind: FrameKind::CPYTHON,
//!             function: "checkout".into(),
//!             file: "/srv/shop.py".into(),
//!             line: 42,
//!             ..NamedFrame::default()
//!         }),
//!         Frame::return_address(0x55d0_0000_1000),
//!     ]),
//!     stack_end: None,
//!     kernel_stack: catalog.stack(&[]),
//! };
//! assert_eq!(catalog.process(catalog.thread_facts(sample.thread).process).pid, 4711);
//! ```

mod catalog;
mod counts;
mod files;
mod frame;
mod gil;
mod id;
mod outcome;
mod process;
mod rotation;
mod sample;
mod symbol;

pub use catalog::{Catalog, ThreadFacts};
pub use counts::Counts;
pub use files::ModuleFiles;
pub use frame::{Frame, FrameKind, NamedFrame};
pub use gil::GilState;
pub use id::{ContextId, FrameId, ModuleId, ProcessId, ReasonId, StackId, ThreadId};
pub use otelctx_format as format;
pub use outcome::{Found, ReadStep, StackEnd};
pub use process::{Mapping, Module, ProcessFacts};
pub use rotation::Rotation;
pub use sample::{Event, OffCpu, OffCpuState, Reason, Sample};
pub use symbol::{Function, Identity, NoSymbols, SymbolQuery, Symbolizer, UnnamedModule};
