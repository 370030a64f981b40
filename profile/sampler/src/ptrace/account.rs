//! The number of samples owed to each thread. With ptrace, too, a sample represents one period of
//! CPU time. A thread that waits for a CPU cannot be distinguished from one that has a CPU: the
//! kernel's CPU time of each thread tells how many samples it is owed.

/// Maximum number of samples that a thread is owed. More are lost: they would show something else.
const MAX_OWED: u64 = 8;

/// CPU time of a thread for which it was not sampled yet, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Account {
    run_time: u64,
    /// Negative after a sample in advance.
    pub(super) owed: i64,
    /// The last attempt to stop it failed.
    pub(super) has_failed: bool,
}

/// The CPU time of a thread between two updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunTime {
    /// In nanoseconds.
    pub(super) time: u64,
    /// Number of samples that are lost.
    pub(super) lost: u64,
}

impl Account {
    /// Starts counting at a total CPU time of `run_time`.
    pub(super) fn from(run_time: u64) -> Self {
        Self {
            run_time,
            owed: 0,
            has_failed: false,
        }
    }

    pub(super) fn note(&mut self, run_time: u64, period: u64) -> RunTime {
        let new = run_time.saturating_sub(self.run_time);
        self.run_time = run_time;
        self.owed = self.owed.saturating_add_unsigned(new);
        let excess = self.owed.saturating_sub_unsigned(MAX_OWED * period);
        let lost = excess.max(0) as u64 / period;
        self.owed -= (lost * period) as i64;
        RunTime { time: new, lost }
    }

    pub(super) fn is_due(&self) -> bool {
        self.owed > 0
    }

    pub(super) fn sampled(&mut self, period: u64) {
        self.owed -= period as i64;
        self.has_failed = false;
    }
}

/// The CPU time that is owed to threads that have ended, in nanoseconds. Each is owed a fraction of
/// a period; their sum amounts to samples, which are lost.
#[derive(Debug, Default)]
pub(super) struct EndedThreads {
    owed: i64,
}

impl EndedThreads {
    /// Adds the account of a thread that has ended.
    pub(super) fn add(&mut self, account: &Account) {
        self.owed = self.owed.saturating_add(account.owed);
    }

    /// Returns the number of samples lost since the last call.
    pub(super) fn take_lost(&mut self, period: u64) -> u64 {
        let lost = self.owed.max(0) as u64 / period;
        self.owed -= (lost * period) as i64;
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: u64 = 10;

    /// Attempts once per period to sample a thread that is always running or waiting for a CPU, and
    /// has run for this long in each period. Returns the numbers of samples and of lost ones.
    fn samples(runs: &[u64]) -> (u64, u64) {
        let mut account = Account::from(7);
        let (mut run_time, mut samples, mut lost) = (7, 0, 0);
        for run in runs {
            run_time += run;
            lost += account.note(run_time, PERIOD).lost;
            if account.is_due() {
                account.sampled(PERIOD);
                samples += 1;
            }
        }
        (samples, lost)
    }

    #[test]
    fn waiting_for_a_cpu_is_not_sampled() {
        assert_eq!(samples(&[PERIOD; 100]), (100, 0));
        // A quarter of a CPU.
        assert_eq!(samples(&[3, 2, 3, 2].repeat(25)), (25, 0));
        assert_eq!(samples(&[0; 100]), (0, 0));
        // The kernel updates the CPU time late.
        assert_eq!(samples(&[0, 0, 0, 40].repeat(25)), (97, 0));
    }

    #[test]
    fn a_thread_that_is_never_sampled_is_lost_and_counted() {
        let mut account = Account::from(0);
        let mut lost = 0;
        for run_time in 1..=100 {
            lost += account.note(run_time * PERIOD, PERIOD).lost;
            assert!(account.is_due());
        }
        assert_eq!(lost, 100 - MAX_OWED);
        // The rest is lost when the thread ends.
        let mut ended = EndedThreads::default();
        ended.add(&account);
        assert_eq!(ended.take_lost(PERIOD), MAX_OWED);
        assert_eq!(ended.take_lost(PERIOD), 0);
    }

    #[test]
    fn what_is_owed_for_long_is_lost_and_counted() {
        let mut runs = vec![0; 20];
        runs[0] = 100 * PERIOD;
        assert_eq!(samples(&runs), (MAX_OWED, 100 - MAX_OWED));
    }

    #[test]
    fn parts_of_a_period_of_threads_that_end_come_to_samples() {
        let mut ended = EndedThreads::default();
        let mut lost = 0;
        for _ in 0..100 {
            let mut account = Account::from(0);
            account.note(3, PERIOD);
            ended.add(&account);
            lost += ended.take_lost(PERIOD);
        }
        assert_eq!(lost, 100 * 3 / PERIOD);
    }
}
