//! Finds the files of a recording's modules after it was made, possibly on another machine.

use std::fs::File;
use std::path::{Path, PathBuf};

use otelctx_remote::module;
use otelctx_sample::{Identity, UnnamedModule};

use crate::debug_file::{DIRECTORIES, build_id_name, plain};
use crate::identity::head_tail_hash;
use crate::living::LivingFiles;
use crate::server::{self, ServedFile, SharedServer};

/// The directory in which distributions install files by their build IDs, beside [`DIRECTORIES`]
/// (Fedora's `/usr/lib/.build-id` leads to programs and libraries).
const BY_BUILD_ID: &str = "/usr/lib";
/// The kernel's suffix for the name of a deleted file.
const DELETED: &str = " (deleted)";

/// Finds the file of each module: at its path; by its build ID, its path or its file name in one of
/// `directories`; by its build ID in the system's directories for debug files; or in a living process
/// that has mapped it; or on `server`. A file must have the module's build ID, or without one its hash.
#[must_use]
pub fn find_files(
    modules: &[UnnamedModule],
    directories: &[PathBuf],
    server: Option<&SharedServer>,
) -> Vec<Option<File>> {
    let find = |module: &UnnamedModule| {
        let mut places = places(module, directories).into_iter();
        places.find_map(|path| open(&path, &module.identity))
    };
    let mut files: Vec<Option<File>> = modules.iter().map(find).collect();
    let is_missing = |(module, file): (&UnnamedModule, &Option<File>)| {
        file.is_none() && !module.identity.build_id.is_empty()
    };
    if modules.iter().zip(&files).any(is_missing) {
        let living = LivingFiles::search();
        for (module, file) in modules.iter().zip(&mut files).filter(|it| it.1.is_none()) {
            *file = living.open(&module.identity.build_id);
        }
    }
    if let Some(server) = server {
        for (module, file) in modules.iter().zip(&mut files).filter(|it| it.1.is_none()) {
            let (build_id, kind) = (&module.identity.build_id, ServedFile::Executable);
            // A file with another build ID is of no use.
            *file = server::download(server, build_id, kind).unwrap_or(None);
        }
    }
    files
}

fn places(module: &UnnamedModule, directories: &[PathBuf]) -> Vec<PathBuf> {
    let path = module.path.strip_suffix(DELETED).unwrap_or(&module.path);
    let mut places = vec![PathBuf::from(path)];
    // The recording may be hostile: its paths stay below the directories.
    let below = Path::new(path).strip_prefix("/").ok().and_then(plain);
    for directory in directories {
        let names = [below, below.and_then(Path::file_name).map(Path::new)];
        places.extend(names.into_iter().flatten().map(|name| directory.join(name)));
    }
    if let Some(name) = build_id_name(&module.identity.build_id) {
        let system = DIRECTORIES.iter().chain([&BY_BUILD_ID]).map(Path::new);
        for directory in directories.iter().map(PathBuf::as_path).chain(system) {
            places.push(directory.join(&name));
            places.push(directory.join(format!("{name}.debug")));
        }
    }
    places
}

/// Opens a file if it is this one, and not only its debug information.
fn open(path: &Path, identity: &Identity) -> Option<File> {
    let file = module::open_regular(path).ok()??;
    is_same(&file, identity).then_some(file)
}

fn is_same(file: &File, identity: &Identity) -> bool {
    match &identity.build_id[..] {
        [] => identity.htlhash.is_some() && head_tail_hash(file).ok() == identity.htlhash,
        build_id => module::code_build_id(file).is_some_and(|found| found == build_id),
    }
}
