//! What the recording thread does beside recording: reloads settings, and tells others that it is alive.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use otelctx_agent::Sender;
use otelctx_export::Exporter;
use otelctx_profile::sample::Counts;

use super::batches::current;
use super::monitor::Monitor;
use super::settings::{Arguments, Settings};
use super::systemd::Notifier;
use crate::error::Error;
use crate::interrupt;
use crate::output::terminal;

/// Reloads settings, and tells others that the agent is alive.
pub(super) struct Supervisor {
    pub(super) arguments: Arguments,
    pub(super) settings: Arc<Mutex<Arc<Settings>>>,
    pub(super) sender: Sender,
    pub(super) monitor: Arc<Monitor>,
    pub(super) notifier: Notifier,
}

impl Supervisor {
    /// Returns the time between two batches.
    pub(super) fn interval(&self) -> Duration {
        current(&self.settings).interval
    }

    /// Called several times in a second.
    pub(super) fn update(&mut self, counts: Counts) {
        self.monitor.update(counts);
        let monitor = &self.monitor;
        self.notifier.alive(|| monitor.health().status == "ok");
        if interrupt::take_reload() {
            self.notifier.reloading();
            match self.reload() {
                Ok(()) => terminal::complain("the settings were read again", None),
                Err(error) => {
                    let message = format!("{error}; the settings stay as they were");
                    terminal::complain(&message, error.hint().as_deref());
                }
            }
            self.notifier.ready();
        }
    }

    /// Reads the settings again. Sampling goes on, and nothing in the queue is lost.
    fn reload(&self) -> Result<(), Error> {
        let settings = Settings::read(&self.arguments)?;
        let exporter = Exporter::new(&settings.endpoint()?)?;
        let differ = current(&self.settings).fixed_differences(&settings);
        if !differ.is_empty() {
            let message = format!("a change of {} needs a restart", differ.join(", "));
            terminal::complain(&message, None);
        }
        self.sender.replace(exporter);
        let mut in_force = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        *in_force = Arc::new(settings);
        Ok(())
    }
}
