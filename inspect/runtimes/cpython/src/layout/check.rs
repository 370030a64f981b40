//! Checks that a version has the offsets of another one with the same minor number: only those of
//! `_PyRuntime` have differed between such versions.

use otelctx_reader::remote::Machine;
use otelctx_reader::runtime::RuntimeError;

use super::{Layout, RuntimeOffsets};
use crate::version::Version;

/// `gilstate.tstate_current` of 3.7.0 to 3.7.3.
const EARLY_3_7_CURRENT: u64 = 1392;

/// Offsets in `_PyRuntime` that exported functions use. `None` if they could not be decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UsedOffsets {
    /// [`RuntimeOffsets::current`], by `_PyThreadState_UncheckedGet`.
    pub(crate) current: Option<u64>,
    /// [`RuntimeOffsets::tss_key`], by `PyGILState_GetThisThreadState`.
    pub(crate) tss_key: Option<u64>,
}

impl Layout {
    /// The offsets in `_PyRuntime` of this version.
    ///
    /// # Errors
    /// If the layout is that of another version, and it is not certain that this one has the same.
    pub(crate) fn checked(
        &self,
        version: Version,
        machine: Machine,
        offsets: RuntimeOffsets,
        used: UsedOffsets,
    ) -> Result<RuntimeOffsets, RuntimeError> {
        let row = self.version;
        let offsets = match machine {
            Machine::Aarch64 => offsets_of_aarch64(row, offsets)?,
            _ => offsets,
        };
        if row == version && machine == Machine::X86_64 || row.series() >= (3, 13) {
            return Ok(offsets);
        }
        let (expected, found) = match offsets.current {
            Some(expected) => (Some(expected), used.current),
            None => (offsets.tss_key, used.tss_key),
        };
        match found {
            Some(_) if found == expected => Ok(offsets),
            Some(EARLY_3_7_CURRENT) if row.series() == (3, 7) => Ok(RuntimeOffsets {
                current: found,
                tss_key: used.tss_key,
                ..offsets
            }),
            _ => {
                let why = if found.is_some() {
                    "is not"
                } else {
                    "cannot be compared with"
                };
                Err(RuntimeError::new(format!(
                    "version {version} is not supported: its layout {why} that of {row}"
                )))
            }
        }
    }
}

/// The offsets of the same version on aarch64, where a `pthread_mutex_t` takes 48 bytes instead of 40:
/// from 3.7 to 3.11, two of them, of the GIL, come before the other fields, and in 3.12 after them. From
/// 3.13 on, versions describe themselves.
fn offsets_of_aarch64(
    row: Version,
    offsets: RuntimeOffsets,
) -> Result<RuntimeOffsets, RuntimeError> {
    const MORE: u64 = 16;
    match row.series() {
        (3, 7..=11) => Ok(RuntimeOffsets {
            current: offsets.current.map(|at| at + MORE),
            tss_key: offsets.tss_key.map(|at| at + MORE),
            ..offsets
        }),
        (3, 12..) => Ok(offsets),
        _ => Err(RuntimeError::new(format!(
            "version {row} is supported on x86-64 only"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::Path;
    use std::process::{Command, Stdio};

    use otelctx_fixtures::python::Interpreter;
    use otelctx_reader::remote::TargetImage;

    use super::*;

    fn check(version: [u8; 3], used: UsedOffsets) -> Result<RuntimeOffsets, String> {
        check_on(Machine::X86_64, version, used)
    }

    fn check_on(
        machine: Machine,
        version: [u8; 3],
        used: UsedOffsets,
    ) -> Result<RuntimeOffsets, String> {
        let [major, minor, micro] = version;
        let version = Version::new(major, minor, micro);
        let layout = Layout::of(&TargetImage::new(), version, None).unwrap();
        let checked = layout.checked(version, machine, layout.runtime.unwrap(), used);
        checked.map_err(|error| error.to_string())
    }

    fn used(current: impl Into<Option<u64>>, tss_key: u64) -> UsedOffsets {
        UsedOffsets {
            current: current.into(),
            tss_key: Some(tss_key),
        }
    }

    #[test]
    fn the_layout_of_another_version_is_used_only_if_functions_agree() {
        let found = |checked: RuntimeOffsets| (checked.current, checked.tss_key);
        let nothing = UsedOffsets::default();
        let known = check([3, 7, 16], nothing).map(found);
        assert_eq!(known, Ok((Some(1480), Some(1504))));
        let same = check([3, 7, 9], used(1480, 1504)).map(found);
        assert_eq!(same, known);
        let early = check([3, 7, 2], used(1392, 1416)).map(found);
        assert_eq!(early, Ok((Some(1392), Some(1416))));
        let other = Err("version 3.7.2 is not supported: its layout is not that of 3.7.16".into());
        assert_eq!(check([3, 7, 2], used(1400, 1416)).map(found), other);
        let unknown = "version 3.8.1 is not supported: its layout cannot be compared with that of \
                       3.8.18";
        assert_eq!(check([3, 8, 1], nothing).map(found), Err(unknown.into()));
        // 3.12 has the key alone.
        let same = check([3, 12, 9], used(None, 1544)).map(found);
        assert_eq!(same, Ok((None, Some(1544))));
        let other = Err("version 3.12.9 is not supported: its layout is not that of 3.12.1".into());
        assert_eq!(check([3, 12, 9], used(None, 1552)).map(found), other);
    }

    /// The offsets are those of Debian's 3.9.2, 3.11.2 and 3.13.5 for arm64.
    #[test]
    fn offsets_on_aarch64_agree_with_functions() {
        let check = |version, used| {
            let checked = check_on(Machine::Aarch64, version, used);
            checked.map(|offsets| (offsets.current, offsets.tss_key))
        };
        let early = check([3, 9, 2], used(584, 600));
        assert_eq!(early, Ok((Some(584), Some(600))));
        let same = check([3, 11, 7], used(592, 608));
        assert_eq!(same, Ok((Some(592), Some(608))));
        // Also for the version of the table.
        assert!(check([3, 11, 7], used(576, 592)).is_err());
        assert!(check([3, 11, 7], UsedOffsets::default()).is_err());
        let none = check([3, 12, 1], used(None, 1544));
        assert_eq!(none, Ok((None, Some(1544))));
        assert!(check([3, 12, 1], used(None, 1560)).is_err());
    }

    /// Compares with the installed interpreters' headers, compiled for aarch64.
    #[test]
    fn offsets_on_aarch64_are_those_of_a_compiler() {
        let compiler = "aarch64-linux-gnu-gcc";
        if Command::new(compiler).arg("--version").output().is_err() {
            return eprintln!("skipped: no {compiler}");
        }
        for series in ["3.7", "3.8", "3.9", "3.10", "3.11", "3.12"] {
            for interpreter in Interpreter::with_version(series) {
                let paths = "import sysconfig; print(sysconfig.get_paths()['include'])";
                let headers = Command::new(&interpreter.path).args(["-c", paths]).output();
                let headers = String::from_utf8(headers.unwrap().stdout).unwrap();
                // Debian's lead to those of its own architecture.
                let is_usable = Path::new(headers.trim()).join("internal").is_dir()
                    && !interpreter.path.starts_with("/usr");
                if !is_usable {
                    eprintln!("skipped: no headers of {interpreter} for another architecture");
                    continue;
                }
                let version = Version::parse(interpreter.version.as_bytes()).unwrap();
                let layout = Layout::of(&TargetImage::new(), version, None).unwrap();
                let offsets = offsets_of_aarch64(layout.version, layout.runtime.unwrap()).unwrap();
                let mut compile = Command::new(compiler);
                compile.args(["-w", "-fsyntax-only", "-xc", "-", "-I", headers.trim()]);
                let mut compile = compile.stdin(Stdio::piped()).spawn().unwrap();
                let mut input = compile.stdin.take().unwrap();
                input
                    .write_all(assertions(version, offsets).as_bytes())
                    .unwrap();
                drop(input);
                assert!(compile.wait().unwrap().success(), "{interpreter}");
            }
        }
    }

    /// A program that compiles only if these are the offsets.
    fn assertions(version: Version, offsets: RuntimeOffsets) -> String {
        let (header, gilstate) = match version.series() {
            (3, 7) => ("pystate", "gilstate."),
            (3, 8) => ("pycore_pystate", "gilstate."),
            (3, 12) => ("pycore_runtime", ""),
            _ => ("pycore_runtime", "gilstate."),
        };
        let mut text = format!(
            "#define Py_BUILD_CORE 1\n#include <Python.h>\n#include <stddef.h>\n#include <internal/{header}.h>\n"
        );
        let fields = [
            ("interpreters.head".to_owned(), Some(offsets.interpreters)),
            (format!("{gilstate}tstate_current"), offsets.current),
            (format!("{gilstate}autoTSSkey"), offsets.tss_key),
        ];
        for (field, offset) in fields {
            if let Some(offset) = offset {
                let found = format!("offsetof(_PyRuntimeState, {field})");
                text += &format!("_Static_assert({found} == {offset}, \"{field}\");\n");
            }
        }
        text
    }
}
