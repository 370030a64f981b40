//! `otelctx view`: a recording as a page in a browser.

use std::env;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use nix::unistd::{geteuid, mkdtemp};
use otelctx_profile::report::Selection;
use otelctx_profile::{Format, Input, Options, Spans, convert};

use crate::Status;
use crate::command::filter::{divided_by, levels};
use crate::command::help;
use crate::command::ids;
use crate::command::report::{file, unselected};
use crate::command::selection::Select;
use crate::error::Error;
use crate::output::terminal::{self, escape};

/// The program of xdg-utils that opens a file in the desktop's browser.
const OPENER: &str = "xdg-open";

/// Show a recording as a page in a browser: a flame graph of any selection, CPU over time, routes,
/// traces and functions
///
/// The page is written to a directory for temporary files. Where there is no browser or no display,
/// and for root, its path is printed instead of opening it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  otelctx view                                    the recording profile.otlp
  otelctx view profile.otlp --filter http.route=/cart
  otelctx view profile.otlp --spans spans.json    with the spans of traces
  otelctx record -p 4711 -d 10 -o profile.html    writes the page at once")]
pub(crate) struct Arguments {
    /// Recording: OTLP of any program, pprof, folded stacks, or the output of `perf script`; - for
    /// standard input [default: profile.otlp, else the newest .otlp file here]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    select: Select,
    /// What the page groups by, several with commas between: attributes of contexts or resources, process,
    /// thread (worker-* for all threads of a pool) and trace; `none` for none [default: http.route]
    #[arg(help_heading = help::VIEW, long, value_name = "ATTRIBUTE,…", value_delimiter = ',', value_parser = ids::attribute)]
    by: Vec<String>,
    /// Show the spans of traces, too: a file in OTLP, as a Collector's file exporter writes it, JSON or
    /// protobuf
    #[arg(help_heading = help::VIEW, long, value_name = "FILE")]
    spans: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Status, Error> {
    let file = file::chosen(arguments.file.as_deref())?;
    let input = file::opened(&file)?;
    let selection = arguments.select.within(&input)?;
    let mut options = Options::default();
    options.by = divided_by(Format::Page, &levels(&arguments.by));
    let spans = arguments.spans.as_deref().map(Spans::read).transpose()?;
    options.spans = spans.map(Arc::new);
    let Some(page) = write(&input, &selection, &options, &file)? else {
        unselected::explain(&input, &arguments.select)?;
        return Ok(Status::FoundProblem);
    };
    if !is_opened(&page) {
        let line = format!("{}\n", escape(&page.to_string_lossy()));
        terminal::print(&line).map_err(Error::Output)?;
    }
    Ok(Status::Done)
}

/// Writes the page where no other user can replace it, and returns its path; `None` if no sample is
/// selected.
fn write(
    input: &Input,
    selection: &Selection,
    options: &Options,
    file: &Path,
) -> Result<Option<PathBuf>, Error> {
    let template = env::temp_dir().join("otelctx-XXXXXX");
    let failed = |path: &Path, why: std::io::Error| Error::OutputDirectory {
        path: path.to_owned(),
        why,
    };
    let directory = mkdtemp(&template).map_err(|why| failed(&template, why.into()))?;
    let name = match file.file_stem() {
        Some(stem) if file.as_os_str() != "-" => stem.to_owned(),
        _ => "profile".into(),
    };
    let page = directory.join(name).with_extension("html");
    let written = convert(input, selection, Format::Page, options, &page);
    if !matches!(written, Ok(true)) {
        let _ = std::fs::remove_dir(&directory);
        written?;
        return Ok(None);
    }
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&page, private).map_err(|why| failed(&page, why))?;
    if let Some((user, group)) = caller() {
        for path in [&page, &directory] {
            chown(path, Some(user), Some(group)).map_err(|why| failed(path, why))?;
        }
    }
    Ok(Some(page))
}

/// Returns the user and group that called sudo, if they did.
fn caller() -> Option<(u32, u32)> {
    let id = |name: &str| env::var(name).ok()?.parse().ok();
    let is_root = geteuid().is_root();
    is_root.then(|| Some((id("SUDO_UID")?, id("SUDO_GID")?)))?
}

/// Opens the page, and returns whether it did. Root starts no browser: it would run all pages with
/// root's rights.
fn is_opened(page: &Path) -> bool {
    let has_display = ["DISPLAY", "WAYLAND_DISPLAY"]
        .iter()
        .any(|name| env::var_os(name).is_some_and(|value| !value.is_empty()));
    if geteuid().is_root() || !has_display {
        return false;
    }
    let mut opener = Command::new(OPENER);
    opener.arg(page).stdin(Stdio::null());
    let ended = opener.stdout(Stdio::null()).stderr(Stdio::null()).status();
    ended.is_ok_and(|status| status.success())
}
