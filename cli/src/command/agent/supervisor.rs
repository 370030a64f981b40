//! What the recording thread does beside recording: reloads settings, and tells others that it is alive.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use otelctx_agent::Sender;
use otelctx_export::Exporter;
use otelctx_profile::sample::Counts;
use otelctx_sampler::Sampler;

use super::cpu_budget::CpuBudget;
use super::cpu_time;
use super::kernel_time::KernelTime;
use super::monitor::Monitor;
use super::notices::{self, Notices};
use super::settings::{Arguments, Settings, current};
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
    pub(super) notices: Arc<Mutex<Notices>>,
    /// Number of samples on a CPU.
    pub(super) on_cpu: u64,
    pub(super) kernel_time: KernelTime,
    /// `None` if the method cannot change its frequency.
    pub(super) budget: Option<CpuBudget>,
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

    /// Returns another sampling frequency, if the agent takes too much CPU time, or less than it may.
    pub(super) fn new_frequency(&mut self, sampler: &Sampler) -> Option<u32> {
        let budget = self.budget.as_mut()?;
        let now = Instant::now();
        if !budget.is_due(now) {
            return None;
        }
        // Names have a budget of their own, at any frequency.
        let resolving = self.monitor.progress.resolving.load(Ordering::Relaxed);
        let used = cpu_time::of_process().saturating_sub(Duration::from_nanos(resolving));
        let in_kernel = self.kernel_time.update(sampler.kernel_time(), self.on_cpu);
        // Without a budget, a frequency that was lowered goes up again.
        let part = current(&self.settings).cpu_budget;
        let decision = budget.update(now, used + in_kernel, part.unwrap_or(f64::INFINITY))?;
        let frequency = decision.frequency;
        let taken = format!("{:.2} % of a CPU", 100.0 * decision.taken);
        let message = if decision.is_back {
            format!(
                "sampling at {frequency} Hz again: at a lower frequency, the agent took {taken}, too"
            )
        } else if let Some(part) = part {
            let of = format!("{:.2} % (cpu-budget)", 100.0 * part);
            format!("sampling at {frequency} Hz from now on: the agent took {taken}, of {of}")
        } else {
            format!("sampling at {frequency} Hz from now on: there is no cpu-budget")
        };
        notices::say(&self.notices, &message, None);
        self.monitor
            .frequency
            .store(frequency.into(), Ordering::Relaxed);
        Some(frequency)
    }

    /// Sends what it can.
    pub(super) fn stop(mut self) {
        self.notifier.stopping();
        let timeout = current(&self.settings).stop_timeout;
        self.sender.stop(timeout);
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
