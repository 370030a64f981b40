//! The real command on real processes.

mod check;
mod core;
mod demo;
mod dump;
mod faults;
mod hostile;
mod ps;
mod run;
mod target;
mod terminal;
mod unprivileged;
