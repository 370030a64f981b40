//! Finds the files of a recording's modules after it was made, possibly on another machine.

use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use otelctx_profile::sample::format::hexadecimal;
use otelctx_profile::{Identity, UnnamedModule};
use otelctx_remote::process::processes;
use otelctx_remote::{Process, module};

use crate::debug_file::{DIRECTORIES, plain};
use crate::identity::head_tail_hash;
use crate::server::{self, ServedFile, SharedServer};

/// Where distributions install files by their build IDs, beside [`DIRECTORIES`] (Fedora's
/// `/usr/lib/.build-id` leads to programs and libraries).
const BY_BUILD_ID: &str = "/usr/lib";
/// How long to search the mappings of living processes.
const PROCESSES_TIMEOUT: Duration = Duration::from_secs(10);
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
    find_in_processes(modules, &mut files);
    if let Some(server) = server {
        for (module, file) in modules.iter().zip(&mut files).filter(|it| it.1.is_none()) {
            let (build_id, kind) = (&module.identity.build_id, ServedFile::Executable);
            // Another file than was asked for is as good as none.
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
        places.extend(below.map(|below| directory.join(below)));
        places.extend(
            below
                .and_then(Path::file_name)
                .map(|name| directory.join(name)),
        );
    }
    if let Some((first, rest)) = module.identity.build_id.split_first()
        && !rest.is_empty()
    {
        let name = format!(".build-id/{first:02x}/{}", hexadecimal(rest));
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

/// Finds the files that are not found yet among the mappings of living processes: they may be deleted,
/// or in another mount namespace.
fn find_in_processes(modules: &[UnnamedModule], files: &mut [Option<File>]) {
    let deadline = Instant::now() + PROCESSES_TIMEOUT;
    let missing = |files: &[Option<File>]| {
        let mut missing = files.iter().zip(modules);
        missing.any(|(file, module)| file.is_none() && !module.identity.build_id.is_empty())
    };
    // Those of processes that this user may not inspect cannot serve.
    for pid in processes().unwrap_or_default() {
        if Instant::now() >= deadline || !missing(files) {
            return;
        }
        let Ok(process) = Process::open(pid) else {
            continue;
        };
        let _ = process.mappings(&mut |mapping| {
            if !mapping.permissions.execute || mapping.inode == 0 {
                return ControlFlow::Continue(());
            }
            for (module, file) in modules.iter().zip(&mut *files) {
                let build_id = &module.identity.build_id;
                if file.is_none()
                    && !build_id.is_empty()
                    && file_name(mapping.name) == file_name(module.path.as_bytes())
                {
                    let range = (mapping.start, mapping.end);
                    *file = process.mapped_file_by_build_id(range, mapping.name, build_id);
                }
            }
            ControlFlow::Continue(())
        });
    }
}

fn file_name(path: &[u8]) -> Option<&[u8]> {
    let path = path.strip_suffix(DELETED.as_bytes()).unwrap_or(path);
    let name = Path::new(std::ffi::OsStr::from_bytes(path)).file_name()?;
    Some(name.as_bytes())
}
