//! Process IDs and names from the command line.

use otelctx_reader::remote::Process;

use crate::error::Error;
use crate::output::text::{argument, own_name};

/// Returns the process whose ID, or the ID of one of whose threads, is `id`.
pub(super) fn process_of(id: i32) -> Result<i32, Error> {
    // The kernel shows the directory of a thread ID as well, with the data of the whole process.
    let status = Process::open(id)?.status()?;
    if status.kernel_thread {
        return Err(Error::KernelThread(id));
    }
    Ok(if status.process > 0 {
        status.process
    } else {
        id
    })
}

/// Returns the process IDs that were given without an option to `verb`. Other words are a command, which
/// needs two dashes before it: its options are not this command's.
pub(super) fn without_option(words: &[String], verb: &'static str) -> Result<Vec<i32>, Error> {
    let Some(first) = words.iter().find(|word| pid(word).is_err()) else {
        return Ok(words.iter().filter_map(|word| pid(word).ok()).collect());
    };
    let quoted: Vec<String> = words.iter().map(|word| argument(word)).collect();
    Err(Error::BareWord {
        word: first.clone(),
        line: format!("{} {verb} -- {}", own_name(), quoted.join(" ")),
    })
}

/// Parses the name of an attribute.
pub(super) fn attribute(text: &str) -> Result<String, String> {
    match text {
        "" => Err("expected the name of an attribute, or `none` for none".to_owned()),
        // As in `--by http.route, thread`.
        name => Ok(name.trim().to_owned()),
    }
}

pub(super) fn pid(text: &str) -> Result<i32, String> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(id) if id > 0 => Ok(id),
        _ if digits && !text.is_empty() => Err(format!("process IDs are from 1 to {}", i32::MAX)),
        _ => Err("a process ID is a number".into()),
    }
}
