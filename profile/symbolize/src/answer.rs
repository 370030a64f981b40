//! The output of a worker process for a file.

use std::io::{self, Write};

use otelctx_sample::{Function, Identity};
use serde::{Deserialize, Serialize};

/// Maximum size of a string, in bytes. Longer ones are truncated.
const MAX_TEXT: usize = 1 << 16;

/// The results for a file.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) identity: Identity,
    /// For each address, innermost first.
    pub(crate) functions: Vec<Vec<Function>>,
    /// True if parts could not be decoded.
    pub(crate) is_broken: bool,
    /// Where a debug file was searched, if the file itself has no symbols and there is none.
    pub(crate) searched: Option<Vec<String>>,
    /// The first `.dwo` file, and the supplementary file, that was not found.
    pub(crate) missing_object: Option<String>,
    pub(crate) missing_supplement: Option<String>,
}

impl Answer {
    /// Writes it as JSON.
    pub(crate) fn write(mut self, out: &mut dyn Write) -> io::Result<()> {
        for function in self.functions.iter_mut().flatten() {
            truncate(&mut function.name);
            truncate(&mut function.file);
        }
        let missing = [&mut self.missing_object, &mut self.missing_supplement];
        missing.into_iter().flatten().for_each(truncate);
        Ok(serde_json::to_writer(out, &self)?)
    }

    /// Reads answers that were written one after another. `None` if one is truncated.
    pub(crate) fn read(json: &[u8]) -> Option<Vec<Self>> {
        let answers = serde_json::Deserializer::from_slice(json).into_iter();
        answers.collect::<Result<_, _>>().ok()
    }
}

fn truncate(text: &mut String) {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> Answer {
        let function = |name: &str, line| Function {
            name: name.into(),
            file: "/src/ä.c".into(),
            line,
            ..Function::default()
        };
        Answer {
            identity: Identity {
                build_id: vec![1, 2],
                htlhash: Some([7; 16]),
            },
            functions: vec![vec![function("a", 1), function("b", 2)], vec![]],
            is_broken: true,
            searched: Some(vec!["/usr/lib/debug/ä".into()]),
            missing_object: Some("ä.dwo".into()),
            missing_supplement: None,
        }
    }

    fn written(answer: Answer) -> Vec<u8> {
        let mut bytes = Vec::new();
        answer.write(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn an_answer_arrives_whole_or_not_at_all() {
        let bytes = written(answer());
        assert_eq!(Answer::read(&bytes), Some(vec![answer()]));
        let two = [&bytes[..], &bytes[..]].concat();
        assert_eq!(Answer::read(&two), Some(vec![answer(), answer()]));
        for length in 1..bytes.len() {
            assert_eq!(Answer::read(&bytes[..length]), None, "{length}");
        }
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let mut answer = answer();
        answer.functions[0][0].name = "ä".repeat(MAX_TEXT);
        answer.functions[0][1].name = format!("x{}", "ä".repeat(MAX_TEXT));
        let read = Answer::read(&written(answer)).unwrap().remove(0);
        assert_eq!(read.functions[0][0].name, "ä".repeat(MAX_TEXT / 2));
        assert_eq!(read.functions[0][1].name.len(), MAX_TEXT - 1);
    }
}
