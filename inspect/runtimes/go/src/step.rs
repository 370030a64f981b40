//! The configuration of the eBPF sampler's step (`bpf/go.step.h`) for a process, and the part that the step adds to a
//! sample.

use otelctx_reader::runtime::{KernelStep, RuntimeError};

use crate::goroutine::Place;
use crate::labels::{self, Labels, MAX_NAME, MAX_VALUE};
use crate::layout::{LabelLayout, Layout};

/// Maximum number of labels of a sample: `GO_LABELS`.
const MAX_LABELS: usize = 32;
/// Size of a part without texts, in bytes: the state, three numbers, and the lengths of names and values.
const HEAD: usize = 4 * 8 + MAX_LABELS * 4;

/// `enum go_state`.
const NONE: u64 = 1;
const RUNS: u64 = 2;
const FOREIGN: u64 = 3;

/// The step and its configuration for a process.
pub(crate) fn kernel_step(layout: &Layout, place: Place) -> KernelStep {
    let (place, offset) = match place {
        Place::Variable(offset) => (0, offset.cast_unsigned()),
        Place::Register => (1, 0),
    };
    let words = [
        place,
        offset,
        layout.goroutine.thread / 8,
        layout.thread.goroutine,
        layout.goroutine.id / 8,
        layout.goroutine.labels / 8,
        match layout.labels {
            LabelLayout::Map => 0,
            LabelLayout::Slice => 1,
        },
    ];
    let configuration = words.into_iter().flat_map(u64::to_ne_bytes).collect();
    KernelStep::new("go", configuration)
}

/// The part of a sample that the step adds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The thread is not one of Go's.
    Nothing,
    /// It runs no goroutine.
    Idle,
    /// It runs a goroutine with this number.
    Runs(u64, Labels),
}

impl Part {
    pub(crate) fn read(part: &[u8]) -> Result<Self, RuntimeError> {
        if part.is_empty() {
            return Ok(Self::Nothing);
        }
        let error = |what: &str| RuntimeError::new(format!("the kernel's step {what}"));
        let Some((head, mut texts)) = part.split_at_checked(HEAD) else {
            return Err(error("has added less than a state"));
        };
        let word = |index: usize| {
            let word = head[8 * index..8 * index + 8].try_into();
            u64::from_ne_bytes(word.expect("eight bytes"))
        };
        match word(0) {
            NONE => return Ok(Self::Idle),
            RUNS => {}
            FOREIGN => return Err(error("has found a goroutine of another thread")),
            _ => return Err(error("has found labels that Go does not make")),
        }
        let (count, kept) = (word(2), (word(3) as usize).min(MAX_LABELS));
        let mut text = |at: usize, limit| {
            let length = head[at..at + 2].try_into().expect("two bytes");
            let length = usize::from(u16::from_ne_bytes(length));
            let (text, rest) = texts.split_at_checked(length)?;
            texts = rest;
            let text = labels::whole_characters(text, limit);
            Some(String::from_utf8_lossy(text).into_owned())
        };
        let mut labels = Vec::with_capacity(kept);
        for at in (4 * 8..HEAD).step_by(4).take(kept) {
            let label = text(at, MAX_NAME).zip(text(at + 2, MAX_VALUE));
            labels.push(label.ok_or_else(|| error("has cut a label"))?);
        }
        labels.sort();
        let skipped = (count as usize).saturating_sub(labels.len());
        Ok(Self::Runs(word(1), Labels { labels, skipped }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part with these labels.
    fn part(state: u64, labels: &[(&str, &str)]) -> Vec<u8> {
        let mut part: Vec<u8> = [state, 7, labels.len() as u64, labels.len() as u64]
            .into_iter()
            .flat_map(u64::to_ne_bytes)
            .collect();
        for (name, value) in labels {
            part.extend((name.len() as u16).to_ne_bytes());
            part.extend((value.len() as u16).to_ne_bytes());
        }
        part.resize(HEAD, 0);
        for (name, value) in labels {
            part.extend(name.bytes().chain(value.bytes()));
        }
        part
    }

    #[test]
    fn a_part_has_the_labels_in_the_order_of_names() {
        let read = Part::read(&part(RUNS, &[("b", "2"), ("a", ""), ("ü", "é")])).unwrap();
        let labels = [("a", ""), ("b", "2"), ("ü", "é")];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let labels = Labels {
            labels: labels.into(),
            skipped: 0,
        };
        assert_eq!(read, Part::Runs(7, labels));
        assert_eq!(Part::read(&[]), Ok(Part::Nothing));
        assert_eq!(Part::read(&part(NONE, &[])), Ok(Part::Idle));
    }

    #[test]
    fn a_part_that_is_cut_is_an_error() {
        let whole = part(RUNS, &[("route", "/cart"), ("a", "b")]);
        for length in 1..whole.len() {
            assert!(Part::read(&whole[..length]).is_err(), "{length}");
        }
        for state in [0, FOREIGN, 4, u64::MAX] {
            assert!(Part::read(&part(state, &[])).is_err(), "{state}");
        }
    }
}
