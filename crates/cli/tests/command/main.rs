//! The real command on real processes.

mod all;
mod check;
mod core;
mod crowd;
mod demo;
mod dump;
mod faults;
mod hostile;
mod killed;
mod names;
mod no_stop;
mod otlp;
mod progress;
mod ps;
mod record;
mod record_faults;
mod refused;
mod run;
mod send;
mod suspended;
mod target;
mod terminal;
mod top;
mod unprivileged;
mod watch;
mod yama;
