//! Where V8 keeps its data: what `v8dbg_*` symbols say, and what no symbol says.
//!
//! V8 describes its structures to debuggers by constants (tools/gen-postmortem-metadata.py in V8), which Node.js exports.
//! What is missing there follows from what is there: [`Layout`] has both.

use std::fmt;
use std::ops::RangeInclusive;

use otelctx_reader::remote::elf::{Elf, ElfError};

/// Maximum size of an object whose fields are read, in bytes.
const MAX_OFFSET: i32 = 1 << 10;
/// First version whose structures are known: that of Node.js 22.
const FIRST_VERSION: Version = Version {
    major: 12,
    minor: 4,
};
/// From this version on, the distances in position tables have two more bits.
const DISTANCES_WITH_STATEMENTS: Version = Version {
    major: 14,
    minor: 0,
};
/// From this version on, translations are known.
const TRANSLATIONS: Version = Version {
    major: 13,
    minor: 0,
};
/// Number of words of the data for deoptimization before the first entry.
const DEOPT_ENTRIES: u64 = 12;

/// A version of V8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The instance types of objects: the kinds of V8's heap.
#[derive(Clone, Debug)]
pub(crate) struct Types {
    pub(crate) function: RangeInclusive<u16>,
    pub(crate) shared: u16,
    /// Newer versions wrap a `SharedFunctionInfo` that trusted objects refer to.
    pub(crate) shared_wrapper: Option<u16>,
    pub(crate) script: u16,
    pub(crate) scope_info: u16,
    pub(crate) code: u16,
    pub(crate) instruction_stream: u16,
    pub(crate) bytecode: u16,
    pub(crate) bytecode_wrapper: u16,
    pub(crate) interpreter_data: u16,
    /// Those of trusted objects, and others.
    pub(crate) byte_arrays: [u16; 2],
}

/// Offsets in structures, in bytes from their start, and other constants of one version of V8.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) version: Version,
    pub(crate) types: Types,
    pub(crate) map_type: u64,
    pub(crate) function_shared: u64,
    pub(crate) shared_name: u64,
    pub(crate) shared_script: u64,
    pub(crate) shared_flags: u64,
    /// `function_literal_id`, which is behind the flags.
    pub(crate) shared_literal: u64,
    pub(crate) script_source: u64,
    pub(crate) script_name: u64,
    /// `id`, which is behind the ends of lines.
    pub(crate) script_id: u64,
    pub(crate) code_start: u64,
    pub(crate) code_size: u64,
    pub(crate) code_flags: u64,
    pub(crate) bytecode_data: u64,
    /// Indexes in an optimized function's data for deoptimization.
    pub(crate) deopt_literals: u64,
    pub(crate) deopt_shared: u64,
    pub(crate) deopt_inlining: u64,
    /// Index of the first word of the first entry in that data. `None` in versions whose translations are others.
    pub(crate) deopt_entries: Option<u64>,
    /// The kind of code that is not optimized: kinds above are optimized.
    pub(crate) baseline: u32,
    pub(crate) scope_locals: u64,
    pub(crate) scope_first: u64,
    /// Distances in position tables have two more bits.
    pub(crate) has_statements: bool,
}

/// Offsets that no symbol has.
impl Layout {
    /// Returns whether code of a kind is a copy of V8's own.
    pub(crate) fn is_builtin(&self, kind: u32) -> bool {
        kind.checked_add(Self::BUILTIN_BEFORE_BASELINE) == Some(self.baseline)
    }

    /// Returns whether code of a kind executes a regular expression.
    pub(crate) fn is_regular_expression(&self, kind: u32) -> bool {
        kind.checked_add(Self::REGULAR_EXPRESSION_BEFORE_BASELINE) == Some(self.baseline)
    }

    /// `SharedFunctionInfo`: `function_data`, later `trusted_function_data`.
    pub(crate) const SHARED_DATA: u64 = 8;
    /// `Script`: `line_offset` and `column_offset`.
    pub(crate) const SCRIPT_LINE: u64 = 24;
    /// `Code`: the data for deoptimization; of baseline code, its bytecode.
    pub(crate) const CODE_DEOPT: u64 = 8;
    /// `Code`: the positions; of baseline code, the sizes of the code of bytecodes.
    pub(crate) const CODE_POSITIONS: u64 = 16;
    /// `BytecodeArray`: `source_position_table`.
    pub(crate) const BYTECODE_POSITIONS: u64 = 24;
    /// `InterpreterData`, `BytecodeWrapper`, `SharedFunctionInfoWrapper`: the object that they refer to.
    pub(crate) const WRAPPED: u64 = 8;
    /// `InterpreterData`: the copy of the interpreter's code.
    pub(crate) const INTERPRETER_COPY: u64 = 16;
    /// `InstructionStream`: the `Code` that it belongs to.
    pub(crate) const STREAM_CODE: u64 = 8;
    /// `InstructionStream`: its instructions.
    pub(crate) const STREAM_HEADER: u64 = 32;
    /// Alignment of instructions of generated functions.
    pub(crate) const CODE_ALIGNMENT: u64 = 64;
    /// Arrays: their length, and their elements.
    pub(crate) const ARRAY_LENGTH: u64 = 8;
    pub(crate) const ARRAY_DATA: u64 = 16;
    /// Mask of the code's kind in its flags.
    pub(crate) const CODE_KIND: u32 = 15;
    /// The kind of copies of builtins, and that of regular expressions, before that of code that is not optimized. V8 14 has
    /// one more kind before all of them.
    const BUILTIN_BEFORE_BASELINE: u32 = 8;
    const REGULAR_EXPRESSION_BEFORE_BASELINE: u32 = 7;

    /// Reads the constants of a module. `None` if it has none; the inner error says why its V8 is not supported.
    ///
    /// # Errors
    /// If the module cannot be read.
    pub(crate) fn read(elf: &Elf<'_>) -> Result<Option<Result<Self, String>>, ElfError> {
        let constants = Constants(elf);
        // Without its value: older versions keep values of 0 in memory that is not in the file.
        if elf.exported_symbol(b"v8dbg_SmiTag")?.is_none() {
            return Ok(None);
        }
        let version = constants.version()?;
        let name = match version {
            Some(Version { major, minor }) => format!("V8 {major}.{minor}"),
            None => "V8 of an unknown version".into(),
        };
        let first = FIRST_VERSION;
        if version.is_some_and(|version| version < first) {
            let first = format!("{}.{}", first.major, first.minor);
            return Ok(Some(Err(format!(
                "{name} is not supported: {first} is the first version that is"
            ))));
        }
        let found = Self::of(&constants)?;
        let is_narrow = found.is_some() && !constants.are_full_pointers()?;
        Ok(Some(match found {
            Some(_) if is_narrow => Err(format!("{name} has pointers of 32 bits")),
            Some(layout) => Ok(layout),
            None => Err(format!(
                "{name} is not supported: it lacks constants (`v8dbg_`) of its structures"
            )),
        }))
    }

    fn of(constants: &Constants<'_, '_>) -> Result<Option<Self>, ElfError> {
        macro_rules! get {
            ($($read:tt)*) => {
                match constants.$($read)*? {
                    Some(value) => value,
                    None => return Ok(None),
                }
            };
        }
        let version = get!(version());
        let types = get!(types());
        let line_ends = get!(offset(&["class_Script__line_ends__Object"]));
        let flags = get!(offset(&["class_SharedFunctionInfo__flags__int"]));
        let shared_name = get!(offset(&[
            "class_SharedFunctionInfo__name_or_scope_info__Tagged_NameOrScopeInfoT_",
            "class_SharedFunctionInfo__name_or_scope_info__Tagged_Object_",
        ]));
        let deopt_shared = get!(offset(&[
            "DeoptimizationDataWrappedSharedFunctionInfoIndex",
            "DeoptimizationDataSharedFunctionInfoIndex",
        ]));
        let deopt_entries = (version >= TRANSLATIONS).then_some(DEOPT_ENTRIES);
        Ok(Some(Self {
            version,
            types,
            map_type: get!(offset(&["class_Map__instance_type__uint16_t"])),
            function_shared: get!(offset(&["class_JSFunction__shared__SharedFunctionInfo"])),
            shared_name,
            shared_script: get!(offset(&[
                "class_SharedFunctionInfo__script__Tagged_HeapObject_"
            ])),
            shared_flags: flags,
            shared_literal: flags + 4,
            script_source: get!(offset(&["class_Script__source__Object"])),
            script_name: get!(offset(&["class_Script__name__Object"])),
            script_id: line_ends + 8,
            code_start: get!(offset(&["class_Code__instruction_start__Address"])),
            code_size: get!(offset(&["class_Code__instruction_size__int"])),
            code_flags: get!(offset(&["class_Code__flags__uint32_t"])),
            bytecode_data: get!(offset(&["class_BytecodeArray__data__uintptr_t"])),
            deopt_literals: get!(offset(&["DeoptimizationDataLiteralArrayIndex"])),
            deopt_shared,
            deopt_inlining: get!(offset(&["DeoptimizationDataInliningPositionsIndex"])),
            deopt_entries,
            baseline: get!(offset(&["CodeKindBaseline"])) as u32,
            scope_locals: get!(offset(&["scopeinfo_idx_ncontextlocals"])),
            scope_first: get!(offset(&["scopeinfo_idx_first_vars"])),
            has_statements: version >= DISTANCES_WITH_STATEMENTS,
        }))
    }
}

/// The constants of a module.
struct Constants<'a, 'e>(&'a Elf<'e>);

impl Constants<'_, '_> {
    /// A constant, `None` if it is not exported.
    fn exported(&self, name: &str) -> Result<Option<i32>, ElfError> {
        let Some(symbol) = self.0.exported_symbol(name.as_bytes())? else {
            return Ok(None);
        };
        let mut bytes = [0; 4];
        self.0.read_at(symbol.value, &mut bytes)?;
        Ok(Some(i32::from_le_bytes(bytes)))
    }

    fn get(&self, name: &str) -> Result<Option<i32>, ElfError> {
        self.exported(&format!("v8dbg_{name}"))
    }

    /// The first that there is of a constant's names, if it is an offset or a small number.
    fn offset(&self, names: &[&str]) -> Result<Option<u64>, ElfError> {
        for name in names {
            if let Some(value) = self.get(name)? {
                let is_offset = (0..MAX_OFFSET).contains(&value);
                return Ok(is_offset.then_some(value as u64));
            }
        }
        Ok(None)
    }

    fn instance_type(&self, name: &str) -> Result<Option<u16>, ElfError> {
        Ok(self.get(name)?.and_then(|value| u16::try_from(value).ok()))
    }

    fn version(&self) -> Result<Option<Version>, ElfError> {
        let part = |name: &str| {
            let value = self.exported(&format!("_ZN2v88internal7Version6{name}_E"))?;
            Ok::<_, ElfError>(value.and_then(|value| u32::try_from(value).ok()))
        };
        let (major, minor) = (part("major")?, part("minor")?);
        let parts = major.zip(minor);
        Ok(parts.map(|(major, minor)| Version { major, minor }))
    }

    /// Returns whether words of the heap have 64 bits: a string has its map, its hash, and its length.
    fn are_full_pointers(&self) -> Result<bool, ElfError> {
        let length = self.offset(&["class_String__length__int32_t"])?;
        let data = self.offset(&["class_FixedArray__data__uintptr_t"])?;
        let frame = self.get("off_fp_function")?;
        Ok(length == Some(12) && data == Some(Layout::ARRAY_DATA) && frame == Some(-16))
    }

    fn types(&self) -> Result<Option<Types>, ElfError> {
        let shared_wrapper =
            self.instance_type("type_SharedFunctionInfoWrapper__SHARED_FUNCTION_INFO_WRAPPER_TYPE");
        let names = [
            "FirstJSFunctionType",
            "LastJSFunctionType",
            "type_SharedFunctionInfo__SHARED_FUNCTION_INFO_TYPE",
            "type_Script__SCRIPT_TYPE",
            "type_ScopeInfo__SCOPE_INFO_TYPE",
            "type_Code__CODE_TYPE",
            "type_InstructionStream__INSTRUCTION_STREAM_TYPE",
            "type_BytecodeArray__BYTECODE_ARRAY_TYPE",
            "type_BytecodeWrapper__BYTECODE_WRAPPER_TYPE",
            "type_InterpreterData__INTERPRETER_DATA_TYPE",
            "type_TrustedByteArray__TRUSTED_BYTE_ARRAY_TYPE",
            "type_ByteArray__BYTE_ARRAY_TYPE",
        ];
        let mut found = [0; 12];
        for (name, found) in names.iter().zip(&mut found) {
            match self.instance_type(name)? {
                Some(value) => *found = value,
                None => return Ok(None),
            }
        }
        let [
            first,
            last,
            shared,
            script,
            scope_info,
            code,
            instruction_stream,
            rest @ ..,
        ] = found;
        let [
            bytecode,
            bytecode_wrapper,
            interpreter_data,
            byte_arrays @ ..,
        ] = rest;
        Ok(Some(Types {
            function: first..=last,
            shared,
            shared_wrapper: shared_wrapper?,
            script,
            scope_info,
            code,
            instruction_stream,
            bytecode,
            bytecode_wrapper,
            interpreter_data,
            byte_arrays,
        }))
    }
}
