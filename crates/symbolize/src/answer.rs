//! The output of a worker process for a file: numbers in 4 bytes, texts after their length.

use std::io::{self, Write};

use otelctx_profile::{Function, Identity};

/// Maximum size of a string, in bytes. Longer ones are truncated.
const MAX_TEXT: usize = 1 << 16;

/// The results for a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) identity: Identity,
    /// For each address, innermost first.
    pub(crate) functions: Vec<Vec<Function>>,
    /// Whether parts could not be decoded.
    pub(crate) is_broken: bool,
}

impl Answer {
    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        number(out, u32::from(self.is_broken))?;
        bytes(out, &self.identity.build_id)?;
        bytes(out, self.identity.htlhash.as_ref().map_or(&[], |hash| hash))?;
        number(out, self.functions.len() as u32)?;
        for functions in &self.functions {
            number(out, functions.len() as u32)?;
            for function in functions {
                text(out, &function.name)?;
                text(out, &function.file)?;
                number(out, function.line)?;
            }
        }
        Ok(())
    }

    /// `None` if it is truncated.
    pub(crate) fn read(mut from: &[u8]) -> Option<Self> {
        let from = &mut from;
        let is_broken = take_number(from)? != 0;
        let identity = Identity {
            build_id: take_bytes(from)?.to_vec(),
            htlhash: take_bytes(from)?.try_into().ok(),
        };
        let mut functions = Vec::new();
        for _ in 0..take_number(from)? {
            let mut here = Vec::new();
            for _ in 0..take_number(from)? {
                here.push(Function {
                    name: take_text(from)?,
                    system_name: String::new(),
                    file: take_text(from)?,
                    line: take_number(from)?,
                });
            }
            functions.push(here);
        }
        Some(Self {
            identity,
            functions,
            is_broken,
        })
    }
}

fn number(out: &mut dyn Write, number: u32) -> io::Result<()> {
    out.write_all(&number.to_ne_bytes())
}

fn bytes(out: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    number(out, bytes.len() as u32)?;
    out.write_all(bytes)
}

fn text(out: &mut dyn Write, text: &str) -> io::Result<()> {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    bytes(out, &text.as_bytes()[..end])
}

fn take_number(from: &mut &[u8]) -> Option<u32> {
    let (number, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(u32::from_ne_bytes(*number))
}

fn take_bytes<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = take_number(from)? as usize;
    let (bytes, rest) = from.split_at_checked(length)?;
    *from = rest;
    Some(bytes)
}

fn take_text(from: &mut &[u8]) -> Option<String> {
    Some(std::str::from_utf8(take_bytes(from)?).ok()?.to_owned())
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
        }
    }

    fn written(answer: &Answer) -> Vec<u8> {
        let mut bytes = Vec::new();
        answer.write(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn an_answer_arrives_whole_or_not_at_all() {
        let bytes = written(&answer());
        assert_eq!(Answer::read(&bytes), Some(answer()));
        for length in 0..bytes.len() {
            assert_eq!(Answer::read(&bytes[..length]), None, "{length}");
        }
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let mut answer = answer();
        answer.functions[0][0].name = "ä".repeat(MAX_TEXT);
        answer.functions[0][1].name = format!("x{}", "ä".repeat(MAX_TEXT));
        let read = Answer::read(&written(&answer)).unwrap();
        assert_eq!(read.functions[0][0].name, "ä".repeat(MAX_TEXT / 2));
        assert_eq!(read.functions[0][1].name.len(), MAX_TEXT - 1);
    }
}
