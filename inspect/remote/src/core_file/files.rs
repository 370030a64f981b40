//! Finds the files that a process had mapped on the reader's machine.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::module::{self, open_regular};

/// The kernel's suffix for the name of a deleted file.
const DELETED: &[u8] = b" (deleted)";

/// Finds the file that was mapped as `name`, by its build ID, in the tree at `root`: at its path,
/// where distributions and debuginfod store files by build ID, or by its file name.
pub(crate) fn find(root: &Path, name: &[u8], build_id: &[u8]) -> Option<File> {
    places(root, name, build_id)
        .iter()
        .filter_map(|path| open_regular(path).ok()?)
        .find(|file| module::code_build_id(file).as_deref() == Some(build_id))
}

fn places(root: &Path, name: &[u8], build_id: &[u8]) -> Vec<PathBuf> {
    let mut places = Vec::new();
    let name = name.strip_suffix(DELETED).unwrap_or(name);
    // The core file is untrusted: do not open paths outside the root.
    let relative: Option<PathBuf> = Path::new(OsStr::from_bytes(name))
        .components()
        .filter(|part| *part != Component::RootDir)
        .map(|part| matches!(part, Component::Normal(_)).then_some(part))
        .collect();
    let relative = relative.filter(|path| !path.as_os_str().is_empty());
    if let Some(relative) = &relative {
        places.push(root.join(relative));
    }
    let id = hexadecimal(build_id);
    if let Some((first, rest)) = id.split_at_checked(2) {
        for directory in ["usr/lib/.build-id", "usr/lib/debug/.build-id", ".build-id"] {
            places.push(root.join(directory).join(first).join(rest));
        }
        places.push(root.join(&id).join("executable"));
    }
    if let Some(file_name) = relative.as_deref().and_then(Path::file_name) {
        places.push(root.join(file_name));
    }
    places
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_place_lies_outside_of_the_root() {
        let root = Path::new("/sysroot");
        let names: [&[u8]; 5] = [
            b"/usr/bin/shop (deleted)",
            b"/../../etc/shadow",
            b"/a/../../../etc/shadow",
            b"/",
            b"",
        ];
        for name in names {
            for place in places(root, name, &[0xab, 0xcd, 0xef]) {
                assert!(place.starts_with(root), "{place:?}");
                assert!(!place.components().any(|part| part == Component::ParentDir));
            }
        }
        assert_eq!(
            places(root, names[0], &[0xab, 0xcd, 0xef]),
            [
                "/sysroot/usr/bin/shop",
                "/sysroot/usr/lib/.build-id/ab/cdef",
                "/sysroot/usr/lib/debug/.build-id/ab/cdef",
                "/sysroot/.build-id/ab/cdef",
                "/sysroot/abcdef/executable",
                "/sysroot/shop",
            ]
            .map(PathBuf::from)
        );
    }
}
