//! Where a recording is kept that could not be written or sent as requested.

use std::path::{Path, PathBuf};

use otelctx_profile::Format;

/// Directories on other file systems than a full one, in the order in which they are tried after the
/// directory for temporary files.
const DIRECTORIES: [&str; 2] = ["/var/tmp", "/dev/shm"];

/// Returns an unused file name in the current directory, for a profile that was not sent.
pub(super) fn name() -> PathBuf {
    file_name(".otlp").into()
}

/// Returns the paths to try in place of `path`, which could not be written, in the same format. A file
/// of another user, or a link, is never replaced there.
pub(super) fn places(path: &Path) -> impl Iterator<Item = PathBuf> {
    let name = file_name(Format::from_path(path).map_or(".otlp", Format::extension));
    let temporary = std::env::temp_dir();
    let others = DIRECTORIES.map(PathBuf::from);
    let all = std::iter::once(temporary)
        .chain(others)
        .map(move |it| it.join(&name));
    all.filter(|path| path.is_absolute() && path.symlink_metadata().is_err())
}

fn file_name(extension: &str) -> String {
    format!("unsent-{}{extension}", std::process::id())
}
