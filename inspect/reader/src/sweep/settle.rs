//! Reads invalid records again.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::reading::Outcome;

/// Delays before reading all invalid records again. Rewriting one takes less than a microsecond.
const WAITS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(10)];

/// Reads the threads with invalid records again, until `deadline`. Returns those whose records are
/// still invalid: the threads have detached them that way. `None` if there was not enough time.
pub(super) fn settle(
    mut invalid: Vec<usize>,
    deadline: Instant,
    mut read: impl FnMut(usize) -> Outcome,
) -> Option<Vec<usize>> {
    let mut detached = Vec::new();
    for wait in WAITS {
        if invalid.is_empty() {
            break;
        }
        if Instant::now() + wait >= deadline {
            return None;
        }
        sleep(wait);
        invalid.retain(|index| match read(*index) {
            Outcome::Invalid { is_asleep: false } => true,
            // A sleeping thread does not write.
            Outcome::Invalid { is_asleep: true } => {
                detached.push(*index);
                false
            }
            _ => false,
        });
    }
    detached.append(&mut invalid);
    Some(detached)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AWAKE: Outcome = Outcome::Invalid { is_asleep: false };
    const ASLEEP: Outcome = Outcome::Invalid { is_asleep: true };

    #[test]
    fn a_record_that_is_invalid_in_each_read_or_of_a_sleeping_thread_is_detached() {
        let later = Instant::now() + Duration::from_secs(600);
        let outcomes = [
            [Outcome::Read, Outcome::Late],
            [AWAKE, AWAKE],
            [ASLEEP, Outcome::Late],
            [AWAKE, Outcome::Read],
        ];
        let mut reads = [0; 4];
        let detached = settle((0..4).collect(), later, |index| {
            reads[index] += 1;
            outcomes[index][reads[index] - 1]
        });
        let mut detached = detached.unwrap();
        detached.sort_unstable();
        assert_eq!(detached, [1, 2]);
        assert_eq!(reads, [1, 2, 1, 2]);
    }

    #[test]
    fn nothing_is_known_to_be_detached_when_the_time_is_over() {
        assert_eq!(settle(vec![0], Instant::now(), |_| ASLEEP), None);
        let none = settle(Vec::new(), Instant::now(), |_| ASLEEP);
        assert_eq!(none, Some(Vec::new()));
    }
}
