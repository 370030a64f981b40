//! The C library: the API of the crate `otelctx` as functions.
//!
//! `include/otelctx.h` is generated from this crate, so the documentation of public items is
//! written for C. No panic leaves a function: it runs inside [`call::caught`], or the compiler
//! finds that nothing in it panics. In a function of which neither is true, the compiler calls
//! `panic_cannot_unwind`, which ends the process: a test finds such calls.

// The names are for C.
#![allow(non_camel_case_types)]
// The header states the rules for pointers, for all functions at once.
#![allow(clippy::missing_safety_doc)]

mod call;
pub mod context;
pub mod current;
pub mod error;
pub mod exported;
pub mod in_place;
pub mod key;
mod owner;
pub mod process;
pub mod published;
pub mod shared;
mod text;
pub mod value;
