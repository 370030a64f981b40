//! The counters of a recording.

use std::ops::{AddAssign, SubAssign};

use otelctx_format::record::Skipped;

use crate::outcome::{Found, ReadStep, StackEnd};

/// The counters of a recording: all missing data is counted here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Samples with a context.
    pub attached: u64,
    /// Samples of publishing processes, without a context.
    pub detached: u64,
    /// Samples of processes that publish no thread contexts.
    pub not_published: u64,
    /// Samples whose record was not valid.
    pub invalid: u64,
    /// Samples whose context could not be read, in the order of [`ReadStep::ALL`].
    pub unreadable: [u64; ReadStep::ALL.len()],
    /// Samples that were due but not taken or not delivered: the kernel's buffer was full, or
    /// (ptrace) the thread did not stop in time or was not running.
    pub lost: u64,
    /// Samples that were due and skipped because ptrace cannot trace the process: there is no permission,
    /// or it is a kernel thread.
    pub not_traceable: u64,
    /// Samples that were due and skipped because their thread is outside of the recorder's PID namespace.
    /// Counted with eBPF if all processes are sampled.
    pub outside_namespace: u64,
    /// User stacks that reach the frame that their thread started with.
    pub complete_stacks: u64,
    /// User stacks that end before, in the order of [`StackEnd::INCOMPLETE`].
    pub incomplete_stacks: [u64; StackEnd::INCOMPLETE.len()],
    /// User stacks of which only the innermost frames were kept.
    pub truncated_stacks: u64,
    /// Samples of which a language runtime's outer frames are missing: they were being changed, or there are too
    /// many.
    pub truncated_runtime_stacks: u64,
    /// Frames of a language runtime whose function has no name, such as `[Python]`: it was dropped before its
    /// name was read, or there were too many names to read.
    pub unnamed_functions: u64,
    /// Samples whose user stack could not be walked.
    pub missing_stacks: u64,
    /// Samples whose part from a language runtime is missing or incomplete.
    pub incomplete_steps: u64,
    /// Samples without a runtime's part, because the state of their thread was not known yet: the
    /// sampler finds it in the runtime's list of threads after the first sample. With eBPF, up to
    /// 8,192 threads at a time. Also samples of a new process until its runtime is found, and with
    /// eBPF all samples of a process whose runtime's step is not in the kernel object.
    pub unresolved_threads: u64,
    /// Samples whose native context and runtime's context have different IDs.
    pub context_conflicts: u64,
    /// Attributes that were skipped because their key is not in the key map.
    pub unknown_keys: u64,
    /// Attributes that are named by their index, such as `#3`, because their process has several
    /// publishers that disagree on its name.
    pub contested_keys: u64,
    /// Attributes that were skipped because their value is not UTF-8.
    pub not_utf8: u64,
    /// Records of which only the first attributes were read: the rest exceeded the limit, or was
    /// malformed.
    pub truncated_records: u64,
    /// Processes that were not sampled, because there were more than 16,384 at once.
    pub dropped_processes: u64,
    /// The kernel's reports of processes and their mappings that were not received or not kept: a frame
    /// may have no name.
    pub lost_mappings: u64,
    /// Names of generated functions that were not kept, because there were too many.
    pub dropped_names: u64,
    /// Files in which a runtime announces generated functions (jitdump) that were damaged, or cut short when the
    /// process ended: functions after that place have no name.
    pub damaged_jit_dumps: u64,
    /// Files in which a runtime announces generated functions that were not read to their end: they were too
    /// large for the time until the recording or the process ended. Functions after that place have no name.
    pub unread_name_files: u64,
    /// Files in which an earlier process with the same ID announced generated functions: they were last written
    /// before the process started, and are not read.
    pub stale_name_files: u64,
    /// Files of sampled processes that were not kept open, because 512 others were: their functions have no names if they
    /// are deleted or replaced before the recording is written.
    pub dropped_files: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.combine(other, |one, other| one + other);
    }
}

impl SubAssign for Counts {
    fn sub_assign(&mut self, other: Self) {
        self.combine(other, |one, other| one - other);
    }
}

impl Counts {
    /// Returns what was counted after `earlier`, a former state of the same counters. A counter of what may be made up for,
    /// such as [`unread_name_files`](Self::unread_name_files), is 0 if it has fallen.
    #[must_use]
    pub fn since(mut self, earlier: Self) -> Self {
        self.combine(earlier, u64::saturating_sub);
        self
    }

    fn combine(&mut self, other: Self, combine: fn(u64, u64) -> u64) {
        /// Combines these fields. Without one of them, the pattern does not compile.
        macro_rules! combine_fields {
            ($($single:ident)* ; $($list:ident)*) => {
                let Self { $($single,)* $($list,)* } = other;
                $(self.$single = combine(self.$single, $single);)*
                $(for (number, other) in self.$list.iter_mut().zip($list) {
                    *number = combine(*number, other);
                })*
            };
        }
        combine_fields!(
            attached detached not_published invalid lost not_traceable outside_namespace
            complete_stacks truncated_stacks truncated_runtime_stacks unnamed_functions
            missing_stacks incomplete_steps unresolved_threads context_conflicts unknown_keys
            contested_keys not_utf8 truncated_records dropped_processes lost_mappings dropped_names
            damaged_jit_dumps unread_name_files stale_name_files dropped_files
            ; unreadable incomplete_stacks
        );
    }

    /// Counts one sample.
    pub fn add(&mut self, found: Found) {
        match found {
            Found::Attached(_) => self.attached += 1,
            Found::Detached => self.detached += 1,
            Found::NotPublished => self.not_published += 1,
            Found::Invalid => self.invalid += 1,
            Found::Unreadable(step) => self.unreadable[step as usize] += 1,
        }
    }

    /// Counts the data that was skipped in one record.
    pub fn add_skipped(&mut self, skipped: &Skipped) {
        self.unknown_keys += u64::from(skipped.unknown_key);
        self.contested_keys += u64::from(skipped.contested_key);
        self.not_utf8 += u64::from(skipped.not_utf8);
        self.truncated_records += u64::from(skipped.incomplete_bytes > 0);
    }

    /// Counts one user stack.
    pub fn add_stack(&mut self, end: StackEnd) {
        match end {
            StackEnd::Start => self.complete_stacks += 1,
            StackEnd::Limit => self.truncated_stacks += 1,
            _ => {
                let counters = StackEnd::INCOMPLETE.iter().zip(&mut self.incomplete_stacks);
                let own = counters.filter(|(reason, _)| **reason == end);
                own.for_each(|(_, counter)| *counter += 1);
            }
        }
    }

    /// User stacks that end before the start of their thread, for any reason but their length.
    #[must_use]
    pub fn all_incomplete_stacks(&self) -> u64 {
        self.incomplete_stacks.iter().sum()
    }

    /// User stacks, complete or not.
    #[must_use]
    pub fn all_stacks(&self) -> u64 {
        self.complete_stacks + self.all_incomplete_stacks() + self.truncated_stacks
    }

    /// All samples, except lost and skipped ones.
    #[must_use]
    pub fn samples(&self) -> u64 {
        let read = self.attached + self.detached + self.not_published + self.invalid;
        read + self.unreadable_samples()
    }

    /// Samples whose context could not be read, summed over all steps.
    #[must_use]
    pub fn unreadable_samples(&self) -> u64 {
        self.unreadable.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_record_lacks_is_counted_by_reason() {
        let mut skipped = Skipped::default();
        let mut counts = Counts::default();
        counts.add_skipped(&skipped);
        assert_eq!(counts, Counts::default());
        (skipped.unknown_key, skipped.not_utf8) = (2, 3);
        (skipped.incomplete_bytes, skipped.contested_key) = (40, 5);
        counts.add_skipped(&skipped);
        counts.add_skipped(&skipped);
        let counted = (counts.unknown_keys, counts.not_utf8);
        assert_eq!((counted, counts.truncated_records), ((4, 6), 2));
        assert_eq!(counts.contested_keys, 10);
    }

    #[test]
    fn each_outcome_is_counted_once() {
        let mut counts = Counts::default();
        counts.add(Found::Detached);
        counts.add(Found::NotPublished);
        counts.add(Found::Invalid);
        for (index, step) in ReadStep::ALL.into_iter().enumerate() {
            assert_eq!(step as usize, index);
            counts.add(Found::Unreadable(step));
        }
        assert_eq!(counts.unreadable, [1; ReadStep::ALL.len()]);
        assert_eq!(counts.unreadable_samples(), 8);
        assert_eq!(counts.samples(), 11);
    }

    #[test]
    fn each_stack_is_counted_once_and_a_cut_one_is_not_complete() {
        let mut counts = Counts::default();
        counts.add_stack(StackEnd::Start);
        assert_eq!((counts.complete_stacks, counts.truncated_stacks), (1, 0));
        for (index, end) in StackEnd::INCOMPLETE.into_iter().enumerate() {
            counts.add_stack(end);
            assert_eq!(
                counts.incomplete_stacks.iter().sum::<u64>(),
                index as u64 + 1
            );
            assert_eq!(counts.incomplete_stacks[index], 1);
        }
        counts.add_stack(StackEnd::Limit);
        assert_eq!((counts.complete_stacks, counts.truncated_stacks), (1, 1));
    }

    #[test]
    fn counters_are_added_and_subtracted_one_by_one() {
        let mut counts = Counts::default();
        counts.add(Found::Unreadable(ReadStep::Record));
        (counts.lost, counts.unknown_keys) = (3, 5);
        let mut twice = counts;
        twice += counts;
        let unreadable = twice.unreadable[ReadStep::Record as usize];
        assert_eq!((unreadable, twice.lost, twice.unknown_keys), (2, 6, 10));
        twice.unread_name_files = 1;
        counts.unread_name_files = 2;
        let since = twice.since(counts);
        assert_eq!((since.lost, since.unread_name_files), (3, 0));
        (twice.unread_name_files, counts.unread_name_files) = (0, 0);
        twice -= counts;
        assert_eq!(twice, counts);
    }
}
