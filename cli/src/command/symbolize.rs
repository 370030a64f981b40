//! `otelctx symbolize`: adds function names to a recording that has addresses alone.

mod stream;

use std::cmp::Reverse;
use std::fs::File;
use std::path::PathBuf;

use otelctx_profile::sample::format::hexadecimal;
use otelctx_profile::sample::{Function, Module, ModuleFiles, ProcessFacts};
use otelctx_profile::{
    Format, Input, NamedModule, RecordedFile, SymbolQuery, Symbolizer, UnnamedModule,
    check_writable,
};
use otelctx_symbolize::{SharedServer, Symbols, find_files};
use serde::Serialize;

use crate::command::debug_files::DebugFiles;
use crate::command::record::cached_symbols::KnownFunctions;
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
  otelctx symbolize profile.otlp -o named.otlp --debug-dir ./files-of-that-machine
  tail -c +1 -F profiles.out | otelctx symbolize --stream > named.out")]
pub(crate) struct Arguments {
    /// File written by `otelctx record`; the further parts of a long recording (FILE.2.otlp, …) belong
    /// to it
    #[arg(value_name = "FILE", required_unless_present = "stream")]
    file: Option<PathBuf>,
    /// Read messages from standard input, as the Collector's file exporter writes them (format: proto), and
    /// write each with names to standard output
    #[arg(long, conflicts_with_all = ["file", "output", "json"])]
    stream: bool,
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
    open_files::allow_many();
    let Some(file) = &arguments.file else {
        return stream::run(&arguments.debug_files);
    };
    let output = arguments.output.as_ref().unwrap_or(file);
    if let Some(path) = &arguments.output
        && !matches!(Format::from_path(path), Ok(Format::Otlp))
    {
        return Err(Error::OnlyOtlp(path.clone()));
    }
    let input = Input::recording(file);
    let outputs: Vec<PathBuf> = (1..=input.paths().len())
        .map(|part| Format::part_path(output, part))
        .collect();
    outputs.iter().try_for_each(|path| check_writable(path))?;
    let mut naming = Naming::new(&arguments.debug_files)?;
    naming.answer.file = output.to_string_lossy().into_owned();
    for (file, output) in input.paths().zip(&outputs) {
        let recorded = RecordedFile::read(file)?;
        let named = naming.names(&recorded)?;
        recorded.write(&named, output)?;
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

/// Finds names for recordings.
struct Naming<'d> {
    debug_directories: &'d [PathBuf],
    server: Option<SharedServer>,
    symbols: Symbols,
    /// Functions of files with build IDs.
    known: KnownFunctions,
    /// Number of files with functions so far.
    modules: u64,
    answer: Answer,
}

impl<'d> Naming<'d> {
    fn new(debug_files: &'d DebugFiles) -> Result<Self, Error> {
        let server = debug_files.server()?;
        Ok(Self {
            debug_directories: &debug_files.debug_dir,
            symbols: debug_files.symbols(server.clone()),
            server,
            known: KnownFunctions::default(),
            modules: 0,
            answer: Answer::default(),
        })
    }

    /// Finds the functions of a recording that has addresses alone.
    fn names(&mut self, recorded: &RecordedFile<'_>) -> Result<Vec<NamedModule>, Error> {
        let mut modules = recorded.unnamed()?;
        self.answer.addresses += modules.iter().map(|it| it.offsets.len()).sum::<usize>();
        let mut named: Vec<_> = modules.iter_mut().map(|it| self.take_known(it)).collect();
        let left = modules.into_iter().enumerate();
        let left = left.filter(|(_, module)| !module.offsets.is_empty());
        let (indexes, modules): (Vec<usize>, Vec<_>) = left.unzip();
        let found = find_files(&modules, self.debug_directories, self.server.as_ref());
        for ((index, module), file) in indexes.into_iter().zip(modules).zip(found) {
            let listed = |addresses: usize| ListedFile {
                path: module.path.clone(),
                build_id: hexadecimal(&module.identity.build_id),
                addresses,
            };
            let Some(file) = file else {
                add(&mut self.answer.missing, listed(module.offsets.len()));
                continue;
            };
            let functions = self.resolve(&module, file);
            let without = functions.iter().filter(|it| it.is_empty()).count();
            self.answer.named += functions.len() - without;
            if without > 0 {
                add(&mut self.answer.without_names, listed(without));
            }
            let (of_file, known) = &mut named[index];
            of_file.offsets.extend(module.offsets);
            known.extend(functions);
        }
        named.retain(|(module, _)| !module.offsets.is_empty());
        Ok(named)
    }

    /// Moves the offsets of a module whose functions are known, with these.
    fn take_known(&mut self, module: &mut UnnamedModule) -> NamedModule {
        let (mut offsets, mut functions) = (Vec::new(), Vec::new());
        let key = &module.identity.build_id;
        if !key.is_empty() {
            module.offsets.retain(|offset| {
                let known = self.known.get(key, *offset);
                let is_known = known.is_some();
                offsets.extend(is_known.then_some(*offset));
                functions.extend(known);
                !is_known
            });
        }
        self.answer.named += offsets.len();
        let known = UnnamedModule {
            path: module.path.clone(),
            identity: module.identity.clone(),
            offsets,
        };
        (known, functions)
    }

    fn resolve(&mut self, module: &UnnamedModule, file: File) -> Vec<Vec<Function>> {
        self.modules += 1;
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
        let process = ProcessFacts::default();
        let query = SymbolQuery::new(&facts, &process);
        let functions = self.symbols.functions(query, &module.offsets);
        if !facts.build_id.is_empty() {
            let both = module.offsets.iter().zip(&functions);
            for (offset, functions) in both.filter(|(_, it)| !it.is_empty()) {
                self.known.add(&facts.build_id, *offset, functions);
            }
        }
        functions
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
