//! One process that is being watched.

use std::sync::Arc;
use std::time::{Duration, Instant};

use otelctx_remote as remote;
use remote::process::{Sizes, SizesFile};

use super::Change;
use crate::process::Poll;
use crate::{Broken, ContextState, Error, Process, ProcessContext};

/// A look that takes longer is dear: those of processes with tens of thousands of mappings are.
const DEAR: Duration = Duration::from_millis(5);
/// A dear look is not taken again before so many times as long have passed: a process with millions
/// of mappings that keeps changing them takes 2 % of the reader's time.
const REST: u32 = 50;

/// A process and what was told of it.
#[derive(Debug)]
pub(super) struct Watched {
    process: Process,
    sizes_file: SizesFile,
    sizes: Sizes,
    /// Its mappings may have changed since they were looked at.
    is_due: bool,
    /// When they were looked at, and how long that took.
    looked: Option<(Instant, Duration)>,
    told: Told,
}

/// What was last told of a process.
#[derive(Debug, PartialEq)]
enum Told {
    Nothing,
    Published(Arc<ProcessContext>),
    Broken(Broken),
    Failed(String),
}

/// Whether a process is still the one that it was.
#[derive(Debug, PartialEq)]
pub(super) enum Polled {
    There,
    Gone,
}

impl Polled {
    pub(super) fn is_there(&self) -> bool {
        *self == Polled::There
    }
}

impl Watched {
    pub(super) fn new(process: Process) -> Result<Self, Error> {
        let (sizes_file, sizes) = process.target().sizes()?;
        Ok(Self {
            process,
            sizes_file,
            sizes,
            is_due: true,
            looked: None,
            told: Told::Nothing,
        })
    }

    pub(super) fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    pub(super) fn was_told(&self) -> bool {
        self.told != Told::Nothing
    }

    /// Looks at the process, and tells what has changed since the last time.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        look_anew_every: Duration,
        tell: &mut dyn FnMut(Change),
    ) -> Polled {
        let Some((when, cost)) = self.looked else {
            return self.look(None, tell);
        };
        let age = now.duration_since(when);
        let is_old = age >= look_anew_every;
        let mut known = None;
        if matches!(self.told, Told::Published(_) | Told::Broken(_)) {
            match self.process.poll() {
                Poll::Same => {}
                Poll::Updated(context) => {
                    self.told = Told::Published(context.clone());
                    tell(Change::Updated(context));
                }
                Poll::Broken(why) => self.tell_broken(why, tell),
                Poll::Unknown => return self.look(None, tell),
            }
            if !is_old {
                return Polled::There;
            }
            if let Told::Published(context) = &self.told {
                known = Some(context.clone());
            }
        } else {
            match self.sizes_file.read() {
                Ok(sizes) if sizes == self.sizes && !self.is_due && !is_old => {
                    return Polled::There;
                }
                // If it can't be read, either the process has exited, or only the thread that it was
                // opened for.
                _ => {}
            }
        }
        if cost > DEAR && age < cost * REST {
            self.is_due = true;
            return Polled::There;
        }
        self.look(known, tell)
    }

    /// Looks at its mappings. `known` is its context if it had one a moment ago.
    fn look(&mut self, known: Option<Arc<ProcessContext>>, tell: &mut dyn FnMut(Change)) -> Polled {
        let start = Instant::now();
        let before = self.looked.map(|_| self.sizes);
        match self.refresh_sizes() {
            Ok(()) => {}
            Err(remote::Error::NoSuchProcess { .. }) => return Polled::Gone,
            Err(error) => {
                self.looked = Some((start, start.elapsed()));
                self.tell_failed(error.into(), tell);
                return Polled::There;
            }
        }
        // Memory that was mapped just before gets its name only now.
        self.is_due = before != Some(self.sizes);
        let state = if self.sizes.total == 0 {
            None
        } else {
            match self.process.scan() {
                Ok(state) => Some(Ok(state)),
                Err(Error::Remote(remote::Error::NoSuchProcess { .. })) => {
                    self.is_due = true;
                    match self.refresh_sizes() {
                        Err(remote::Error::NoSuchProcess { .. }) => return Polled::Gone,
                        _ => None,
                    }
                }
                Err(error) => Some(Err(error)),
            }
        };
        self.looked = Some((start, start.elapsed()));
        match state {
            Some(Ok(ContextState::Published(context))) => match known {
                Some(known) if known == context => {}
                Some(_) => self.tell_published(context, Change::Updated, tell),
                None => self.tell_published(context, Change::Published, tell),
            },
            Some(Ok(ContextState::Broken(why))) => self.tell_broken(why, tell),
            Some(Ok(ContextState::Absent)) => self.tell_absent(Change::Withdrawn, tell),
            Some(Err(error)) => self.tell_failed(error, tell),
            // A zombie, or it is about to become one.
            None if self.sizes.total == 0 => self.tell_absent(Change::Ended, tell),
            None => {}
        }
        Polled::There
    }

    fn tell_published(
        &mut self,
        context: Arc<ProcessContext>,
        change: fn(Arc<ProcessContext>) -> Change,
        tell: &mut dyn FnMut(Change),
    ) {
        self.told = Told::Published(context.clone());
        tell(change(context));
    }

    fn tell_broken(&mut self, why: Broken, tell: &mut dyn FnMut(Change)) {
        if !matches!(&self.told, Told::Broken(told) if *told == why) {
            self.told = Told::Broken(why.clone());
            tell(Change::Broken(why));
        }
    }

    fn tell_absent(&mut self, change: Change, tell: &mut dyn FnMut(Change)) {
        if self.was_told() {
            self.told = Told::Nothing;
            tell(change);
        }
    }

    fn tell_failed(&mut self, error: Error, tell: &mut dyn FnMut(Change)) {
        let told = Told::Failed(error.to_string());
        if self.told != told {
            self.told = told;
            tell(Change::Failed(error));
        }
    }

    /// How much is mapped now, by a thread that has memory if there is one.
    fn refresh_sizes(&mut self) -> Result<(), remote::Error> {
        match self.sizes_file.read() {
            Ok(sizes) if sizes.total > 0 => self.sizes = sizes,
            _ => (self.sizes_file, self.sizes) = self.process.target().sizes()?,
        }
        Ok(())
    }
}
