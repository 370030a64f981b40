//! `otelctx symbolize`: adds function names to a recording that has addresses alone.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};

use otelctx_profile::sample::format::hexadecimal;
use otelctx_profile::sample::{Module, ModuleFiles, ProcessFacts};
use otelctx_profile::{Format, Input, RecordedFile, SymbolQuery, Symbolizer, check_writable};
use otelctx_symbolize::{SharedServer, Symbols, find_files};
use serde::Serialize;

use crate::command::debug_files::DebugFiles;
use crate::error::Error;
use crate::output::json;
use crate::output::terminal::{self, escape};
use crate::output::text::{count, grouped};
use crate::{Status, open_files};

/// Maximum number of lines about files that were not found.
const MAX_MISSING: usize = 20;
/// Maximum number of lines about files that have no names: most programs of a distribution are
/// stripped.
const MAX_WITHOUT_NAMES: usize = 5;

/// Add function names to a recording, also on another machine
///
/// Only files that are the recorded ones, by their build IDs, are used: at their paths, in the
/// directories of --debug-dir (which may have programs and libraries, too), in the system's
/// directories for debug files, and mapped in living processes. Files without names are stripped:
/// install their debug files (Debian: -dbgsym packages), or give --debuginfod. The kernel's
/// functions are not named, because its addresses change with every boot.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  otelctx record --all --no-symbols -o profile.otlp
  otelctx symbolize profile.otlp
  otelctx symbolize profile.otlp -o named.otlp --debug-dir ./files-of-that-machine")]
pub(crate) struct Arguments {
    /// File written by `otelctx record`; the further parts of a long recording (FILE.2.otlp, …) belong
    /// to it
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// File to write, with the extension .otlp [default: replace FILE]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    debug_files: DebugFiles,
    /// Print one JSON value (fields: docs/json.md)
    #[arg(long)]
    json: bool,
}

/// The JSON object of docs/json.md.
#[derive(Default, Serialize)]
struct Answer {
    file: String,
    /// Number of files: the parts of a long recording.
    files: usize,
    /// Addresses in files whose functions were unknown, and how many are known now.
    addresses: usize,
    named: usize,
    missing: Vec<ListedFile>,
    /// Files that have no names for some of the addresses, most addresses first.
    without_names: Vec<ListedFile>,
    /// Files that were found, but could not be decoded.
    failures: Vec<String>,
}

/// A file, and how many addresses in it have no names.
#[derive(Serialize)]
struct ListedFile {
    path: String,
    /// Empty if the file has none.
    build_id: String,
    addresses: usize,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Status, Error> {
    let output = arguments.output.as_ref().unwrap_or(&arguments.file);
    if let Some(path) = &arguments.output
        && !matches!(Format::from_path(path), Ok(Format::Otlp))
    {
        return Err(Error::OnlyOtlp(path.clone()));
    }
    let input = Input::recording(&arguments.file);
    let outputs: Vec<PathBuf> = (1..=input.paths().len())
        .map(|part| Format::part_path(output, part))
        .collect();
    outputs.iter().try_for_each(|path| check_writable(path))?;
    open_files::allow_many();
    let server = arguments.debug_files.server()?;
    let mut naming = Naming {
        debug_directories: &arguments.debug_files.debug_dir,
        server: server.clone(),
        symbols: arguments.debug_files.symbols(server),
        modules: 0,
        answer: Answer {
            file: output.to_string_lossy().into_owned(),
            ..Answer::default()
        },
    };
    for (file, output) in input.paths().zip(&outputs) {
        naming.add_names(file, output)?;
    }
    let mut answer = naming.answer;
    answer.files = outputs.len();
    (answer.without_names).sort_by_key(|file| Reverse(file.addresses));
    let failures = naming.symbols.failures().iter();
    answer.failures = failures.map(ToString::to_string).collect();
    let text = if arguments.json {
        json::render(&answer)
    } else {
        text(&answer)
    };
    terminal::print(&text).map_err(Error::Output)?;
    Ok(Status::Done)
}

/// Adds names to the files of a recording.
struct Naming<'d> {
    debug_directories: &'d [PathBuf],
    server: Option<SharedServer>,
    symbols: Symbols,
    /// Number of files with functions so far.
    modules: u64,
    answer: Answer,
}

impl Naming<'_> {
    /// Writes a file of a recording with names to `output`.
    fn add_names(&mut self, file: &Path, output: &Path) -> Result<(), Error> {
        let recorded = RecordedFile::read(file)?;
        let modules = recorded.unnamed()?;
        let found = find_files(&modules, self.debug_directories, self.server.as_ref());
        let answer = &mut self.answer;
        answer.addresses += modules.iter().map(|it| it.offsets.len()).sum::<usize>();
        let process = ProcessFacts::default();
        let mut named = Vec::new();
        for (module, file) in modules.into_iter().zip(found) {
            self.modules += 1;
            let listed = |addresses: usize| ListedFile {
                path: module.path.clone(),
                build_id: hexadecimal(&module.identity.build_id),
                addresses,
            };
            let Some(file) = file else {
                add(&mut answer.missing, listed(module.offsets.len()));
                continue;
            };
            let facts = Module {
                path: module.path.clone(),
                build_id: module.identity.build_id.clone(),
                // Without a build ID, this tells it from others; nothing is looked up by it.
                inode: self.modules,
                ..Module::default()
            };
            // One at a time: the number of files that are kept is bounded, a recording's is not.
            let files = ModuleFiles::default();
            files.keep(&facts, file);
            self.symbols = std::mem::take(&mut self.symbols).files(files);
            let query = SymbolQuery::new(&facts, &process);
            let functions = self.symbols.functions(query, &module.offsets);
            let without = functions.iter().filter(|it| it.is_empty()).count();
            answer.named += functions.len() - without;
            if without > 0 {
                add(&mut answer.without_names, listed(without));
            }
            named.push((module, functions));
        }
        recorded.write(&named, output)?;
        Ok(())
    }
}

/// Lists a file once, whatever parts of a recording it occurs in.
fn add(files: &mut Vec<ListedFile>, file: ListedFile) {
    let is_same = |it: &&mut ListedFile| it.path == file.path && it.build_id == file.build_id;
    match files.iter_mut().find(is_same) {
        Some(known) => known.addresses += file.addresses,
        None => files.push(file),
    }
}

/// Formats a line for each file, and one for the rest.
fn lines(what: &str, files: &[ListedFile], max: usize) -> String {
    let line = |file: &ListedFile| {
        let build_id = match file.build_id.as_str() {
            "" => "no build ID".to_owned(),
            build_id => format!("build ID {build_id}"),
        };
        let (path, addresses) = (
            escape(&file.path),
            count(file.addresses, "address", "addresses"),
        );
        format!("  {what:9}  {path}, {build_id}: {addresses}\n")
    };
    let mut text: String = files.iter().take(max).map(line).collect();
    let more = files.len().saturating_sub(max);
    if more > 0 {
        text += &format!("  and {more} more: --json lists them\n");
    }
    text
}

fn text(answer: &Answer) -> String {
    let mut text = format!(
        "named {} of {}: {}{}\n",
        grouped(answer.named),
        count(answer.addresses, "address", "addresses"),
        escape(&answer.file),
        match answer.files {
            0 | 1 => String::new(),
            files => format!(" and {}", count(files - 1, "further file", "further files")),
        },
    );
    text += &lines("not found", &answer.missing, MAX_MISSING);
    text += &lines("no names", &answer.without_names, MAX_WITHOUT_NAMES);
    for failure in answer.failures.iter().take(MAX_MISSING) {
        text += &format!("  failed     {}\n", escape(failure));
    }
    text
}
