//! Files and folders that tasks write. Errors name them.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use fs_err as fs;

/// Writes a file, in a folder that is created if it is missing.
pub(crate) fn write(file: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    create_parent(file)?;
    Ok(fs::write(file, content)?)
}

/// Writes a program of the shell.
pub(crate) fn write_script(file: &Path, script: &str) -> Result<()> {
    write(file, script)?;
    Ok(fs::set_permissions(file, PermissionsExt::from_mode(0o755))?)
}

/// Replaces a file by a copy of another one. A program that runs from the old one is not affected.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    create_parent(to)?;
    let _ = fs::remove_file(to);
    fs::copy(from, to)?;
    Ok(())
}

/// As [`copy`], into a folder.
pub(crate) fn copy_into(from: &Path, folder: &Path) -> Result<()> {
    copy(from, &folder.join(from.file_name().unwrap_or_default()))
}

/// Replaces what is at a path by a symbolic link.
pub(crate) fn link(target: impl AsRef<Path>, link: &Path) -> Result<()> {
    create_parent(link)?;
    let _ = fs::remove_file(link);
    Ok(fs_err::os::unix::fs::symlink(target, link)?)
}

fn create_parent(file: &Path) -> Result<()> {
    Ok(file.parent().map_or(Ok(()), fs::create_dir_all)?)
}

/// Creates a folder without content.
pub(crate) fn create_empty(folder: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(folder);
    Ok(fs::create_dir_all(folder)?)
}

/// The paths of a folder's entries, in the order of their names.
pub(crate) fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)?.flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort_unstable();
    Ok(paths)
}

/// The path of a folder's only entry whose name ends so.
pub(crate) fn only_entry(folder: &Path, ending: &str) -> Result<PathBuf> {
    let mut paths = entries(folder)?;
    paths.retain(|path| path.to_string_lossy().ends_with(ending));
    match &mut paths[..] {
        [path] => Ok(std::mem::take(path)),
        _ => bail!("{} has not one entry *{ending}", folder.display()),
    }
}

/// The rows of a table with tabs between its columns, without lines that start with `#`.
pub(crate) fn table<const N: usize>(text: &str) -> Result<Vec<[&str; N]>> {
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    let columns = rows.map(|row| {
        let columns = row.split('\t').collect::<Vec<_>>().try_into();
        columns.map_err(|_| anyhow!("not {N} columns: {row}"))
    });
    columns.collect()
}

/// Has `install` fill an empty folder, unless it did so with the same `content`.
pub(crate) fn once(
    folder: &Path,
    content: &str,
    install: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let stamp = folder.join(".installed");
    if fs::read_to_string(&stamp).is_ok_and(|text| text == content) {
        println!("have {content} in {}", folder.display());
        return Ok(());
    }
    println!("installing {content} into {}", folder.display());
    create_empty(folder)?;
    install().with_context(|| format!("{}", folder.display()))?;
    write(&stamp, content)
}
