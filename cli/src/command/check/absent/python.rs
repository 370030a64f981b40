//! How a Python process publishes, and whether its interpreter finds the package for that.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use otelctx_reader::Process;

use crate::command::check::finding::Finding;
use crate::output::text::argument;

/// The setting that publishes the spans of OpenTelemetry.
const SETTING: &str = "OTEL_PYTHON_CONTEXT";
/// The first version with the package.
const FIRST_VERSION: (u32, u32) = (3, 9);
/// Maximum number of bytes to read of an environment, a command line or a `pyvenv.cfg`.
const MAX_TEXT: usize = 1 << 18;
/// Maximum number of entries of a directory to read.
const MAX_ENTRIES: usize = 16_384;

/// Adds what a process with this version of Python has to do.
pub(super) fn advise(finding: Finding, process: &Process, version: &str) -> Finding {
    let mut numbers = version.split('.').map_while(|it| it.parse::<u32>().ok());
    let release = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let program = Program::of(process);
    let is_set = program.variable(SETTING).is_some_and(|it| it == "otelctx");
    let finding = if is_set {
        finding.hint(format!(
            "{SETTING}=otelctx is set: it publishes once OpenTelemetry's SDK is imported"
        ))
    } else {
        finding.hint(format!(
            "Start it with  {SETTING}=otelctx, which publishes the spans of OpenTelemetry; without \
             OpenTelemetry, call  otelctx.attach(context)  for each request"
        ))
    };
    if release < FIRST_VERSION {
        return finding.hint(format!(
            "That takes Python 3.9 or later: this is {version}."
        ));
    }
    match program.folder_without_package(release) {
        Some(folder) => finding.hint(format!(
            "The package otelctx is not in {}:  {} -m pip install PATH/TO/otelctx/publish/python",
            folder.display(),
            argument(&program.name.to_string_lossy()),
        )),
        None => finding,
    }
}

/// How a process was started.
struct Program {
    /// Its root directory and its working directory, seen from here.
    root: PathBuf,
    folder: PathBuf,
    /// The first word of its command line.
    name: OsString,
    executable: PathBuf,
    environment: Vec<(OsString, OsString)>,
}

impl Program {
    fn of(process: &Process) -> Self {
        let running = process.running().ok();
        let pid = running.map_or(0, |it| it.pid());
        let line = text(Path::new(&format!("/proc/{pid}/cmdline")));
        let name = line.split(|byte| *byte == 0).next().unwrap_or_default();
        Self {
            root: format!("/proc/{pid}/root").into(),
            folder: fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default(),
            name: OsStr::from_bytes(name).to_owned(),
            executable: running
                .and_then(|it| it.executable().ok())
                .unwrap_or_default(),
            environment: running
                .and_then(|it| it.environment(MAX_TEXT).ok())
                .unwrap_or_default(),
        }
    }

    fn variable(&self, name: &str) -> Option<&OsStr> {
        let mut variables = self.environment.iter();
        let found = variables.find(|(key, value)| key == name && !value.is_empty());
        found.map(|(_, value)| value.as_os_str())
    }

    /// Returns a path of the process as it is seen from here.
    fn seen(&self, path: &Path) -> PathBuf {
        let absolute = self.folder.join(path);
        self.root
            .join(absolute.strip_prefix("/").unwrap_or(&absolute))
    }

    /// Returns the directory for packages, if this is known and neither it nor another one that the
    /// interpreter searches has the package.
    fn folder_without_package(&self, (major, minor): (u32, u32)) -> Option<PathBuf> {
        if !self
            .executable
            .file_name()?
            .as_bytes()
            .starts_with(b"python")
        {
            // Programs that embed the interpreter choose what it searches.
            return None;
        }
        let library = format!("lib/python{major}.{minor}");
        let mut folders = Vec::new();
        let environment = self.virtual_environment();
        let isolated = environment.as_ref().is_some_and(|(_, isolated)| *isolated);
        folders.extend(environment.map(|(root, _)| root.join(&library).join("site-packages")));
        if !isolated {
            let prefix = self.executable.parent()?.parent()?;
            folders.push(prefix.join(&library).join("site-packages"));
            // Debian's interpreters: https://wiki.debian.org/Python.
            folders.push(Path::new("/usr/local").join(&library).join("dist-packages"));
            folders.push(prefix.join("lib/python3/dist-packages"));
            let home = self.variable("HOME").map(|it| Path::new(it).join(".local"));
            folders.extend(home.map(|home| home.join(&library).join("site-packages")));
        }
        let path = self.variable("PYTHONPATH").unwrap_or_default();
        let searched = std::env::split_paths(path).chain(folders.iter().cloned());
        if searched
            .into_iter()
            .any(|folder| has_package(&self.seen(&folder)))
        {
            return None;
        }
        folders
            .into_iter()
            .find(|folder| self.seen(folder).is_dir())
    }

    /// Returns the virtual environment of the interpreter, and whether it hides the system's packages.
    fn virtual_environment(&self) -> Option<(PathBuf, bool)> {
        let name = Path::new(&self.name);
        let path = if name.components().count() > 1 {
            self.folder.join(name)
        } else {
            let folders = std::env::split_paths(self.variable("PATH")?);
            let mut paths = folders.map(|folder| folder.join(name));
            paths.find(|path| fs::symlink_metadata(self.seen(path)).is_ok())?
        };
        let root = path.parent()?.parent()?;
        let settings = text(&self.seen(&root.join("pyvenv.cfg")));
        let settings = String::from_utf8_lossy(&settings)
            .to_lowercase()
            .replace(' ', "");
        let shares = settings.contains("include-system-site-packages=true");
        (!settings.is_empty()).then(|| (root.to_owned(), !shares))
    }
}

/// Returns whether a directory has the package, or the metadata of an editable install.
fn has_package(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else {
        return false;
    };
    let mut names = entries.flatten().take(MAX_ENTRIES).map(|it| it.file_name());
    names.any(|name| {
        let name = name.as_bytes();
        name == b"otelctx" || name.starts_with(b"otelctx-") || name.starts_with(b"otelctx.")
    })
}

fn text(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A file that cannot be read says nothing.
    if fs::metadata(path).is_ok_and(|it| it.is_file())
        && let Ok(file) = File::open(path)
    {
        let _ = file.take(MAX_TEXT as u64).read_to_end(&mut bytes);
    }
    bytes
}
