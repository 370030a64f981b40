//! `otelctx symbolize`: adds function names to a recording that has addresses alone.

use std::cmp::Reverse;
use std::path::PathBuf;

use otelctx_profile::sample::format::hexadecimal;
use otelctx_profile::sample::{Module, ModuleFiles, ProcessFacts};
use otelctx_profile::{Format, RecordedFile, SymbolQuery, Symbolizer, check_writable};
use otelctx_symbolize::find_files;
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
    /// File written by `otelctx record`
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
    check_writable(output)?;
    open_files::allow_many();
    let server = arguments.debug_files.server()?;
    let recorded = RecordedFile::read(&arguments.file)?;
    let modules = recorded.unnamed()?;
    let found = find_files(&modules, &arguments.debug_files.debug_dir, server.as_ref());
    let mut answer = Answer {
        file: output.to_string_lossy().into_owned(),
        addresses: modules.iter().map(|module| module.offsets.len()).sum(),
        ..Answer::default()
    };
    let mut symbols = arguments.debug_files.symbols(server);
    let process = ProcessFacts::default();
    let mut named = Vec::new();
    for (index, (module, file)) in modules.into_iter().zip(found).enumerate() {
        let listed = |addresses: usize| ListedFile {
            path: module.path.clone(),
            build_id: hexadecimal(&module.identity.build_id),
            addresses,
        };
        let Some(file) = file else {
            answer.missing.push(listed(module.offsets.len()));
            continue;
        };
        let facts = Module {
            path: module.path.clone(),
            build_id: module.identity.build_id.clone(),
            // Without a build ID, this tells it from others; nothing is looked up by it.
            inode: index as u64 + 1,
            ..Module::default()
        };
        // One at a time: the number of files that are kept is bounded, a recording's is not.
        let files = ModuleFiles::default();
        files.keep(&facts, file);
        symbols = symbols.files(files);
        let functions = symbols.functions(SymbolQuery::new(&facts, &process), &module.offsets);
        let without = functions.iter().filter(|it| it.is_empty()).count();
        answer.named += functions.len() - without;
        if without > 0 {
            answer.without_names.push(listed(without));
        }
        named.push((module, functions));
    }
    (answer.without_names).sort_by_key(|file| Reverse(file.addresses));
    let failures = symbols.failures().iter();
    answer.failures = failures.map(ToString::to_string).collect();
    recorded.write(&named, output)?;
    let text = if arguments.json {
        json::render(&answer)
    } else {
        text(&answer)
    };
    terminal::print(&text).map_err(Error::Output)?;
    Ok(Status::Done)
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
        "named {} of {}: {}\n",
        grouped(answer.named),
        count(answer.addresses, "address", "addresses"),
        escape(&answer.file),
    );
    text += &lines("not found", &answer.missing, MAX_MISSING);
    text += &lines("no names", &answer.without_names, MAX_WITHOUT_NAMES);
    for failure in answer.failures.iter().take(MAX_MISSING) {
        text += &format!("  failed     {}\n", escape(failure));
    }
    text
}
