//! Checks that a version has the offsets of another one with the same minor number: those of
//! `_PyRuntime` have differed between them, the others have not.

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
            Some(_) => Err(RuntimeError::new(format!(
                "version {version} is not supported: its layout is not that of {row}"
            ))),
            None => Err(RuntimeError::new(format!(
                "version {version} is not supported: its layout cannot be compared with that of {row}"
            ))),
        }
    }
}

/// The offsets of the same version on aarch64, where a `pthread_mutex_t` takes 48 bytes instead of 40: two
/// of them, of the GIL, are before the others from 3.9 to 3.11. From 3.13 on, versions describe themselves.
fn offsets_of_aarch64(
    row: Version,
    offsets: RuntimeOffsets,
) -> Result<RuntimeOffsets, RuntimeError> {
    const MORE: u64 = 16;
    match row.series() {
        (3, 9..=11) => Ok(RuntimeOffsets {
            current: offsets.current.map(|at| at + MORE),
            tss_key: offsets.tss_key.map(|at| at + MORE),
            ..offsets
        }),
        (3, 13..) => Ok(offsets),
        _ => Err(RuntimeError::new(format!(
            "version {row} is supported on x86-64 only"
        ))),
    }
}

#[cfg(test)]
mod tests {
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

    /// By Debian's 3.9.2, 3.11.2 and 3.13.5 for arm64.
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
        let unknown = "version 3.12.1 is supported on x86-64 only".to_owned();
        assert_eq!(check([3, 12, 1], used(None, 1544)), Err(unknown));
    }
}
