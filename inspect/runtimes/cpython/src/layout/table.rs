//! The layouts of versions that do not describe themselves, from `offsets.csv`.

use super::{
    CallEnd, CodeOffsets, FrameOffsets, Gil, Instruction, InterpreterOffsets, Layout, LineFormat,
    ObjectLayout, RuntimeOffsets, TextLayout, ThreadOffsets, TopFrame,
};
use crate::version::Version;

/// Lines of `version,field,offset`, after a header.
const OFFSETS: &str = include_str!("offsets.csv");
/// Minor versions in the table.
pub(super) const SERIES: [(u8, u8); 8] = [
    (2, 7),
    (3, 6),
    (3, 7),
    (3, 8),
    (3, 9),
    (3, 10),
    (3, 11),
    (3, 12),
];

/// The layout of a version: that of the nearest one in the table with the same minor number, within
/// which these structures have not changed.
pub(super) fn layout(version: Version) -> Option<Layout> {
    if !SERIES.contains(&version.series()) {
        return None;
    }
    let lines = OFFSETS.lines().skip(1).filter_map(|line| {
        let mut cells = line.split(',');
        let row = cells.next()?;
        Some((row, cells.next()?, cells.next()?.parse().ok()?))
    });
    let lines: Vec<(&str, &str, u64)> = lines.collect();
    let distance = |row: &str| {
        let row = Version::parse(row.as_bytes())?;
        let is_same = row.series() == version.series();
        is_same.then(|| row.micro.abs_diff(version.micro))
    };
    let rows = lines
        .iter()
        .filter_map(|(row, ..)| Some((distance(row)?, *row)));
    let (_, nearest) = rows.min_by_key(|(distance, _)| *distance)?;
    let fields = lines.iter().filter(|(row, ..)| *row == nearest);
    let fields = fields.map(|(_, field, offset)| (*field, *offset));
    build(&Row(fields.collect()), Version::parse(nearest.as_bytes())?)
}

/// The offsets of one version.
struct Row(Vec<(&'static str, u64)>);

impl Row {
    fn get(&self, field: &str) -> Option<u64> {
        let found = self.0.iter().find(|(name, _)| *name == field);
        found.map(|(_, offset)| *offset)
    }
}

fn build(row: &Row, version: Version) -> Option<Layout> {
    let get = |field| row.get(field);
    let series = version.series();
    let runtime = || {
        let current = get("_PyRuntimeState.gilstate.tstate_current");
        let key = get("_PyRuntimeState.autoTSSkey");
        Some(RuntimeOffsets {
            interpreters: get("_PyRuntimeState.interpreters.head")?,
            current,
            tss_key: key.or_else(|| get("_PyRuntimeState.gilstate.autoTSSkey")),
        })
    };
    let thread = ThreadOffsets {
        next: get("PyThreadState.next")?,
        interpreter: get("PyThreadState.interp")?,
        id: get("PyThreadState.thread_id")?,
        frame: match get("_PyCFrame.current_frame") {
            None => TopFrame::Direct(get("PyThreadState.frame")?),
            Some(current) => TopFrame::CFrame {
                cframe: get("PyThreadState.cframe")?,
                current,
            },
        },
        call: get("PyThreadState.cframe"),
        attached: None,
    };
    Some(Layout {
        version,
        runtime: match series {
            (2, _) | (3, 0..=6) => None,
            _ => Some(runtime()?),
        },
        interpreter: InterpreterOffsets {
            next: get("PyInterpreterState.next")?,
            threads: get("PyInterpreterState.threads.head")
                .or_else(|| get("PyInterpreterState.tstate_head"))?,
        },
        thread,
        gil: match get("PyInterpreterState.ceval.gil") {
            None => Gil::Current,
            Some(gil) => Gil::OfInterpreter {
                gil,
                locked: get("gil.locked")?,
                last_holder: get("gil.last_holder")?,
                enabled: None,
            },
        },
        object: ObjectLayout::Counted,
        frame: frame(row, series)?,
        code: CodeOffsets {
            filename: get("PyCodeObject.co_filename")?,
            name: get("PyCodeObject.co_name")?,
            qualified_name: get("PyCodeObject.co_qualname"),
            first_line: get("PyCodeObject.co_firstlineno")?,
            line_table: get("PyCodeObject.co_linetable")
                .or_else(|| get("PyCodeObject.co_lnotab"))?,
            line_format: match series {
                (2, _) | (3, 0..=5) => LineFormat::Unsigned,
                (3, 6..=9) => LineFormat::Signed,
                (3, 10) => LineFormat::Ranges,
                _ => LineFormat::Locations,
            },
            instructions: get("PyCodeObject.co_code_adaptive"),
            copies: None,
            is_numbered: series >= (3, 12),
            // Include/cpython/code.h: `co_zombieframe` and `co_weakreflist`; in 3.11 `co_warmup`.
            changing_words: match series {
                // The last word is not part of the object.
                (2, _) => 7 << 13,
                (3, 0..=7) => 3 << 14,
                (3, 8..=10) => 1 << 15,
                (3, 11) => 1 << 5,
                _ => 0,
            },
        },
        text: TextLayout::of(series),
    })
}

fn frame(row: &Row, series: (u8, u8)) -> Option<FrameOffsets> {
    let get = |field| row.get(field);
    if let Some(at) = get("PyFrameObject.f_lasti") {
        return Some(FrameOffsets {
            previous: get("PyFrameObject.f_back")?,
            code: get("PyFrameObject.f_code")?,
            instruction: Instruction::Last {
                at,
                unit: if series == (3, 10) { 2 } else { 1 },
                // Include/frameobject.h
                traced: match series {
                    (2, _) | (3, 0..=6) => Some((80, 124)),
                    (3, 7..=9) => Some((80, 108)),
                    _ => None,
                },
            },
            copy: None,
            end: CallEnd::Every,
        });
    }
    let owner = get("_PyInterpreterFrame.owner")?;
    let end = match get("_PyInterpreterFrame.is_entry") {
        Some(is_entry) => CallEnd::Flag { is_entry, owner },
        None => CallEnd::Shim {
            owner,
            // FRAME_OWNED_BY_CSTACK
            least: 3,
        },
    };
    Some(FrameOffsets {
        previous: get("_PyInterpreterFrame.previous")?,
        code: get("_PyInterpreterFrame.f_code")?,
        instruction: Instruction::Address(get("_PyInterpreterFrame.prev_instr")?),
        copy: None,
        end,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_minor_version_has_a_layout() {
        for (major, minor) in SERIES {
            assert!(
                layout(Version::new(major, minor, 99)).is_some(),
                "{major}.{minor}"
            );
        }
        assert_eq!(layout(Version::new(3, 5, 1)), None);
    }

    /// The offsets are those of the nearest version with the same minor number.
    #[test]
    fn a_layout_has_the_offsets_of_the_table() {
        let layout = layout(Version::new(3, 12, 8)).unwrap();
        let runtime = layout.runtime.unwrap();
        assert_eq!((runtime.interpreters, runtime.current), (40, None));
        assert_eq!(runtime.tss_key, Some(1544));
        let frame = TopFrame::CFrame {
            cframe: 56,
            current: 0,
        };
        assert_eq!((layout.thread.id, layout.thread.frame), (136, frame));
        assert_eq!(layout.code.instructions, Some(192));
    }
}
