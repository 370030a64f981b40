//! Hand-made slots and vectors, for states that no real program here can produce.

use std::sync::Arc;

use super::slot::{Location, slot};
use super::*;
use crate::elf::Segment;
use crate::libc::FileFacts;
use crate::machine::TlsSegment;
use crate::memory::Image;
use crate::module::{Module, ModuleFile, Relocation};

const BIAS: u64 = 0x7f00_0000_0000;
const SLOT: u64 = 0x3000;
const RESOLVER: u64 = 0x7f11_0000_0100;

/// A library that defines the variable at offset 8 of its block.
fn library(access: Access) -> Loaded {
    let file = ModuleFile {
        machine: Machine::X86_64,
        executable: false,
        dynamic: true,
        interpreter: false,
        soname: None,
        tls: Some(TlsSegment {
            address: 0,
            file_size: 0,
            memory_size: 16,
            alignment: 8,
        }),
        first_load: Segment::default(),
        first_code: Segment::default(),
        end: 0x5000,
        jump_relocations: 0x600..0x660,
        libc: FileFacts::default(),
    };
    let module = Module {
        file: Arc::new(file),
        symbol: Symbol::Exported { offset: 8, size: 8 },
        relocations: vec![Relocation {
            access,
            slot: SLOT,
            named: true,
        }],
    };
    Loaded {
        module: Arc::new(module),
        bias: BIAS,
        name: "library".into(),
    }
}

fn location(access: Access, words: &[u64]) -> Option<Location> {
    let mut memory = Image::new();
    memory.map_u64(BIAS + SLOT, words);
    // {module, offset, generation}, at an address that a non-PIE program's heap may have.
    memory.map_u64(0x1000, &[3, 8, 7]);
    // The relocations of lazy binding: r_offset, r_info, r_addend.
    memory.map_u64(
        BIAS + 0x600,
        &[SLOT, 36, 8, SLOT, 36, 8, SLOT, 36, 8, SLOT, 36, 8],
    );
    let loaded = library(access);
    slot(&memory, &loaded, &loaded.module.relocations[0], None).unwrap()
}

/// musl on aarch64 puts the first library's storage at the thread pointer, if the executable has
/// none; everywhere else a slot of 0 is one that is not filled yet.
#[test]
fn an_offset_of_zero() {
    let mut memory = Image::new();
    memory.map_u64(BIAS + SLOT, &[0]);
    for (machine, c_library, expected) in [
        (
            Machine::Aarch64,
            Some(CLibrary::Musl),
            Some(Location::Static(0)),
        ),
        (Machine::Aarch64, Some(CLibrary::Glibc), None),
        (Machine::Aarch64, None, None),
        (Machine::X86_64, Some(CLibrary::Musl), None),
    ] {
        let mut loaded = library(Access::InitialExec);
        Arc::make_mut(&mut Arc::make_mut(&mut loaded.module).file).machine = machine;
        let relocation = loaded.module.relocations[0];
        let found = slot(&memory, &loaded, &relocation, c_library).unwrap();
        assert_eq!(found, expected, "{machine:?} {c_library:?}");
    }
}

#[test]
fn descriptors() {
    let of = |words: [u64; 2]| location(Access::Tlsdesc, &words);
    assert_eq!(of([RESOLVER, -24_i64 as u64]), Some(Location::Static(-24)));
    let dynamic = Location::Dynamic {
        module: 3,
        offset: 8,
        generation: Some(7),
    };
    assert_eq!(
        of([RESOLVER, 0x1000]),
        Some(dynamic),
        "a small argument is no offset"
    );
    // Nothing there yet.
    assert_eq!(of([0, 0]), None);
    assert_eq!(of([0, -24_i64 as u64]), None);
    // Lazy binding (glibc 2.31): the resolver is the module's own stub, or the dynamic linker's
    // own, and the argument is the relocation.
    assert_eq!(of([BIAS + 0x1020, BIAS + 0x618]), None);
    assert_eq!(of([BIAS + 0x1020, 0x1000]), None);
    assert_eq!(of([RESOLVER, BIAS + 0x648]), None);
    // An undefined weak symbol's: the argument is the addend.
    assert_eq!(of([RESOLVER, 0]), None);
}

#[test]
fn other_slots() {
    let dynamic = |offset| Location::Dynamic {
        module: 2,
        offset,
        generation: None,
    };
    assert_eq!(
        location(Access::GeneralDynamic, &[2, 40]),
        Some(dynamic(40))
    );
    assert_eq!(location(Access::GeneralDynamic, &[0, 40]), None);
    assert_eq!(location(Access::LocalDynamic, &[2, 0]), Some(dynamic(8)));
    assert_eq!(
        location(Access::InitialExec, &[-16_i64 as u64]),
        Some(Location::Static(-16))
    );
    assert_eq!(location(Access::InitialExec, &[0]), None);
    assert_eq!(
        location(Access::GeneralDynamic, &[]),
        None,
        "nothing mapped"
    );
}

/// A named reference to an offset at which the module has nothing is bound to another module's
/// definition.
#[test]
fn a_slot_with_another_offset_is_not_the_definitions() {
    for (offset, module) in [(8, Some((2, None))), (40, None)] {
        let mut memory = Image::new();
        memory.map_u64(BIAS + SLOT, &[2, offset]);
        let loaded = library(Access::GeneralDynamic);
        let mut definitions = [definition(&loaded, (8, 8), Machine::X86_64, &[]).unwrap()];
        bind(&memory, &loaded, &mut definitions, None).unwrap();
        assert_eq!(definitions[0].module, module);
    }
}

const THREAD: u64 = 0x7f22_0000_0000;
const VECTOR: u64 = 0x7f22_0000_1000;

/// A thread's vector: length and generation, then the blocks of modules 1, 2 …
fn thread(length: u64, generation: u64, blocks: &[u64]) -> Image {
    let mut memory = Image::new();
    memory.map_u64(THREAD, &[THREAD, VECTOR + 16]);
    let mut words = vec![length, 0, generation, 0];
    words.extend(blocks.iter().flat_map(|block| [*block, 0]));
    memory.map_u64(VECTOR, &words);
    memory
}

fn address(memory: &Image, module: u64, generation: Option<u64>) -> Option<u64> {
    let place = Place::Dynamic {
        library: CLibrary::Glibc,
        module,
        offset: 8,
        generation,
    };
    let variable = TlsVariable {
        module: "library".into(),
        access: Access::Tlsdesc,
        exported: true,
        place,
        machine: Machine::X86_64,
        registration: None,
        own_module: None,
    };
    variable.address(memory, THREAD).unwrap()
}

#[test]
fn dynamic_blocks() {
    let memory = thread(4, 7, &[0x5000, u64::MAX, 0]);
    assert_eq!(address(&memory, 1, Some(7)), Some(0x5008));
    assert_eq!(address(&memory, 1, None), Some(0x5008));
    assert_eq!(address(&memory, 2, Some(7)), None, "not allocated");
    assert_eq!(address(&memory, 3, Some(7)), None, "no block");
    assert_eq!(address(&memory, 5, Some(7)), None, "vector too short");
    assert_eq!(
        address(&memory, u64::MAX, Some(7)),
        None,
        "vector too short"
    );
    assert_eq!(
        address(&memory, 1, Some(8)),
        None,
        "a block of a closed module"
    );
}

#[test]
fn threads_without_storage() {
    let mut memory = Image::new();
    memory.map_u64(THREAD, &[THREAD, 0]);
    assert_eq!(address(&memory, 1, None), None, "no vector yet");
    let place = Place::Static(-8);
    let module = "program".into();
    let variable = TlsVariable {
        module,
        access: Access::LocalExec,
        exported: true,
        place,
        machine: Machine::X86_64,
        registration: None,
        own_module: None,
    };
    assert_eq!(
        variable.address(&memory, 0).unwrap(),
        None,
        "no thread pointer yet"
    );
    assert_eq!(variable.address(&memory, THREAD).unwrap(), Some(THREAD - 8));
}

/// An initial-exec reference of any module proves that storage is static, whatever the others say:
/// each thread's DTV may still show nothing as allocated.
#[test]
fn static_evidence_of_another_module_wins() {
    let defining = library(Access::GeneralDynamic);
    let mut referring = library(Access::InitialExec);
    referring.bias = BIAS + 0x10_0000;
    let module = Arc::make_mut(&mut referring.module);
    module.symbol = Symbol::Undefined;
    let mut memory = Image::new();
    memory.map_u64(BIAS + SLOT, &[3, 8]);
    memory.map_u64(referring.bias + SLOT, &[-64_i64 as u64]);
    let mut definitions = [definition(&defining, (8, 8), Machine::X86_64, &[]).unwrap()];
    for loaded in [&defining, &referring] {
        bind(&memory, loaded, &mut definitions, None).unwrap();
    }
    let [definition] = definitions;
    assert_eq!(definition.module, Some((3, None)));
    let found = variable(&definition, Some(CLibrary::Glibc)).unwrap();
    assert_eq!(found.place, Place::Static(-64));
    assert_eq!(
        (found.access, found.storage()),
        (Access::GeneralDynamic, Storage::Static)
    );
}

/// The list of glibc's dynamic linker provides the generation for a traditional reference, and the
/// location of static storage that otherwise only the DTV leads to.
#[test]
fn what_the_dynamic_linkers_list_adds() {
    let loaded = library(Access::GeneralDynamic);
    let mut memory = Image::new();
    memory.map_u64(BIAS + SLOT, &[3, 8]);
    let listed = |static_offset| glibc::TlsModule {
        id: 3,
        generation: 7,
        bias: BIAS,
        static_offset,
        registration: None,
    };
    for (static_offset, expected) in [
        (Some(0x40), Place::Static(8 - 0x40)),
        (
            None,
            Place::Dynamic {
                library: CLibrary::Glibc,
                module: 3,
                offset: 8,
                generation: Some(7),
            },
        ),
    ] {
        let list = [listed(static_offset)];
        let definition = definition(&loaded, (8, 8), Machine::X86_64, &list);
        let mut definitions = [definition.unwrap()];
        bind(&memory, &loaded, &mut definitions, None).unwrap();
        let found = variable(&definitions[0], Some(CLibrary::Glibc)).unwrap();
        assert_eq!(found.place, expected);
    }
}

/// Without a generation, a block may belong to a library that glibc has closed; musl closes none.
#[test]
fn a_module_whose_generation_nothing_tells() {
    let loaded = library(Access::GeneralDynamic);
    let mut memory = Image::new();
    memory.map_u64(BIAS + SLOT, &[3, 8]);
    let mut definitions = [definition(&loaded, (8, 8), Machine::X86_64, &[]).unwrap()];
    bind(&memory, &loaded, &mut definitions, None).unwrap();
    let [definition] = definitions;
    let of = |library| variable(&definition, Some(library)).map(|variable| variable.place);
    assert!(
        of(CLibrary::Glibc)
            .unwrap_err()
            .contains("a library closed before")
    );
    let place = Place::Dynamic {
        library: CLibrary::Musl,
        module: 3,
        offset: 8,
        generation: None,
    };
    assert_eq!(of(CLibrary::Musl), Ok(place));
}

/// A definition must lie entirely in its module's block: otherwise the target could choose any
/// offset from the thread pointer.
#[test]
fn a_definition_outside_of_the_modules_storage() {
    for (offset, inside) in [(8, true), (9, false), (16, false), (u64::MAX - 3, false)] {
        let mut loaded = library(Access::GeneralDynamic);
        Arc::make_mut(&mut loaded.module).symbol = Symbol::Exported { offset, size: 8 };
        let definition = definition(&loaded, (offset, 8), Machine::X86_64, &[]);
        assert_eq!(definition.is_ok(), inside, "{offset}");
    }
    let mut loaded = library(Access::GeneralDynamic);
    Arc::make_mut(&mut Arc::make_mut(&mut loaded.module).file).tls = None;
    assert!(definition(&loaded, (8, 8), Machine::X86_64, &[]).is_err());
    // A module of another architecture defines nothing here.
    let loaded = library(Access::GeneralDynamic);
    assert!(definition(&loaded, (8, 8), Machine::Aarch64, &[]).is_err());
}
