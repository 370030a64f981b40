//! Libraries that enter contexts themselves (Python up to 3.13): event loops such as uvloop's.
//!
//! Such a library calls `PyContext_Enter` and `PyContext_Exit` by the addresses that the dynamic linker has
//! stored in the library's tables. This module replaces them there.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::exceptions::PyImportError;
use pyo3::ffi::{PyModule_GetDef, PyObject};
use pyo3::prelude::*;

use crate::contextvars::loaded;
use crate::switch::{publish_current, restore};
use crate::thread;

// elf(5). Names as there.
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_GNU_RELRO: u32 = 0x6474_e552;
const DT_PLTRELSZ: usize = 2;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_RELA: usize = 7;
const DT_RELASZ: usize = 8;
const DT_JMPREL: usize = 23;

/// The relocations that store the address of a function: `GLOB_DAT` and `JUMP_SLOT`. None elsewhere, where tables may
/// have other layouts than those below.
const FUNCTION_ADDRESS: &[u32] = if cfg!(target_arch = "aarch64") {
    &[1025, 1026]
} else if cfg!(target_arch = "x86_64") {
    &[6, 7]
} else {
    &[]
};

/// `Elf64_Sym`.
#[repr(C)]
struct Symbol {
    name: u32,
    others: [u8; 20],
}

/// `Elf64_Rela`.
#[repr(C)]
struct Relocation {
    offset: usize,
    kind: u32,
    symbol: u32,
    addend: i64,
}

/// Where a library stores an address.
struct Place {
    address: usize,
    /// Whether the dynamic linker has made it read-only.
    is_read_only: bool,
}

#[derive(Default)]
struct Library {
    /// An address in it.
    contains: usize,
    enter: Vec<Place>,
    exit: Vec<Place>,
}

/// Makes an extension module report the contexts that it enters and leaves.
///
/// # Errors
/// If it has no addresses of the functions, or they cannot be replaced.
#[pyfunction]
pub(crate) fn watch_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // `enter` and `exit` need it.
    loaded()?;
    // SAFETY: the argument is a module.
    let definition = unsafe { PyModule_GetDef(module.as_ptr()) };
    let mut library = Library {
        contains: definition.addr(),
        ..Library::default()
    };
    // SAFETY: the callback takes a `Library`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut library).cast()) };
    if library.enter.is_empty() || library.exit.is_empty() {
        let message = "it does not call PyContext_Enter and PyContext_Exit where they can be seen";
        return Err(PyImportError::new_err(message));
    }
    for place in &library.exit {
        // SAFETY: the library calls a function of this type by the address there.
        unsafe { place.replace(exit as *const () as usize)? };
    }
    for place in &library.enter {
        // SAFETY: as above.
        unsafe { place.replace(enter as *const () as usize)? };
    }
    Ok(())
}

impl Place {
    /// Stores another address.
    ///
    /// # Safety
    /// The library is loaded, and calls a function of the same type by the address.
    unsafe fn replace(&self, function: usize) -> io::Result<()> {
        let start = self.address & !(page_size() - 1);
        let protect = |protection| {
            // SAFETY: the page belongs to the library's tables, which have no code.
            match unsafe { libc::mprotect(start as *mut c_void, page_size(), protection) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        if self.is_read_only {
            protect(libc::PROT_READ | libc::PROT_WRITE)?;
        }
        // SAFETY: as the caller promises; the dynamic linker aligns it, and threads read it at once.
        unsafe {
            AtomicUsize::from_ptr(self.address as *mut usize).store(function, Ordering::Release);
        }
        if self.is_read_only {
            protect(libc::PROT_READ)?;
        }
        Ok(())
    }
}

fn page_size() -> usize {
    // SAFETY: it takes no pointer.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// Ends the iteration at the library, with its places.
unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    library: *mut c_void,
) -> c_int {
    // SAFETY: the dynamic linker passes a library that stays loaded during the call, and `library`.
    unsafe {
        let (info, library) = (&*info, &mut *library.cast::<Library>());
        let headers = slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
        let base = info.dlpi_addr as usize;
        let find = |kind| headers.iter().find(|header| header.p_type == kind);
        let is_inside = |address: usize| {
            headers.iter().any(|header| {
                let offset = address.wrapping_sub(base.wrapping_add(header.p_vaddr as usize));
                header.p_type == PT_LOAD && offset < header.p_memsz as usize
            })
        };
        if !is_inside(library.contains) {
            return 0;
        }
        if let Some(dynamic) = find(PT_DYNAMIC) {
            let read_only = find(PT_GNU_RELRO).map_or(0..0, |header| {
                let start = base.wrapping_add(header.p_vaddr as usize);
                // As the dynamic linkers of glibc and musl round it.
                let page = |address: usize| address & !(page_size() - 1);
                page(start)..page(start + header.p_memsz as usize)
            });
            let dynamic = base.wrapping_add(dynamic.p_vaddr as usize) as *const [usize; 2];
            for (name, address) in functions(base, dynamic, is_inside) {
                let places = match name {
                    name if name == c"PyContext_Enter" => &mut library.enter,
                    name if name == c"PyContext_Exit" => &mut library.exit,
                    _ => continue,
                };
                places.push(Place {
                    address,
                    is_read_only: read_only.contains(&address),
                });
            }
        }
    }
    1
}

/// The functions that a library calls: name, and where their address is.
///
/// # Safety
/// `dynamic` is the dynamic section of a library at `base` that stays loaded. `is_inside` tells its addresses.
unsafe fn functions(
    base: usize,
    mut dynamic: *const [usize; 2],
    is_inside: impl Fn(usize) -> bool,
) -> impl Iterator<Item = (&'static CStr, usize)> {
    let (mut symbols, mut strings) = (0, 0);
    // Of `DT_RELA` and `DT_JMPREL`: address and size.
    let (mut data, mut calls) = ((0, 0), (0, 0));
    // SAFETY: the section ends with a null entry.
    unsafe {
        while (*dynamic)[0] != 0 {
            let [tag, value] = *dynamic;
            // glibc has added the base address here; musl has not. A library at a lower address than it is linked for has
            // a base address that wraps around.
            let address = match is_inside(value) {
                true => value,
                false => base.wrapping_add(value),
            };
            match tag {
                DT_SYMTAB => symbols = address,
                DT_STRTAB => strings = address,
                DT_RELA => data.0 = address,
                DT_RELASZ => data.1 = value,
                DT_JMPREL => calls.0 = address,
                DT_PLTRELSZ => calls.1 = value,
                _ => {}
            }
            dynamic = dynamic.add(1);
        }
    }
    let tables = [data, calls].into_iter();
    let tables = tables.filter(move |(start, _)| *start != 0 && symbols != 0 && strings != 0);
    // SAFETY: the tables are those of the library.
    let relocations = tables.flat_map(|(start, size)| unsafe {
        let count = size / size_of::<Relocation>();
        slice::from_raw_parts(start as *const Relocation, count)
    });
    let relocations = relocations.filter(|it| FUNCTION_ADDRESS.contains(&it.kind));
    relocations.map(move |relocation| {
        // SAFETY: as above.
        let name = unsafe {
            let symbol = (symbols as *const Symbol).add(relocation.symbol as usize);
            CStr::from_ptr((strings + (*symbol).name as usize) as *const c_char)
        };
        (name, base.wrapping_add(relocation.offset))
    })
}

/// `PyContext_Enter`. Publishes the variable's value in the new context.
unsafe extern "C" fn enter(context: *mut PyObject) -> c_int {
    // SAFETY: called with a context by a thread that is attached.
    unsafe {
        let py = Python::assume_attached();
        let Ok(contextvars) = loaded() else {
            return -1;
        };
        let result = (contextvars.enter)(context);
        if result == 0 && contextvars.is_in_interpreter(py) {
            thread::push(context);
            publish_current(py);
        }
        result
    }
}

/// `PyContext_Exit`, possibly with a pending exception. Publishes what was published before the context was
/// entered.
unsafe extern "C" fn exit(context: *mut PyObject) -> c_int {
    // SAFETY: called with a context by a thread that is attached.
    unsafe {
        let py = Python::assume_attached();
        let Ok(contextvars) = loaded() else {
            return -1;
        };
        let result = (contextvars.exit)(context);
        if result == 0 && contextvars.is_in_interpreter(py) {
            let outer = thread::pop(context);
            restore(py, outer);
        }
        result
    }
}
