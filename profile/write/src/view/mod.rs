//! Recordings that are looked at: read as a stream, selected, and summed up, drawn or written again.

mod fold;
mod input;
mod load;
mod otlp;
mod plumbing;
mod pprof;
mod select;
mod sums;
mod tables;
mod text;
mod tree;
mod wire;

pub use input::Input;

use std::path::Path;

use crate::error::Error;
use crate::report::{Report, ReportOptions, Selection};
use crate::{Format, Options, Profile, file};
use load::Loading;
use select::Selecting;
use sums::Sums;
use tables::Tables;

impl Report {
    /// Reads and sums up a recording, in a worker process.
    ///
    /// # Errors
    /// Returns [`Error::Read`], [`Error::TooLarge`] for more than 1 GiB in a file, or 4 GiB of memory,
    /// [`Error::OtherFormat`], and [`Error::Malformed`] for a file that was cut off or whose entries
    /// refer to others that are not there.
    pub fn read(input: &Input, options: &ReportOptions) -> Result<Self, Error> {
        input.in_worker(|files| {
            let mut tables = Tables::default();
            let mut sums = Sums::new(options);
            files.read(
                &mut tables,
                &mut Selecting::new(&options.selection, &mut sums),
            )?;
            Ok(sums.finish(&tables))
        })
    }

    /// Returns true if `name` is something to group by that every recording has.
    #[must_use]
    pub fn has_level(&self, name: &str) -> bool {
        sums::is_level(name)
    }

    /// Sums up the content of a file, or returns a sentence that names its defect. Not in a worker
    /// process: for tests and the fuzz target.
    #[doc(hidden)]
    pub fn of(content: &[u8], options: &ReportOptions) -> Result<Self, String> {
        let mut tables = Tables::default();
        let mut sums = Sums::new(options);
        let mut selecting = Selecting::new(&options.selection, &mut sums);
        input::read_content(content, Path::new("content"), &mut tables, &mut selecting)?;
        Ok(sums.finish(&tables))
    }
}

/// Loads the content of a file. Not in a worker process: for tests and the fuzz target.
///
/// # Errors
/// Returns a sentence that names the defect of the content.
#[doc(hidden)]
pub fn load(content: &[u8], selection: &Selection) -> Result<Profile, String> {
    let mut tables = Tables::default();
    let mut loading = Loading::new();
    otlp::read(
        content,
        &mut tables,
        &mut Selecting::new(selection, &mut loading),
    )?;
    Ok(loading.finish(&tables))
}

/// Writes a recording's selected samples to `path`, in a format.
///
/// # Errors
/// Returns the errors of [`Report::read`], and [`Error::Write`]: the file is as it was before.
pub fn convert(
    input: &Input,
    selection: &Selection,
    format: Format,
    options: &Options,
    path: &Path,
) -> Result<(), Error> {
    let content = input.bytes_of_worker(|files, pipe| {
        let mut tables = Tables::default();
        let mut loading = Loading::new();
        files.read(&mut tables, &mut Selecting::new(selection, &mut loading))?;
        Ok(loading.finish(&tables).write(format, options, pipe))
    })?;
    file::write(path, |writer| writer.write_all(&content))
}
