//! The files of a recording. They may be hostile: worker processes read them.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use otelctx_worker::Limits;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::tables::{Sink, Tables};
use super::{messages, pprof, text};
use crate::recorded_file::{LIMITS, died, other_format, run};
use crate::{Error, Format, InputFormat};

/// Maximum size of a file, in bytes.
const MAX_FILE: u64 = 1 << 30;

/// The files of a recording, in their order.
#[derive(Clone, Debug)]
pub struct Input {
    sources: Vec<Source>,
    limits: Limits,
}

/// A file of a recording.
#[derive(Clone, Debug)]
struct Source {
    path: PathBuf,
    /// What was read from it, if it can be read once.
    content: Option<Arc<Vec<u8>>>,
    /// True for the first file of a recording, false for its further parts.
    is_first: bool,
}

/// The reason why a file is refused, as a worker process reports it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Refusal {
    /// The number of the error of the operating system.
    Unreadable(Option<i32>),
    TooLarge,
    OtherFormat(String),
    Malformed(InputFormat, String),
}

impl From<Refusal> for String {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::OtherFormat(reason) | Refusal::Malformed(_, reason) => reason,
            Refusal::Unreadable(_) => "it cannot be read".to_owned(),
            Refusal::TooLarge => "it is too large".to_owned(),
        }
    }
}

/// Refuses the first file.
pub(super) fn malformed(reason: String) -> Refused {
    (0, Refusal::Malformed(InputFormat::Otlp, reason))
}

/// A refused file, by its position.
pub(super) type Refused = (usize, Refusal);

impl Input {
    /// A recording with this first file. Its further parts belong to it: with `profile.otlp`,
    /// `profile.2.otlp` and so on, as long as there is a next one.
    #[must_use]
    pub fn recording(first: &Path) -> Self {
        let parts = (2..).map(|part| Format::part_path(first, part));
        let parts = parts.take_while(|it| it.extension().is_some() && it != first && it.exists());
        let files = std::iter::once(first.to_owned()).chain(parts);
        let source = |(index, path)| Source {
            path,
            content: None,
            is_first: index == 0,
        };
        Self {
            sources: files.enumerate().map(source).collect(),
            limits: LIMITS,
        }
    }

    /// A recording that can be read once, such as standard input. It is read now; errors name it
    /// `name`.
    ///
    /// # Errors
    /// Returns the errors of reading it.
    pub fn read_once(source: impl Read, name: &Path) -> io::Result<Self> {
        let mut content = Vec::new();
        // One byte more than what is refused.
        source.take(MAX_FILE + 1).read_to_end(&mut content)?;
        Ok(Self {
            sources: vec![Source {
                path: name.to_owned(),
                content: Some(Arc::new(content)),
                is_first: true,
            }],
            limits: LIMITS,
        })
    }

    /// Returns the paths of the files.
    pub fn paths(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.sources.iter().map(|source| &*source.path)
    }

    /// Returns the name of the first file.
    pub(super) fn name(&self) -> String {
        let name = self.sources[0].path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Adds another recording, so that both are read as one. Files that are there already are not
    /// added.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        for source in other.sources {
            let same = |it: &Source| {
                it.content.is_none() && source.content.is_none() && is_same(&it.path, &source.path)
            };
            if !self.sources.iter().any(same) {
                self.sources.push(source);
            }
        }
        self
    }

    /// Runs `work` in a worker process, and returns its result.
    pub(super) fn in_worker<T: Serialize + DeserializeOwned>(
        &self,
        work: impl FnOnce(&Files<'_>) -> Result<T, Refused>,
    ) -> Result<T, Error> {
        let answer = self.run(|pipe| Ok(serde_json::to_writer(pipe, &work(&Files(self)))?))?;
        let answer: Result<T, Refused> = serde_json::from_slice(&answer)
            .map_err(|_| died(&self.sources[0].path, self.limits))?;
        answer.map_err(|refused| self.refused(refused))
    }

    /// Runs `work` in a worker process, and returns what it writes; `None` if it returns false.
    pub(super) fn bytes_of_worker(
        &self,
        work: impl FnOnce(&Files<'_>, &mut dyn Write) -> Result<io::Result<bool>, Refused>,
    ) -> Result<Option<Vec<u8>>, Error> {
        // The last byte says what the others are.
        const WRITTEN: u8 = 0;
        const NOTHING: u8 = 1;
        const REFUSED: u8 = 2;
        let mut answer = self.run(|pipe| match work(&Files(self), pipe) {
            Ok(done) => {
                let kind = if done? { WRITTEN } else { NOTHING };
                pipe.write_all(&[kind])
            }
            // Nothing is written before all is read.
            Err(refused) => {
                serde_json::to_writer(&mut *pipe, &refused)?;
                pipe.write_all(&[REFUSED])
            }
        })?;
        let died = || died(&self.sources[0].path, self.limits);
        match answer.pop().ok_or_else(died)? {
            WRITTEN => Ok(Some(answer)),
            NOTHING => Ok(None),
            _ => {
                let refused: Refused = serde_json::from_slice(&answer).map_err(|_| died())?;
                Err(self.refused(refused))
            }
        }
    }

    fn run(&self, work: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<Vec<u8>, Error> {
        run(&self.sources[0].path, self.limits, work)
    }

    fn refused(&self, (file, refusal): Refused) -> Error {
        let source = self.sources.get(file);
        let path = source.map(|it| it.path.clone()).unwrap_or_default();
        match refusal {
            Refusal::Unreadable(number) => {
                let source = number.map_or_else(
                    || io::Error::other("it cannot be read"),
                    io::Error::from_raw_os_error,
                );
                Error::Read { path, source }
            }
            Refusal::TooLarge => {
                let reason = format!("it has more than {} MiB", MAX_FILE >> 20);
                Error::TooLarge { path, reason }
            }
            Refusal::OtherFormat(reason) => Error::OtherFormat { path, reason },
            Refusal::Malformed(format, reason) => Error::Malformed {
                path,
                format,
                reason,
            },
        }
    }
}

/// The files of a recording, in a worker process.
pub(super) struct Files<'i>(&'i Input);

impl Files<'_> {
    /// Reads all files, one after the other.
    pub(super) fn read(&self, tables: &mut Tables, sink: &mut dyn Sink) -> Result<(), Refused> {
        for (index, source) in self.0.sources.iter().enumerate() {
            if source.is_first {
                tables.start = None;
            }
            let read = source.read(tables, sink);
            read.map_err(|refusal| (index, refusal))?;
        }
        match &tables.other_type {
            // Of the first file that has it.
            Some(other) if !tables.has_cpu_time => Err(malformed(other.clone())),
            _ => Ok(()),
        }
    }
}

impl Source {
    fn read(&self, tables: &mut Tables, sink: &mut dyn Sink) -> Result<(), Refusal> {
        let content = match &self.content {
            Some(content) => Cow::Borrowed(&content[..]),
            None => {
                let unreadable = |error: io::Error| Refusal::Unreadable(error.raw_os_error());
                let file = File::open(&self.path).map_err(unreadable)?;
                // A pipe has no size: what was read tells.
                let found = file.metadata().ok().filter(|it| it.is_file());
                let size = found.map_or(0, |found| found.len());
                if size > MAX_FILE {
                    return Err(Refusal::TooLarge);
                }
                if let Some(layouts) = messages::layouts(&file, size) {
                    let read = messages::read_parts(&file, &layouts, tables, sink);
                    return read.map_err(|reason| Refusal::Malformed(InputFormat::Otlp, reason));
                }
                // A list that grows takes up to three times as much.
                let mut bytes = Vec::with_capacity(size as usize + 1);
                let read = file.take(MAX_FILE + 1).read_to_end(&mut bytes);
                read.map_err(unreadable)?;
                Cow::Owned(bytes)
            }
        };
        match content.len() as u64 {
            0 => Err(Refusal::Malformed(
                InputFormat::Otlp,
                "it is empty".to_owned(),
            )),
            size if size > MAX_FILE => Err(Refusal::TooLarge),
            _ => read_content(&content, &self.path, tables, sink),
        }
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| path.metadata().map(|found| (found.dev(), found.ino())).ok();
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

/// Reads the content of a file in whichever format it is, also compressed with gzip.
pub(super) fn read_content(
    content: &[u8],
    path: &Path,
    tables: &mut Tables,
    sink: &mut dyn Sink,
) -> Result<(), Refusal> {
    const GZIP: [u8; 2] = [0x1f, 0x8b];
    if !content.starts_with(&GZIP) {
        return read_plain(content, path, tables, sink);
    }
    let mut plain = Vec::new();
    let read = MultiGzDecoder::new(content).take(MAX_FILE + 1);
    let read = { read }.read_to_end(&mut plain);
    if plain.len() as u64 > MAX_FILE {
        return Err(Refusal::TooLarge);
    }
    if let Some(reason) = other_format(content, path).filter(|_| plain.starts_with(b"{")) {
        return Err(Refusal::OtherFormat(reason));
    }
    match read {
        Ok(0) => Err(Refusal::Malformed(
            InputFormat::Otlp,
            "it is empty".to_owned(),
        )),
        Ok(_) => read_plain(&plain, path, tables, sink),
        Err(_) => Err(Refusal::Malformed(
            format_of(&plain),
            "its compressed data was cut off or damaged".to_owned(),
        )),
    }
}

/// Returns the format of a file, or of the beginning of one; OTLP if it is not known.
fn format_of(content: &[u8]) -> InputFormat {
    if pprof::is_profile(content) {
        return InputFormat::Pprof;
    }
    match str::from_utf8(content) {
        Ok(lines) if text::is_folded(lines) => InputFormat::Folded,
        Ok(lines) if text::is_perf_script(lines) => InputFormat::PerfScript,
        _ => InputFormat::Otlp,
    }
}

fn read_plain(
    content: &[u8],
    path: &Path,
    tables: &mut Tables,
    sink: &mut dyn Sink,
) -> Result<(), Refusal> {
    let format = format_of(content);
    let lines = || str::from_utf8(content).unwrap_or_default();
    let read = match format {
        InputFormat::Pprof => pprof::read(content, tables, sink),
        InputFormat::Folded => text::read_folded(lines(), tables, sink),
        InputFormat::PerfScript => text::read_perf_script(lines(), tables, sink),
        InputFormat::Otlp => match other_format(content, path) {
            Some(reason) => return Err(Refusal::OtherFormat(reason)),
            None => messages::read(content, tables, sink),
        },
    };
    read.map_err(|reason| Refusal::Malformed(format, reason))
}

#[cfg(test)]
mod tests {
    use otelctx_worker::Limits;
    use prost::encoding::encode_varint;

    use super::*;
    use crate::report::{Report, ReportOptions};

    /// Many attributes of a dictionary take two bytes each in the file, and more in memory.
    #[test]
    fn a_file_that_takes_too_much_memory_is_refused_and_takes_down_nothing() {
        let mut file = [6 << 3 | 2, 0].repeat(8 << 20);
        let mut head = vec![2 << 3 | 2];
        encode_varint(file.len() as u64, &mut head);
        file = [head, file].concat();
        let input = |memory| Input {
            limits: Limits { memory, ..LIMITS },
            ..Input::read_once(&file[..], Path::new("a.otlp")).unwrap()
        };
        let options = ReportOptions::by(&["http.route"]);
        let error = Report::read(&input(128 << 20), &options).unwrap_err();
        assert!(matches!(error, Error::TooLarge { .. }), "{error:?}");
        let expected = "a.otlp: too large: decoding it takes more than 128 MiB of memory";
        assert!(error.to_string().starts_with(expected), "{error}");
        // With more memory, it is read.
        let report = Report::read(&input(LIMITS.memory), &options).unwrap();
        assert_eq!(report, Report::default());
    }
}
