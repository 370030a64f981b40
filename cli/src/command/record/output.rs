//! The output files, and how to open each.

use std::fs;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use otelctx_profile::sample::{Catalog, Counts};
use otelctx_profile::{
    Aggregate, Clock, Format, NoSymbols, Options, Profile, Recording, Spans, check_writable,
};

use super::unsent;
use crate::command::filter::divided_by;
use crate::command::standard_output::{self, Messages};
use crate::error::Error;
use crate::output::terminal::escape;
use crate::output::{terminal, text};

/// Checks whether these files can be written, as far as possible, before an hour is recorded.
pub(super) fn check(paths: &[PathBuf]) -> Result<(), Error> {
    for (index, path) in paths.iter().enumerate() {
        if standard_output::is_meant(path) {
            continue;
        }
        Format::from_path(path)?;
        if paths[..index].contains(path) {
            return Err(Error::OutputTwice(path.clone()));
        }
        check_writable(path)?;
    }
    Ok(())
}

/// Returns whether `symbolize` can add function names to all of these files.
pub(super) fn take_names_later(paths: &[PathBuf], standard_output: Option<Format>) -> bool {
    let is_otlp = |path: &PathBuf| match standard_output {
        Some(format) if standard_output::is_meant(path) => format == Format::Otlp,
        _ => matches!(Format::from_path(path), Ok(Format::Otlp)),
    };
    paths.iter().all(is_otlp)
}

/// Says what was asked for that files are not divided by, as they show it in any case.
pub(super) fn say_what_does_not_divide(
    asked: &[String],
    paths: &[PathBuf],
    standard_output: Option<Format>,
) {
    let paths = paths.iter().filter(|path| !standard_output::is_meant(path));
    let formats = paths.filter_map(|path| Format::from_path(path).ok());
    for format in formats.chain(standard_output) {
        divided_by(format, asked);
    }
}

/// Returns the name of this machine.
pub(in crate::command) fn host() -> Option<String> {
    let name = nix::sys::utsname::uname().ok()?;
    name.nodename().to_str().map(str::to_owned)
}

/// Writes the files of a recording, part by part. If one cannot be written, the others still are.
pub(in crate::command) struct Outputs {
    pub(super) options: Options,
    paths: Vec<PathBuf>,
    /// The format of standard output.
    standard_output: Option<Format>,
    /// What standard output gets of OTLP.
    messages: Messages,
    parts: usize,
    /// The contents of files in formats with one file for all parts.
    aggregate: Aggregate,
    samples: usize,
    /// Files written so far, each with the position of its path on the command line.
    written: Vec<(usize, Written)>,
    /// Existing files for parts without samples, likewise. Replaced only if other parts have any.
    existing: Vec<(usize, PathBuf, Clock)>,
    failed: Vec<Error>,
    /// True if what cannot be written is kept in another directory.
    has_fallback: bool,
}

#[derive(Default)]
pub(in crate::command) struct Finished {
    /// The files that were written, in the order in which they were requested.
    pub(in crate::command) written: Vec<Written>,
    /// Files that keep their former content, as the recording has no samples.
    pub(super) kept: Vec<PathBuf>,
    /// Why others could not be written.
    pub(in crate::command) failed: Vec<Error>,
}

impl Finished {
    /// Formats a line about the files that were kept, if there are any.
    pub(super) fn kept_line(&self) -> Option<String> {
        let names = self.kept.iter().map(|path| path.to_string_lossy());
        let names: Vec<String> = names.map(|name| text::argument(&name)).collect();
        let keep = match names.len() {
            0 => return None,
            1 => "keeps its",
            _ => "keep their",
        };
        let names = names.join(", ");
        let why = "the recording has no samples";
        Some(format!("{names} {keep} former content: {why}"))
    }
}

impl Outputs {
    /// Creates the outputs of a recording with this clock, and at most this number of samples.
    pub(in crate::command) fn new(
        options: Options,
        paths: &[PathBuf],
        standard_output: Option<Format>,
        clock: Clock,
        samples: u64,
    ) -> Self {
        let mut paths = paths.to_vec();
        paths.retain(|path| !standard_output::is_meant(path));
        let formats = paths.iter().filter_map(|path| Format::from_path(path).ok());
        let formats: Vec<Format> = formats.chain(standard_output).collect();
        Self {
            parts: 0,
            aggregate: Aggregate::new(&options, &formats, clock, samples),
            options,
            paths,
            standard_output,
            messages: Messages::default(),
            samples: 0,
            written: Vec::new(),
            existing: Vec::new(),
            failed: Vec::new(),
            has_fallback: true,
        }
    }

    /// Keeps nothing elsewhere that cannot be written.
    pub(super) fn without_fallback(mut self) -> Self {
        self.has_fallback = false;
        self
    }

    /// Shows these spans in a page.
    pub(super) fn set_spans(&mut self, spans: Spans) {
        self.aggregate.set_spans(Arc::new(spans));
    }

    /// Adds a part, and writes the files with only this part.
    pub(in crate::command) fn add(&mut self, part: &Profile) {
        self.parts += 1;
        self.samples += part.len();
        self.aggregate.add(part);
        let failed = self.failed.len();
        let mut is_written = false;
        for (index, path) in self.paths_of(false) {
            let file = Format::part_path(&path, self.parts);
            if part.is_empty() && has_content(&file) {
                self.existing.push((index, file, part.clock()));
            } else {
                is_written |= self.write(index, &path, part);
            }
        }
        if self.standard_output == Some(Format::Otlp) {
            let added = self.messages.add(part, &self.options);
            self.failed.extend(added.err());
        }
        if self.failed.len() > failed && !is_written && !part.is_empty() {
            self.keep(Path::new(".otlp"), |path, it| {
                part.write_file(path, &it.options)
            });
        }
    }

    pub(in crate::command) fn add_file(&mut self, part: &Profile, path: &Path) {
        if !self.write(self.paths.len(), path, part) {
            self.keep(path, |path, it| part.write_file(path, &it.options));
        }
    }

    /// Writes a file with the part's number in its name, unless it is the first part. If this fails,
    /// returns false.
    fn write(&mut self, index: usize, path: &Path, part: &Profile) -> bool {
        let path = Format::part_path(path, self.parts);
        let written = part.write_file(&path, &self.options);
        let is_written = written.is_ok();
        self.note(index, &path, written);
        is_written
    }

    /// Writes a file of the recording, which could not be written to `path`, to another directory, if that is wanted.
    fn keep(
        &mut self,
        path: &Path,
        mut write: impl FnMut(&Path, &mut Self) -> Result<(), otelctx_profile::Error>,
    ) {
        if !self.has_fallback {
            return;
        }
        let places = unsent::places(path).map(|it| Format::part_path(&it, self.parts.max(1)));
        let mut places = places.collect::<Vec<_>>().into_iter();
        if let Some(kept) = places.find(|place| write(place, self).is_ok()) {
            self.written.push((self.paths.len(), Written::new(&kept)));
        }
    }

    /// Returns the paths of the files for all parts, or of the others, each with its position.
    fn paths_of(&self, aggregate: bool) -> Vec<(usize, PathBuf)> {
        let is_aggregate = |path: &Path| Format::from_path(path).is_ok_and(Format::is_aggregate);
        let mut paths: Vec<_> = self.paths.iter().cloned().enumerate().collect();
        paths.retain(|(_, path)| is_aggregate(path) == aggregate);
        paths
    }

    /// Returns whether a file was written with everything that was recorded.
    fn has_whole_recording(&self) -> bool {
        let mut written = self.written.iter();
        written.any(|(_, it)| matches!(Format::from_path(Path::new(&it.path)), Ok(Format::Otlp)))
    }

    fn note(&mut self, index: usize, path: &Path, written: Result<(), otelctx_profile::Error>) {
        match written {
            Ok(()) => self.written.push((index, Written::new(path))),
            Err(error) => self.failed.push(error.into()),
        }
    }

    /// Writes the files for all parts. Without samples, existing files are kept.
    pub(in crate::command) fn finish(mut self) -> Finished {
        let mut kept = Vec::new();
        for (index, path, clock) in std::mem::take(&mut self.existing) {
            if self.samples == 0 {
                kept.push((index, path));
                continue;
            }
            let empty = Profile::new(without_samples(clock), &mut NoSymbols);
            let written = empty.write_file(&path, &self.options);
            self.note(index, &path, written);
        }
        if self.samples > 0 {
            for (_, path) in self.paths_of(false) {
                let removed = Format::remove_further_parts(&path, self.parts);
                self.failed.extend(removed.err().map(Error::from));
            }
        }
        for (index, path) in self.paths_of(true) {
            if self.samples == 0 && has_content(&path) {
                kept.push((index, path));
                continue;
            }
            let written = self.aggregate.write_file(&path);
            let is_lost = written.is_err() && self.samples > 0 && !self.has_whole_recording();
            self.note(index, &path, written);
            if is_lost {
                self.parts = 1;
                self.keep(&path, |place, it| it.aggregate.write_file(place));
            }
        }
        if let Some(format) = self.standard_output {
            let written = match format {
                Format::Otlp => self.messages.write(),
                format => terminal::write(|stdout| self.aggregate.write(format, stdout))
                    .map_err(Error::Output),
            };
            self.failed.extend(written.err());
        }
        kept.sort_by_key(|(index, _)| *index);
        self.written.sort_by_key(|(index, _)| *index);
        Finished {
            written: self.written.into_iter().map(|(_, it)| it).collect(),
            kept: kept.into_iter().map(|(_, path)| path).collect(),
            failed: self.failed,
        }
    }
}

/// Returns whether there is a file with content, which an empty recording would replace.
fn has_content(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() > 0)
}

fn without_samples(clock: Clock) -> Recording {
    Recording {
        catalog: Catalog::new(),
        samples: Vec::new(),
        clock,
        period: NonZeroU64::MIN,
        counts: Counts::default(),
    }
}

/// Writes all files of a recording that has one part.
pub(in crate::command) fn write(
    profile: &Profile,
    options: &Options,
    paths: &[PathBuf],
) -> Finished {
    let samples = profile.len() as u64;
    let mut outputs = Outputs::new(options.clone(), paths, None, profile.clock(), samples);
    outputs.add(profile);
    outputs.finish()
}

#[derive(Clone, Debug, serde::Serialize)]
pub(in crate::command) struct Written {
    /// Its path, as requested.
    pub(in crate::command) path: String,
    /// The command that opens it, or where to open it.
    pub(in crate::command) open: String,
}

impl Written {
    /// Returns false if it is an empty file, as folded stacks are without samples.
    pub(super) fn has_content(&self) -> bool {
        let file = fs::metadata(&self.path);
        file.is_ok_and(|found| !found.is_file() || found.len() > 0)
    }

    /// Returns a line that says how to open it.
    pub(in crate::command) fn line(&self) -> String {
        format!("  {}: {}\n", escape(&self.path), escape(&self.open))
    }

    pub(in crate::command) fn new(path: &Path) -> Self {
        let file = text::argument(&path.to_string_lossy());
        let open = match Format::from_path(path) {
            Ok(Format::Otlp) => format!("{} report {file}", text::own_name()),
            Ok(Format::Pprof) => format!("go tool pprof -http=: {file}"),
            Ok(Format::Firefox) => "load it at https://profiler.firefox.com".to_owned(),
            Ok(Format::FlameGraph | Format::Page) => format!("open it in a browser: {}", url(path)),
            Ok(Format::Parquet | Format::ParquetFolder) => {
                "query it with DuckDB, ClickHouse or pandas".to_owned()
            }
            _ => "load it at https://www.speedscope.app".to_owned(),
        };
        Self {
            path: path.to_string_lossy().into_owned(),
            open,
        }
    }
}

fn url(path: &Path) -> String {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut url = "file://".to_owned();
    for byte in whole.as_os_str().as_encoded_bytes() {
        // RFC 3986, 2.3 and 3.3: these need no encoding.
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(byte) {
            url.push(char::from(*byte));
        } else {
            url += &format!("%{byte:02X}");
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use otelctx_profile::sample::{Event, Found, ProcessFacts, Sample};

    use super::*;

    /// With a sample, or without any.
    fn part(has_sample: bool) -> Profile {
        let clock = Clock {
            start: 0,
            end: 9,
            start_unix: 0,
        };
        let mut recording = without_samples(clock);
        if has_sample {
            let process = recording.catalog.add_process(ProcessFacts::default());
            let stack = recording.catalog.native_stack(&[]);
            recording.samples.push(Sample {
                time: 5,
                cpu: 0,
                thread: recording.catalog.thread(process, 7, "shop"),
                event: Event::OnCpu,
                found: Found::Detached,
                gil: None,
                user_stack: stack,
                stack_end: None,
                kernel_stack: stack,
            });
        }
        Profile::new(recording, &mut NoSymbols)
    }

    #[test]
    fn existing_files_are_replaced_if_any_part_has_samples() {
        let directory = std::env::temp_dir().join(format!("otelctx-output-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let names = ["a.otlp", "a.2.otlp", "a.svg", "empty.folded"];
        let [first, second, picture, empty] = names.map(|name| directory.join(name));
        let paths = [first.clone(), picture.clone(), empty.clone()];
        for parts in [[false, false], [false, true], [true, false]] {
            for path in [&first, &second, &picture] {
                fs::write(path, "before").unwrap();
            }
            fs::write(&empty, "").unwrap();
            let clock = part(false).clock();
            let mut outputs = Outputs::new(Options::default(), &paths, None, clock, 1);
            for has_sample in parts {
                outputs.add(&part(has_sample));
            }
            let finished = outputs.finish();
            assert!(finished.failed.is_empty());
            let written: Vec<_> = finished.written.iter().map(|it| it.path.clone()).collect();
            let is_empty = parts == [false, false];
            for path in [&first, &second, &picture, &empty] {
                let is_kept = is_empty && *path != empty;
                let content = fs::read(path).unwrap();
                assert_eq!(content == b"before", is_kept, "{parts:?} {path:?}");
                assert_eq!(finished.kept.contains(path), is_kept, "{parts:?} {path:?}");
                let path = path.to_str().unwrap().to_owned();
                assert_eq!(written.contains(&path), !is_kept, "{parts:?} {path:?}");
            }
            assert_eq!(finished.kept_line().is_some(), is_empty);
        }
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn an_address_has_no_character_that_a_browser_would_take_for_something_else() {
        let address = url(Path::new("/tmp/a b/100%#?é.svg"));
        assert_eq!(address, "file:///tmp/a%20b/100%25%23%3F%C3%A9.svg");
    }
}
