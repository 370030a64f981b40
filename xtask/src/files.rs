//! Files, with errors that name them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Turns an error into a message that names a path.
pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> String + '_ {
    move |error| format!("{}: {error}", path.display())
}

pub(crate) fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(at(file))
}

/// Writes a file, in a folder that is created if it is missing.
pub(crate) fn write(file: &Path, content: impl AsRef<[u8]>) -> Result<(), String> {
    create_parent(file)?;
    fs::write(file, content).map_err(at(file))
}

/// Replaces a file by a copy of another one. A program that runs from the old one is not affected.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), String> {
    create_parent(to)?;
    let _ = fs::remove_file(to);
    fs::copy(from, to).map(drop).map_err(at(from))
}

fn create_parent(file: &Path) -> Result<(), String> {
    file.parent().map_or(Ok(()), |folder| {
        fs::create_dir_all(folder).map_err(at(folder))
    })
}

/// Creates a folder without content.
pub(crate) fn create_empty(folder: &Path) -> Result<(), String> {
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).map_err(at(folder))
}

/// The paths of a folder's entries, in the order of their names.
pub(crate) fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(at(folder))?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort_unstable();
    Ok(paths)
}

/// The path of a folder's only entry whose name ends so.
pub(crate) fn only_entry(folder: &Path, ending: &str) -> Result<PathBuf, String> {
    let mut paths = entries(folder)?;
    paths.retain(|path| path.to_string_lossy().ends_with(ending));
    match &mut paths[..] {
        [path] => Ok(std::mem::take(path)),
        _ => Err(format!("{} has not one entry *{ending}", folder.display())),
    }
}
