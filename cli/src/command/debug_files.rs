//! The places beside the programs themselves where function names are searched.

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use otelctx_export::{DownloadError, DownloadLimits, Downloads};
use otelctx_profile::sample::format::hexadecimal;
use otelctx_symbolize::{DebugServer, ServedFile, SharedServer, Symbols};

use crate::command::help;
use crate::error::Error;
use crate::output::terminal;

/// Maximum number of errors of a server that are reported.
const MAX_ERRORS: usize = 8;

/// Additional sources of function names.
#[derive(Debug, clap::Args)]
pub(crate) struct DebugFiles {
    /// Additional directory to search for separate debug files, by build ID, path or name, and for
    /// programs and libraries with symbols
    #[arg(help_heading = help::NAMES, long, value_name = "DIRECTORY")]
    pub(crate) debug_dir: Vec<PathBuf>,
    /// Download missing debug information from this debuginfod server, such as
    /// https://debuginfod.debian.net. It learns the build IDs of the programs
    #[arg(help_heading = help::NAMES, long, value_name = "URL")]
    pub(crate) debuginfod: Option<String>,
}

impl DebugFiles {
    /// Returns whether one is given.
    pub(crate) fn are_given(&self) -> bool {
        !self.debug_dir.is_empty() || self.debuginfod.is_some()
    }

    /// Returns the server, if one is given. It is not connected to yet.
    pub(crate) fn server(&self) -> Result<Option<SharedServer>, Error> {
        let Some(url) = &self.debuginfod else {
            return Ok(None);
        };
        let downloads = Downloads::new(url, DownloadLimits::default())?;
        Ok(Some(Arc::new(Mutex::new(Debuginfod {
            downloads: Some(downloads),
            reported: Vec::new(),
        }))))
    }

    /// Returns a symbolizer with these sources.
    pub(crate) fn symbols(&self, server: Option<SharedServer>) -> Symbols {
        let directories = self.debug_dir.iter();
        let symbols = directories.fold(Symbols::new(), Symbols::debug_directory);
        match server {
            Some(server) => symbols.debug_server(server),
            None => symbols,
        }
    }
}

/// A debuginfod server (elfutils, `debuginfod(8)`, "WEBAPI").
struct Debuginfod {
    /// `None` after an error that will persist.
    downloads: Option<Downloads>,
    /// Errors that were reported, each once: many files may have the same.
    reported: Vec<String>,
}

impl std::fmt::Debug for Debuginfod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let in_use = self.downloads.is_some();
        write!(f, "Debuginfod {{ in_use: {in_use} }}")
    }
}

impl Debuginfod {
    fn report(&mut self, error: &DownloadError) {
        let is_lasting = error.is_lasting();
        let rest = if is_lasting {
            self.downloads = None;
            "; it is not asked again"
        } else {
            ""
        };
        let line = format!("debuginfod: {error}{rest}");
        if is_lasting || self.reported.len() < MAX_ERRORS && !self.reported.contains(&line) {
            terminal::complain(&line, None);
            self.reported.push(line);
        }
    }
}

impl DebugServer for Debuginfod {
    fn get(&mut self, build_id: &[u8], kind: ServedFile, file: &mut File) -> bool {
        let Some(downloads) = &mut self.downloads else {
            return false;
        };
        let kind = match kind {
            ServedFile::Executable => "executable",
            _ => "debuginfo",
        };
        let path = format!("/buildid/{}/{kind}", hexadecimal(build_id));
        downloads.get(&path, file).unwrap_or_else(|error| {
            self.report(&error);
            false
        })
    }
}
