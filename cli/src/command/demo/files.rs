//! The output directory of the recording, in which no file is overwritten.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::Error;

const NAMES: [&str; 5] = [
    "profile.otlp",
    "profile.pb.gz",
    "profile.json.gz",
    "profile.svg",
    "profile.folded",
];

/// The default directory; a number is appended if it exists.
const DIRECTORY: &str = "otelctx-demo";
/// Maximum number to append.
const MAX_SUFFIX: u32 = 1000;

/// Checks that no file in the directory `named` would be overwritten, and creates it.
pub(super) fn prepare(named: &Path) -> Result<(), Error> {
    for name in NAMES {
        let path = named.join(name);
        if path.symlink_metadata().is_ok() {
            return Err(Error::OutputExists(path));
        }
    }
    // A failure should show before the recording, not after it.
    let made = fs::create_dir_all(named);
    let writable = made.and_then(|()| {
        nix::unistd::access(named, nix::unistd::AccessFlags::W_OK).map_err(io::Error::from)
    });
    writable.map_err(|why| cannot(named, why))
}

/// Returns the directory `named`, or a new one, and the paths of the files in it.
pub(super) fn choose(named: Option<PathBuf>) -> Result<(PathBuf, Vec<PathBuf>), Error> {
    let directory = named.map_or_else(make_new, Ok)?;
    let files = NAMES.iter().map(|name| directory.join(name)).collect();
    Ok((directory, files))
}

fn cannot(directory: &Path, why: io::Error) -> Error {
    Error::OutputDirectory {
        path: directory.to_owned(),
        why,
    }
}

/// Creates a new directory: in the current one, else in the one for temporary files.
fn make_new() -> Result<PathBuf, Error> {
    // Relative, so that the commands that open the files stay short.
    make_in(Path::new("")).or_else(|_| {
        let temporary = std::env::temp_dir();
        make_in(&temporary).map_err(|why| cannot(&temporary.join(DIRECTORY), why))
    })
}

fn make_in(parent: &Path) -> io::Result<PathBuf> {
    for number in 1..=MAX_SUFFIX {
        let name = match number {
            1 => DIRECTORY.to_owned(),
            number => format!("{DIRECTORY}-{number}"),
        };
        let directory = parent.join(name);
        match fs::create_dir(&directory) {
            Ok(()) => return Ok(directory),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}
