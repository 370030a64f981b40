//! Where this version of HotSpot keeps what stacks and names need.

mod threads;

use otelctx_reader::remote::{Memory, MemoryError, Target};
use otelctx_reader::runtime::RuntimeError;

use crate::tables::{Field, Tables, c_string};
pub(crate) use threads::{ClassFields, ThreadList, Threads, ZPointers};

/// The slots of an interpreter's frame, in words from the frame pointer (`frame_x86.hpp`), from JDK 9 on and before.
const BYTECODE_SLOT: i64 = -8;
const BYTECODE_SLOT_OF_8: i64 = -7;
/// Maximum offset of a member, in bytes. Only code heaps have more than some hundred.
const MAX_OFFSET: u64 = 4096;
/// The first version in which compressed numbers have no byte 0 (`unsigned5.hpp`).
const NO_ZERO_BYTES: u32 = 20;

/// Offsets and addresses of fields, sizes of types.
#[derive(Debug)]
pub(crate) struct Layout {
    /// JDK 8 counts its virtual machine's versions otherwise, and is 8 here.
    pub(crate) major: u32,
    /// The version in full, such as `17.0.21+2-Debian`.
    pub(crate) version: String,
    pub(crate) heaps: Heaps,
    pub(crate) heap: CodeHeap,
    pub(crate) blob: CodeBlob,
    pub(crate) nmethod: NMethod,
    pub(crate) method: Method,
    pub(crate) interpreter: Interpreter,
    /// The offset in a thread's object of the address where it was interrupted by a safepoint, while its stack does not have it.
    pub(crate) interrupted_pc: Option<u64>,
    /// The address of the variable with the address to which the stub that calls Java returns.
    pub(crate) call_stub_return: u64,
    pub(crate) classes: Option<Classes>,
    /// `None` if the tables lack what names of threads need.
    pub(crate) threads: Option<Threads>,
}

/// Where the list of code heaps is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Heaps {
    /// The address of the pointer to an array, the offsets of the array's length and of its elements.
    Array(u64, Field, u64),
    /// The address of the pointer to the only one.
    One(u64),
}

#[derive(Debug)]
pub(crate) struct CodeHeap {
    /// The offsets of the first address of its memory, and of the address behind that.
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) segment_map: u64,
    pub(crate) segment_shift: Field,
    /// Size of what precedes a code blob.
    pub(crate) header: u64,
}

/// An address in an object: kept in a field, or as an offset from the object's start.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Pointer(Field),
    Offset(Field),
}

#[derive(Debug)]
pub(crate) struct CodeBlob {
    pub(crate) name: Field,
    /// In words.
    pub(crate) frame_size: Field,
    pub(crate) frame_complete: Field,
    pub(crate) code_start: Place,
    pub(crate) code_end: Place,
}

#[derive(Debug)]
pub(crate) struct NMethod {
    pub(crate) size: u64,
    pub(crate) compile_id: Field,
    pub(crate) method: Field,
    /// Of this, offsets count from the code's start.
    pub(crate) verified_entry: Place,
    pub(crate) deopt_handler: Place,
    pub(crate) deopt_mh_handler: Option<Place>,
    /// The offset from the stack pointer to the address that the deoptimization handler's has replaced.
    pub(crate) original_pc: Field,
    pub(crate) debug: DebugInfo,
}

/// Where the tables are by which code leads to methods.
#[derive(Debug)]
pub(crate) enum DebugInfo {
    /// In the code's own object.
    Inside {
        pcs: Field,
        pcs_end: Field,
        scopes: Place,
        metadata: Field,
    },
    /// From JDK 24 on, in memory of their own.
    Outside {
        tables: Field,
        pcs: Field,
        scopes: Field,
        metadata: Field,
        relocations: Field,
    },
}

#[derive(Debug)]
pub(crate) struct Method {
    /// Number of bytes of a method with the next two.
    pub(crate) size: u64,
    pub(crate) const_method: u64,
    pub(crate) access: Field,
    pub(crate) constants: u64,
    pub(crate) id: Field,
    pub(crate) code_size: Field,
    pub(crate) name: Field,
    pub(crate) signature: Field,
    pub(crate) flags: Field,
    /// Size of a method's `ConstMethod` with all that follows it, in words.
    pub(crate) const_method_words: Field,
    /// Size of a `ConstMethod`: the bytecode follows it.
    pub(crate) const_method_size: u64,
    /// Size of a `ConstantPool`: its entries follow it.
    pub(crate) constants_size: u64,
    pub(crate) holder: u64,
    /// The constants in a class.
    pub(crate) class_constants: u64,
    /// In the constants, or before JDK 16 in the class.
    pub(crate) source_file: SourceFile,
    pub(crate) class_name: u64,
    pub(crate) symbol_length: Field,
    pub(crate) symbol_body: u64,
    pub(crate) pc_desc_size: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum SourceFile {
    InConstants(Field),
    InClass(Field),
    Unknown,
}

#[derive(Debug)]
pub(crate) struct Interpreter {
    /// The address of the pointer to its code.
    pub(crate) code: u64,
    pub(crate) buffer: u64,
    pub(crate) queue_start: Field,
    pub(crate) stubs: Field,
    pub(crate) stub_size: Field,
    pub(crate) stub_description: u64,
    pub(crate) bytecode_slot: i64,
}

/// The list of all classes.
#[derive(Debug)]
pub(crate) struct Classes {
    pub(crate) first_loader: u64,
    pub(crate) next_loader: u64,
    pub(crate) first: u64,
    pub(crate) next: u64,
    pub(crate) size: u64,
}

/// Finds fields, and says which one is missing.
struct Find<'t>(&'t Tables);

impl Find<'_> {
    /// The member, if it is there, and its offset is one of a structure.
    fn known(&self, of: &str, name: &str) -> Option<Field> {
        let field = self.0.field(of, name);
        field.filter(|field| !field.is_static && field.at <= MAX_OFFSET)
    }

    /// The address of a static field.
    fn variable(&self, of: &str, name: &str) -> Result<u64, RuntimeError> {
        let field = self.0.field(of, name).filter(|field| field.is_static);
        field.map(|field| field.at).ok_or_else(|| missing(of, name))
    }

    /// The address of the pointer to a class that the virtual machine itself knows.
    fn known_class(&self, name: &str) -> Result<u64, RuntimeError> {
        let entry = format!("::{name}_knum");
        let mut fields = self.0.fields.iter();
        let found = fields.find(|((of, field), known)| {
            known.is_static
                && ["vmClasses", "SystemDictionary"].contains(&&**of)
                && field.contains(&entry)
        });
        found
            .map(|(_, known)| known.at)
            .ok_or_else(|| missing("vmClasses", name))
    }

    fn field(&self, of: &str, name: &str) -> Result<Field, RuntimeError> {
        self.known(of, name).ok_or_else(|| missing(of, name))
    }

    /// The first of several that is there.
    fn any(&self, of: &[&str], name: &str) -> Result<Field, RuntimeError> {
        let found = of.iter().find_map(|of| self.known(of, name));
        found.map_or_else(|| self.field(of[0], name), Ok)
    }

    fn at(&self, of: &str, name: &str) -> Result<u64, RuntimeError> {
        Ok(self.field(of, name)?.at)
    }

    fn size(&self, name: &str) -> Result<u64, RuntimeError> {
        /// Larger than any structure that is read as a whole.
        const MAX_SIZE: u64 = 4096;
        let size = self.0.sizes.get(name).copied();
        size.filter(|size| *size <= MAX_SIZE)
            .ok_or_else(|| RuntimeError::new(format!("HotSpot's tables have no size of {name}")))
    }

    fn place(&self, pointer: (&str, &str), offset: (&str, &str)) -> Result<Place, RuntimeError> {
        match self.known(pointer.0, pointer.1) {
            Some(field) => Ok(Place::Pointer(field)),
            None => self.field(offset.0, offset.1).map(Place::Offset),
        }
    }
}

fn missing(of: &str, name: &str) -> RuntimeError {
    RuntimeError::new(format!(
        "HotSpot's tables have no {of}::{name}: its version is not supported"
    ))
}

impl Layout {
    /// # Errors
    /// If a field is missing, or the virtual machine's version cannot be read.
    pub(crate) fn new(target: &dyn Target, tables: &Tables) -> Result<Self, RuntimeError> {
        let find = Find(tables);
        let version = |name: &str| find.variable("Abstract_VM_Version", name);
        let is_8 = tables.field("CodeCache", "_heaps").is_none();
        let major = match is_8 {
            true => 8,
            false => target.read_u32(version("_vm_major_version")?)?,
        };
        let text = target.read_u64(version("_s_vm_release")?)?;
        let memory: &dyn Memory = target;
        Ok(Self {
            major,
            version: c_string(memory, text)?,
            heaps: heaps(&find)?,
            heap: heap(&find)?,
            blob: blob(&find)?,
            nmethod: nmethod(&find)?,
            method: method(&find)?,
            interpreter: interpreter(&find, is_8)?,
            interrupted_pc: find
                .known("JavaThread", "_saved_exception_pc")
                .map(|field| field.at),
            call_stub_return: find.variable("StubRoutines", "_call_stub_return_address")?,
            classes: classes(&find).ok(),
            threads: threads::threads(&find).ok(),
        })
    }

    /// Size of what is read of a class, in bytes: up to its constants, and its number, which is in the part that arrays have, too.
    pub(crate) fn class_size(&self) -> u64 {
        let of_all = self.classes.as_ref().map_or(0, |classes| classes.size);
        of_all.max(self.method.class_constants + 8)
    }

    /// The address of an entry of the constants of a class.
    pub(crate) fn constant_at(&self, constants: u64, index: u64) -> u64 {
        let entries = constants.wrapping_add(self.method.constants_size);
        entries.wrapping_add(index.wrapping_mul(8))
    }

    /// Returns what is subtracted from each byte of a compressed number.
    pub(crate) fn excluded_bytes(&self) -> u32 {
        u32::from(self.major >= NO_ZERO_BYTES)
    }
}

fn heaps(find: &Find<'_>) -> Result<Heaps, RuntimeError> {
    if let Ok(heaps) = find.variable("CodeCache", "_heaps") {
        let arrays = ["GrowableArrayBase", "GenericGrowableArray"];
        let length = find.any(&arrays, "_len")?;
        let data = find.at("GrowableArray<int>", "_data")?;
        return Ok(Heaps::Array(heaps, length, data));
    }
    find.variable("CodeCache", "_heap").map(Heaps::One)
}

fn heap(find: &Find<'_>) -> Result<CodeHeap, RuntimeError> {
    let memory = find.at("CodeHeap", "_memory")?;
    let low = find.at("VirtualSpace", "_low_boundary")?;
    Ok(CodeHeap {
        start: memory + low,
        end: memory + find.at("VirtualSpace", "_high_boundary")?,
        segment_map: find.at("CodeHeap", "_segmap")? + low,
        segment_shift: find.field("CodeHeap", "_log2_segment_size")?,
        header: find.size("HeapBlock")?,
    })
}

fn blob(find: &Find<'_>) -> Result<CodeBlob, RuntimeError> {
    let field = |name| find.field("CodeBlob", name);
    Ok(CodeBlob {
        name: field("_name")?,
        frame_size: field("_frame_size")?,
        frame_complete: field("_frame_complete_offset")?,
        code_start: find.place(("CodeBlob", "_code_begin"), ("CodeBlob", "_code_offset"))?,
        code_end: find.place(("CodeBlob", "_code_end"), ("CodeBlob", "_data_offset"))?,
    })
}

fn nmethod(find: &Find<'_>) -> Result<NMethod, RuntimeError> {
    let of = ["nmethod", "CompiledMethod"];
    let any = |name| find.any(&of, name);
    let debug = if find.known("nmethod", "_immutable_data").is_some() {
        DebugInfo::Outside {
            tables: any("_immutable_data")?,
            pcs: any("_scopes_pcs_offset")?,
            scopes: any("_scopes_data_offset")?,
            metadata: find.field("CodeBlob", "_mutable_data")?,
            relocations: find.field("CodeBlob", "_relocation_size")?,
        }
    } else {
        DebugInfo::Inside {
            pcs: any("_scopes_pcs_offset")?,
            pcs_end: any("_dependencies_offset")?,
            scopes: find.place(
                ("CompiledMethod", "_scopes_data_begin"),
                ("nmethod", "_scopes_data_offset"),
            )?,
            metadata: any("_metadata_offset")?,
        }
    };
    let handler = |pointer, offset, of_8| {
        let place = find.place(("CompiledMethod", pointer), ("nmethod", offset));
        place.or_else(|_| find.field("nmethod", of_8).map(Place::Offset))
    };
    let mh = "_deopt_mh_handler";
    Ok(NMethod {
        size: find.size("nmethod")?,
        compile_id: any("_compile_id")?,
        method: any("_method")?,
        verified_entry: find.place(
            ("nmethod", "_verified_entry_point"),
            ("nmethod", "_verified_entry_offset"),
        )?,
        deopt_handler: handler(
            "_deopt_handler_begin",
            "_deopt_handler_offset",
            "_deoptimize_offset",
        )?,
        deopt_mh_handler: handler(
            &format!("{mh}_begin"),
            &format!("{mh}_offset"),
            "_deoptimize_mh_offset",
        )
        .ok(),
        original_pc: any("_orig_pc_offset")?,
        debug,
    })
}

fn method(find: &Find<'_>) -> Result<Method, RuntimeError> {
    let of = |name| find.field("ConstMethod", name);
    let source = "_source_file_name_index";
    let in_constants = find.known("ConstantPool", source);
    let in_class = || find.known("InstanceKlass", source);
    let const_method = find.at("Method", "_constMethod")?;
    let access = find.field("Method", "_access_flags")?;
    Ok(Method {
        size: (const_method + 8).max(access.at + u64::from(access.size)),
        const_method,
        access,
        constants: of("_constants")?.at,
        id: of("_method_idnum")?,
        code_size: of("_code_size")?,
        name: of("_name_index")?,
        signature: of("_signature_index")?,
        flags: of("_flags").or_else(|_| of("_flags._flags"))?,
        const_method_words: of("_constMethod_size")?,
        const_method_size: find.size("ConstMethod")?,
        constants_size: find.size("ConstantPool")?,
        holder: find.at("ConstantPool", "_pool_holder")?,
        class_constants: find.at("InstanceKlass", "_constants")?,
        source_file: in_constants
            .map(SourceFile::InConstants)
            .or_else(|| in_class().map(SourceFile::InClass))
            .unwrap_or(SourceFile::Unknown),
        class_name: find.at("Klass", "_name")?,
        symbol_length: find.field("Symbol", "_length")?,
        symbol_body: find
            .any(&["Symbol"], "_body")
            .or_else(|_| find.field("Symbol", "_body[0]"))?
            .at,
        pc_desc_size: find.size("PcDesc")?,
    })
}

fn interpreter(find: &Find<'_>, is_8: bool) -> Result<Interpreter, RuntimeError> {
    let queue = |name| find.field("StubQueue", name);
    Ok(Interpreter {
        code: find.variable("AbstractInterpreter", "_code")?,
        buffer: queue("_stub_buffer")?.at,
        queue_start: queue("_queue_begin")?,
        stubs: queue("_number_of_stubs")?,
        stub_size: find.field("InterpreterCodelet", "_size")?,
        stub_description: find.at("InterpreterCodelet", "_description")?,
        bytecode_slot: if is_8 {
            BYTECODE_SLOT_OF_8
        } else {
            BYTECODE_SLOT
        },
    })
}

fn classes(find: &Find<'_>) -> Result<Classes, RuntimeError> {
    Ok(Classes {
        first_loader: find.variable("ClassLoaderDataGraph", "_head")?,
        next_loader: find.at("ClassLoaderData", "_next")?,
        first: find.at("ClassLoaderData", "_klasses")?,
        next: find.at("Klass", "_next_link")?,
        size: find.size("Klass")?,
    })
}

/// The bytes of a structure that was read as a whole.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) address: u64,
    bytes: Vec<u8>,
}

impl Object {
    /// Maximum size, in bytes.
    const MAX_SIZE: usize = 8192;

    pub(crate) fn read(memory: &dyn Memory, address: u64, size: u64) -> Result<Self, MemoryError> {
        let bytes = memory.read_vec(address, size, Self::MAX_SIZE)?;
        Ok(Self { address, bytes })
    }

    /// The word at an offset; 0 beyond the end.
    pub(crate) fn word(&self, offset: u64) -> u64 {
        self.int(Field {
            at: offset,
            is_static: false,
            size: 8,
        })
    }

    /// The bytes at an offset; none beyond the end.
    pub(crate) fn bytes(&self, offset: u64, length: u64) -> &[u8] {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
        self.bytes.get(start..end).unwrap_or_default()
    }

    /// The value of a field without a sign; 0 beyond the end.
    pub(crate) fn int(&self, field: Field) -> u64 {
        let mut word = [0; 8];
        let start = usize::try_from(field.at).unwrap_or(usize::MAX);
        let bytes = self.bytes.get(start..).unwrap_or_default();
        let size = usize::from(field.size).min(word.len());
        if let Some(bytes) = bytes.get(..size) {
            word[..size].copy_from_slice(bytes);
        }
        u64::from_le_bytes(word)
    }

    /// The value of a field with a sign.
    pub(crate) fn signed(&self, field: Field) -> i64 {
        let unused = 64 - 8 * u32::from(field.size.clamp(1, 8));
        (self.int(field) << unused).cast_signed() >> unused
    }

    /// An address, whose offset counts from `base`.
    pub(crate) fn place(&self, place: Place, base: u64) -> u64 {
        match place {
            Place::Pointer(field) => self.int(field),
            Place::Offset(field) => base.wrapping_add_signed(self.signed(field)),
        }
    }
}

/// Reads the value of a field without a sign.
pub(crate) fn read_int(memory: &dyn Memory, object: u64, field: Field) -> Result<u64, MemoryError> {
    let mut word = [0; 8];
    let size = usize::from(field.size).min(word.len());
    memory.read(object.wrapping_add(field.at), &mut word[..size])?;
    Ok(u64::from_le_bytes(word))
}
