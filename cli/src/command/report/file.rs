//! The recording that is shown if none is named.

use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

use otelctx_profile::Input;

use crate::error::Error;

/// The file that `record` writes by default.
const DEFAULT: &str = "profile.otlp";

/// Returns the file that was given, or else the newest recording in the current directory.
pub(in crate::command) fn chosen(given: Option<&Path>) -> Result<PathBuf, Error> {
    if let Some(given) = given {
        return Ok(given.to_owned());
    }
    let default = Path::new(DEFAULT);
    if default.is_file() {
        return Ok(default.to_owned());
    }
    newest(Path::new(".")).ok_or(Error::NoRecording)
}

/// Opens a recording with its further parts, or reads standard input.
pub(in crate::command) fn opened(file: &Path) -> Result<Input, Error> {
    match file.to_str() {
        Some("-") => {
            let input = Input::read_once(io::stdin(), Path::new("standard input"));
            input.map_err(Error::Input)
        }
        _ if fs::metadata(file).is_ok_and(|found| !found.is_file() && !found.is_dir()) => {
            // A pipe.
            let input = fs::File::open(file).and_then(|pipe| Input::read_once(pipe, file));
            input.map_err(Error::Input)
        }
        _ => Ok(Input::recording(file)),
    }
}

fn newest(directory: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(directory).ok()?.flatten();
    let recordings = entries.filter_map(|entry| {
        let name = PathBuf::from(entry.file_name());
        let is_otlp = name.extension().is_some_and(|it| it == "otlp");
        let facts = entry.metadata().ok().filter(|it| is_otlp && it.is_file())?;
        let time = facts.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        Some((time, name))
    });
    let (_, newest) = recordings.max()?;
    // Not a later part of a recording.
    let stem = newest.file_stem()?.to_str()?.to_owned();
    let first = stem.rsplit_once('.').and_then(|(first, part)| {
        part.parse::<usize>().ok()?;
        let first = PathBuf::from(format!("{first}.otlp"));
        directory.join(&first).is_file().then_some(first)
    });
    Some(first.unwrap_or(newest))
}
