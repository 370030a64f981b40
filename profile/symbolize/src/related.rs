//! Files that belong to a module's debug information: its `.dwo` files, its `.dwp` file and its supplementary file.
//!
//! Targets choose the names. Only regular files are opened, none of them in the kernel's own file systems, and one is used
//! only if its ID is the one that the debug information expects.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{SYSFS_MAGIC, statfs};
use otelctx_remote::{Process, module};
use otelctx_sample::SymbolQuery;

use crate::debug_file::{DIRECTORIES, MAX_SIZE, build_id_name, plain, starts_as_elf};
use crate::supplement::Supplement;

/// Maximum length of a path in debug information, in bytes (`PATH_MAX`).
const MAX_PATH: usize = 4096;

/// Where the files that belong to a module are searched.
pub(crate) struct Related<'a> {
    pub(crate) query: SymbolQuery<'a>,
    /// The directories of this machine that the user has given.
    pub(crate) directories: &'a [PathBuf],
    /// The module's separate debug file, if it has one that belongs to this machine.
    pub(crate) debug_file: Option<PathBuf>,
    pub(crate) supplement: Option<Supplement>,
}

impl Related<'_> {
    pub(crate) fn supplement(&self) -> Option<&Supplement> {
        self.supplement.as_ref()
    }

    /// Opens the supplementary file: by its path, which is relative to the file that refers to it; by its build ID; and by
    /// its name in the directories of this machine.
    pub(crate) fn open_supplement(&self) -> Option<File> {
        let link = self.supplement.as_ref()?;
        let path = path(&link.path)?;
        let by_build_id = build_id_name(&link.build_id).map(|name| format!("{name}.debug"));
        let all = self
            .directories
            .iter()
            .cloned()
            .chain(DIRECTORIES.map(PathBuf::from));
        let mut trusted: Vec<PathBuf> = Vec::new();
        for base in all {
            trusted.extend(by_build_id.iter().map(|name| base.join(name)));
            trusted.extend(path.file_name().map(|name| base.join(name)));
        }
        let beside = self.debug_file.as_deref().and_then(Path::parent);
        trusted.extend(beside.map(|folder| folder.join(path)));
        let own = Path::new(&self.query.module.path).parent();
        let own = own.map(|folder| folder.join(path));
        let here = trusted.iter().filter_map(|path| open(path));
        let chosen = own.iter().flat_map(|path| self.open_chosen(path));
        here.chain(chosen).find(|file| link.is(file))
    }

    /// Opens the `.dwp` file: beside the module or its debug file, by the module's build ID, and in the directories that
    /// mirror the module's. Whose units it has is seen in it.
    pub(crate) fn open_package(&self) -> Option<File> {
        let own = Path::new(&self.query.module.path);
        let mut trusted: Vec<PathBuf> = self.debug_file.iter().map(with_suffix).collect();
        let by_build_id = build_id_name(&self.query.module.build_id);
        let below = own.strip_prefix("/").ok().and_then(plain);
        let names = [below, below.and_then(Path::file_name).map(Path::new)];
        let all = self
            .directories
            .iter()
            .cloned()
            .chain(DIRECTORIES.map(PathBuf::from));
        for base in all {
            trusted.extend(by_build_id.iter().map(|name| with_suffix(&base.join(name))));
            trusted.extend(
                names
                    .iter()
                    .flatten()
                    .map(|name| with_suffix(&base.join(name))),
            );
        }
        let here = trusted.iter().filter_map(|path| open(path));
        let beside = with_suffix(&own.to_owned());
        here.chain(self.open_chosen(&beside)).next()
    }

    /// Opens files that may be the `.dwo` file of this name: in the directory that it was compiled in, beside the module,
    /// and in the directories of this machine.
    pub(crate) fn objects(&self, directory: &str, name: &str) -> impl Iterator<Item = File> {
        let (directory, name) = (Path::new(directory), Path::new(name));
        let whole = directory.join(name);
        let file_name = name.file_name().map(Path::new);
        let below = whole.strip_prefix("/").ok().and_then(plain);
        let names = [below, plain(name), file_name];
        let trusted = self.directories.iter().flat_map(|base| {
            let joined = names.iter().flatten().map(|name| base.join(name));
            joined.collect::<Vec<_>>()
        });
        let trusted: Vec<PathBuf> = trusted.collect();
        let own = Path::new(&self.query.module.path).parent();
        let beside = [Some(name), file_name].into_iter().flatten();
        let beside = own
            .into_iter()
            .flat_map(|folder| beside.clone().map(|it| folder.join(it)));
        let chosen: Vec<PathBuf> = [whole].into_iter().chain(beside).collect();
        let here = trusted.into_iter().filter_map(|path| open(&path));
        here.chain(chosen.into_iter().flat_map(|path| self.open_chosen(&path)))
    }

    /// Opens the files at an absolute path that the target has chosen, as its process sees it and as this one does.
    fn open_chosen(&self, path: &Path) -> impl Iterator<Item = File> + use<> {
        let is_usable = path.is_absolute() && path.as_os_str().len() <= MAX_PATH;
        let process = is_usable.then(|| Process::open(self.query.process.pid).ok());
        let relative = path.strip_prefix("/").ok();
        let in_process = process.flatten().and_then(|it| it.open_own_file(relative?));
        let in_process = in_process.filter(is_elf);
        let here = is_usable.then(|| open(path)).flatten();
        in_process.into_iter().chain(here)
    }
}

fn path(bytes: &[u8]) -> Option<&Path> {
    let is_usable = !bytes.is_empty() && bytes.len() <= MAX_PATH;
    is_usable.then(|| Path::new(OsStr::from_bytes(bytes)))
}

fn with_suffix(path: &PathBuf) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".dwp");
    name.into()
}

/// Opens an ELF file, unless it is in a file system of the kernel, whose files can do anything when they are opened.
fn open(path: &Path) -> Option<File> {
    // Those of /proc, of tracing and of others have no size.
    let is_usual = fs::metadata(path).is_ok_and(|it| it.is_file() && it.len() > 0);
    let is_usual = is_usual && statfs(path).is_ok_and(|it| it.filesystem_type() != SYSFS_MAGIC);
    let file = is_usual
        .then(|| module::open_regular(path).ok().flatten())
        .flatten();
    file.filter(is_elf)
}

fn is_elf(file: &File) -> bool {
    let size = file.metadata().map_or(0, |it| it.len());
    (1..=MAX_SIZE).contains(&size) && starts_as_elf(file)
}
