//! The output directory of the recording, in which no file is overwritten.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// A file of each format.
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

/// The directory to write to.
#[derive(Debug)]
pub(super) enum Files {
    /// The directory that the user named.
    Named(PathBuf),
    /// A new directory.
    New,
}

impl Files {
    /// Chooses the directory, and checks that no file would be overwritten.
    pub(super) fn plan(named: Option<&Path>) -> Result<Self, Error> {
        let Some(directory) = named else {
            return Ok(Self::New);
        };
        for name in NAMES {
            let path = directory.join(name);
            if path.symlink_metadata().is_ok() {
                return Err(Error::OutputExists(path));
            }
        }
        // A failure should show before the recording, not after it.
        make_named(directory)?;
        Ok(Self::Named(directory.to_owned()))
    }

    /// Creates the directory. Returns it and the paths of the files.
    pub(super) fn make(self) -> Result<(PathBuf, Vec<PathBuf>), Error> {
        let directory = match self {
            Self::Named(directory) => directory,
            Self::New => make_new()?,
        };
        let files = NAMES.iter().map(|name| directory.join(name)).collect();
        Ok((directory, files))
    }
}

fn make_named(directory: &Path) -> Result<(), Error> {
    let made = fs::create_dir_all(directory);
    let writable = made.and_then(|()| {
        nix::unistd::access(directory, nix::unistd::AccessFlags::W_OK).map_err(io::Error::from)
    });
    writable.map_err(|why| cannot(directory, why))
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
