//! Parquet files of recordings.

use std::io::{self, Write};
use std::path::Path;

use super::input::Input;
use super::messages;
use super::rows::{self, Partitioning, Rows};
use super::select::Selecting;
use super::tables::{NoSink, Tables};
use crate::report::Selection;
use crate::write::parquet::{Part, Store};
use crate::{Error, Format, Options, Profile, file};

/// Writes a recording's selected samples to `path`, a file or a folder. Returns false if no sample is
/// selected: then nothing is written.
///
/// # Errors
/// Returns the errors of [`super::convert`].
pub(super) fn convert(
    input: &Input,
    selection: &Selection,
    format: Format,
    options: &Options,
    path: &Path,
) -> Result<bool, Error> {
    let (store, parts) = written(input, selection, format, options, path)?;
    match (&parts[..], partitioning(format)) {
        (parts, Partitioning::Folders) => store.write_folder(parts, path)?,
        ([part], Partitioning::None) => file::write(path, |writer| store.copy(part, writer))?,
        _ => {}
    }
    Ok(!parts.is_empty())
}

/// Returns a file of a recording's selected samples; `None` if no sample is selected.
///
/// # Errors
/// Returns the errors of [`super::converted`].
pub(super) fn converted(
    input: &Input,
    selection: &Selection,
    options: &Options,
) -> Result<Option<Vec<u8>>, Error> {
    let path = Path::new("profile.parquet");
    let (store, parts) = written(input, selection, Format::Parquet, options, path)?;
    let [part] = &parts[..] else { return Ok(None) };
    let mut content = Vec::new();
    let copied = store.copy(part, &mut content);
    copied.map_err(|source| failed(path, source))?;
    Ok(Some(content))
}

/// Writes the files to a store without a name, in the folder of `path`.
fn written(
    input: &Input,
    selection: &Selection,
    format: Format,
    options: &Options,
    path: &Path,
) -> Result<(Store, Vec<Part>), Error> {
    let store = Store::beside(path).map_err(|source| failed(path, source))?;
    let in_worker = store.try_clone().map_err(|source| failed(path, source))?;
    let parts: Result<Vec<Part>, String> = input.in_worker(|files| {
        let mut tables = Tables::of(selection);
        let mut rows = Rows::new(in_worker, options.host.clone(), partitioning(format));
        // Rows are written before the last thread, after which a process may be named, was read.
        files.read(&mut tables, &mut NoSink)?;
        tables.has_names = true;
        files.read(&mut tables, &mut Selecting::new(selection, &mut rows))?;
        if rows.is_empty() {
            return Ok(Ok(Vec::new()));
        }
        Ok(rows.finish(&tables).map_err(|error| error.to_string()))
    })?;
    let parts = parts.map_err(|why| failed(path, io::Error::other(why)))?;
    Ok((store, parts))
}

fn failed(path: &Path, source: io::Error) -> Error {
    let path = path.to_owned();
    Error::Write { path, source }
}

fn partitioning(format: Format) -> Partitioning {
    match format {
        Format::ParquetFolder => Partitioning::Folders,
        _ => Partitioning::None,
    }
}

/// Parquet files of a recording, which is added part by part.
#[derive(Debug)]
pub(crate) struct ParquetFiles {
    /// Or the reason why a part could not be added.
    rows: Result<Rows, String>,
    options: Options,
}

impl ParquetFiles {
    /// Creates files without samples.
    pub(crate) fn new(options: &Options, format: Format) -> Self {
        let store = Store::beside(Path::new("profile.parquet"));
        let mut host = options.host.clone();
        host = host.filter(|_| !options.dropped_attributes.iter().any(|it| it == rows::HOST));
        let rows = store.map(|it| Rows::new(it, host, partitioning(format)));
        let mut options = options.clone();
        // Columns have no prefix.
        options.attribute_prefix.clear();
        Self {
            rows: rows.map_err(|error| error.to_string()),
            options,
        }
    }

    /// Adds a part: its rows are what its file has.
    pub(crate) fn add(&mut self, part: &Profile) {
        let Ok(rows) = &mut self.rows else { return };
        let mut content = Vec::new();
        let written = part.write(Format::Otlp, &self.options, &mut content);
        let mut tables = Tables::default();
        let read = written
            .map_err(|error| error.to_string())
            .and_then(|()| messages::read(&content, &mut tables, &mut NoSink))
            .and_then(|()| {
                tables.has_names = true;
                messages::read(&content, &mut tables, rows)
            });
        rows.end_tables(&tables);
        if let Err(problem) = read {
            self.rows = Err(problem);
        }
    }

    /// Writes a single file.
    ///
    /// # Errors
    /// Returns the errors of the writer, and those of adding a part.
    pub(crate) fn write(&mut self, writer: &mut dyn Write) -> io::Result<()> {
        let (store, parts) = self.finish()?;
        parts.iter().try_for_each(|part| store.copy(part, writer))
    }

    /// Writes a folder.
    ///
    /// # Errors
    /// Returns [`Error::Write`], also with the errors of adding a part.
    pub(crate) fn write_folder(&mut self, path: &Path) -> Result<(), Error> {
        let finished = self.finish().map_err(|source| Error::Write {
            path: path.to_owned(),
            source,
        });
        let (store, parts) = finished?;
        store.write_folder(&parts, path)
    }

    fn finish(&mut self) -> io::Result<(&Store, Vec<Part>)> {
        match &mut self.rows {
            Ok(rows) => {
                let parts = rows.finish(&Tables::default())?;
                Ok((rows.store(), parts))
            }
            Err(problem) => Err(io::Error::other(problem.clone())),
        }
    }
}
