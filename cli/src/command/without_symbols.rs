//! Samples in files without symbols, and where their debug files were searched.

use std::collections::HashMap;

use otelctx_profile::sample::Module;
use otelctx_profile::sample::format::hexadecimal;
use otelctx_profile::{Kind, Location, Place, Profile};
use otelctx_symbolize::Symbols;
use serde::Serialize;

use crate::output::counts::share;
use crate::output::terminal::escape;

/// Smallest share of the samples, in percent, for which there is a line.
const MIN_SHARE: u64 = 5;
/// Maximum number of files that are counted.
const MAX_FILES: usize = 1024;

/// Samples whose innermost function has no name, by files without symbols.
#[derive(Default)]
pub(crate) struct WithoutSymbols {
    /// By path and build ID.
    files: HashMap<(String, Vec<u8>), File>,
    /// The debuginfod server, if one was asked.
    server: Option<String>,
}

struct File {
    samples: u64,
    /// The paths at which its debug file was searched.
    searched: Vec<String>,
}

/// The JSON object of docs/json.md.
#[derive(Serialize)]
pub(crate) struct FileJson<'f> {
    path: &'f str,
    build_id: String,
    samples: u64,
    searched: Vec<&'f str>,
}

impl WithoutSymbols {
    pub(crate) fn new(server: Option<&String>) -> Self {
        Self {
            server: server.cloned(),
            ..Self::default()
        }
    }

    /// Adds the samples on a CPU of a part, which `symbols` has named.
    pub(crate) fn add(&mut self, part: &Profile, symbols: &Symbols) {
        for group in part.groups().filter(|it| it.kind == Kind::OnCpu) {
            let innermost = group.stack.first().map(|index| part.location(*index));
            let unnamed = innermost.filter(|it| it.functions.is_empty());
            let Some(&Location { place, .. }) = unnamed else {
                continue;
            };
            let Place::Mapped(mapping) = place else {
                continue;
            };
            let module = part.catalog().module_facts(mapping.module);
            let Some(searched) = symbols.without_symbols(module) else {
                continue;
            };
            self.add_samples(module, searched, group.samples.len() as u64);
        }
    }

    /// Adds samples of a file, whose debug file was searched at these paths.
    pub(crate) fn add_samples(&mut self, module: &Module, searched: &[String], samples: u64) {
        let key = (module.path.clone(), module.build_id.clone());
        if self.files.len() < MAX_FILES || self.files.contains_key(&key) {
            let file = self.files.entry(key).or_insert_with(|| File {
                samples: 0,
                searched: searched.to_vec(),
            });
            file.samples += samples;
        }
    }

    /// Returns the files, most samples first.
    pub(crate) fn json(&self) -> Vec<FileJson<'_>> {
        let file = |(key, file)| self.file_json(key, file);
        let mut files: Vec<_> = self.files.iter().map(file).collect();
        files.sort_by(|one, other| (other.samples, one.path).cmp(&(one.samples, other.path)));
        files
    }

    fn file_json<'f>(&'f self, key: &'f (String, Vec<u8>), file: &'f File) -> FileJson<'f> {
        let (path, build_id) = key;
        let server = self.server.as_deref().filter(|_| !build_id.is_empty());
        let paths = file.searched.iter().map(String::as_str);
        FileJson {
            path,
            build_id: hexadecimal(build_id),
            samples: file.samples,
            searched: paths.chain(server).collect(),
        }
    }

    /// Formats a line about the file with most of `samples`, if these are many.
    pub(crate) fn line(&self, samples: usize) -> Option<String> {
        let samples = samples as u64;
        let files = self.json();
        let file = files.first()?;
        if 100 * file.samples < MIN_SHARE * samples {
            return None;
        }
        let (share, name) = (share(file.samples, samples), escape(file.path));
        let why = match &places(&file.searched)[..] {
            [] => ", no build ID and no debug link".to_owned(),
            places => format!("; looked in {}", escape(&places.join(", "))),
        };
        Some(format!(
            "{share} of samples in {name}, which has no symbols{why}"
        ))
    }
}

/// Returns the directories of these paths, those by build IDs without the part that a build ID names.
fn places<'p>(searched: &[&'p str]) -> Vec<&'p str> {
    let mut places = Vec::new();
    for path in searched {
        let place = match path.split_once("/.build-id/") {
            Some((base, _)) => base,
            None if path.contains("://") => path,
            None => path.rsplit_once('/').map_or("", |(folder, _)| folder),
        };
        let place = if place.is_empty() { "/" } else { place };
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places
}
