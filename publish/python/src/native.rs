//! Libraries that enter contexts themselves (Python up to 3.13): event loops such as uvloop's.
//!
//! Such a library calls `PyContext_Enter` and `PyContext_Exit` by the addresses that the dynamic
//! linker has stored in the library's tables. This module replaces them there.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::exceptions::PyImportError;
use pyo3::ffi::{PyModule_GetDef, PyObject};
use pyo3::prelude::*;

use crate::contextvars::{OnContext, loaded};
use crate::lock::Lock;
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

/// The relocations that store the address of a function: `GLOB_DAT` and `JUMP_SLOT`. None
/// elsewhere, where tables may have other layouts than those below.
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

/// The place where a library stores an address.
struct Place {
    address: usize,
    /// True if the dynamic linker has made it read-only.
    is_read_only: bool,
}

/// The places from which a library calls the functions.
#[derive(Default)]
struct Calls {
    enter: Vec<Place>,
    exit: Vec<Place>,
}

/// The libraries of the process at the last scan.
struct Libraries {
    /// Number of libraries that had been unloaded.
    unloaded: u64,
    /// Libraries that need no more attention, by the addresses of their program headers.
    checked: BTreeSet<usize>,
    /// Address ranges of the libraries that were changed to report what they enter and leave.
    watched: Vec<Range<usize>>,
}

static LIBRARIES: Lock<Libraries> = Lock::new(Libraries {
    unloaded: 0,
    checked: BTreeSet::new(),
    watched: Vec::new(),
});

/// A scan of the libraries.
struct Scan<'l> {
    libraries: &'l mut Libraries,
    /// Libraries to change, by the addresses of their program headers, and their paths.
    pending: Vec<(usize, CString)>,
    /// The last error.
    error: Option<String>,
}

/// Makes the libraries of the process report the contexts that they enter and leave, if they were
/// loaded since the last call.
///
/// # Errors
/// If the addresses in one cannot be replaced. The others report.
#[pyfunction]
pub(crate) fn watch_libraries(py: Python<'_>) -> PyResult<()> {
    // `enter` and `exit` need it.
    loaded()?;
    let error = LIBRARIES.with(py, |libraries| {
        let mut scan = Scan {
            libraries,
            pending: Vec::new(),
            error: None,
        };
        scan.each(find);
        // Another thread may be loading a library whose addresses the dynamic linker has yet to
        // store. This waits until it is loaded, and keeps it so.
        let open = |path: &CString| {
            let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
            let is_program = path.is_empty();
            // SAFETY: the path ends with a null byte.
            unsafe {
                libc::dlopen(
                    if is_program {
                        ptr::null()
                    } else {
                        path.as_ptr()
                    },
                    flags,
                )
            }
        };
        let opened = |(_, path): &(usize, CString)| NonNull::new(open(path));
        let handles: Vec<_> = scan.pending.iter().map(opened).collect();
        let mut is_open = handles.iter().map(Option::is_some);
        scan.pending.retain(|_| is_open.next() == Some(true));
        scan.each(change);
        for handle in handles.into_iter().flatten() {
            // SAFETY: `dlopen` has returned it.
            unsafe { libc::dlclose(handle.as_ptr()) };
        }
        scan.error
    });
    error.map_or(Ok(()), |error| Err(PyImportError::new_err(error)))
}

/// Returns whether an extension module's library reports the contexts that it enters and leaves.
#[pyfunction]
pub(crate) fn is_watched(module: &Bound<'_, PyModule>) -> bool {
    // SAFETY: the argument is a module.
    let definition = unsafe { PyModule_GetDef(module.as_ptr()) }.addr();
    LIBRARIES.with(module.py(), |libraries| {
        let mut watched = libraries.watched.iter();
        watched.any(|library| library.contains(&definition))
    })
}

/// The callback of `dl_iterate_phdr` for each library.
type Visit = unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;

impl Scan<'_> {
    /// Visits all libraries.
    fn each(&mut self, visit: Visit) {
        // SAFETY: the functions below take a scan, which outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut *self).cast()) };
    }
}

impl Calls {
    /// Returns whether the library calls both functions.
    fn are_both(&self) -> bool {
        !self.enter.is_empty() && !self.exit.is_empty()
    }

    /// Returns whether the library calls this interpreter's functions, or those of this module
    /// already. Before the first call, what is stored may be in the library itself. Other functions
    /// are those of another interpreter, or of another tool.
    ///
    /// # Safety
    /// The library is loaded.
    unsafe fn are_of_this_interpreter(&self, addresses: &Range<usize>) -> bool {
        let Ok(contextvars) = loaded() else {
            return false;
        };
        let lead_to = |places: &[Place], functions: [usize; 2]| {
            // SAFETY: the caller ensures that the library is loaded.
            let mut stored = places.iter().map(|place| unsafe { place.stored() });
            stored.all(|it| functions.contains(&it) || addresses.contains(&it))
        };
        let enters = [contextvars.enter, enter as OnContext].map(|it| it as *const () as usize);
        let exits = [contextvars.exit, exit as OnContext].map(|it| it as *const () as usize);
        lead_to(&self.enter, enters) && lead_to(&self.exit, exits)
    }

    /// Makes the library call the functions of this module instead.
    ///
    /// # Safety
    /// The library is loaded.
    unsafe fn replace(&self) -> io::Result<()> {
        for place in &self.exit {
            // SAFETY: the library calls a function of this type by the address there.
            unsafe { place.replace(exit as *const () as usize)? };
        }
        for place in &self.enter {
            // SAFETY: the library calls a function of this type by the address there.
            unsafe { place.replace(enter as *const () as usize)? };
        }
        Ok(())
    }
}

impl Place {
    /// Returns the address there.
    ///
    /// # Safety
    /// The library is loaded.
    unsafe fn stored(&self) -> usize {
        // SAFETY: the dynamic linker aligns it, and threads write it at once.
        unsafe { AtomicUsize::from_ptr(self.address as *mut usize).load(Ordering::Acquire) }
    }

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
        // SAFETY: the caller ensures the function's type; the address is aligned and read at once.
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

/// Finds out whether a library has to be changed.
unsafe extern "C" fn find(info: *mut libc::dl_phdr_info, _size: usize, scan: *mut c_void) -> c_int {
    // SAFETY: the dynamic linker passes a library that is mapped during the call, and `scan`.
    unsafe {
        let (info, scan) = (&*info, &mut *scan.cast::<Scan<'_>>());
        let libraries = &mut *scan.libraries;
        if info.dlpi_subs != libraries.unloaded {
            // Another library may be where one was.
            libraries.unloaded = info.dlpi_subs;
            libraries.checked.clear();
            libraries.watched.clear();
        }
        let header = info.dlpi_phdr.addr();
        if !libraries.checked.contains(&header) {
            if is_excluded(info) || !calls(info).are_both() {
                libraries.checked.insert(header);
            } else {
                let path = CStr::from_ptr(info.dlpi_name);
                scan.pending.push((header, path.to_owned()));
            }
        }
    }
    0
}

/// Changes a library that [`find`] has found, and that stays loaded.
unsafe extern "C" fn change(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    scan: *mut c_void,
) -> c_int {
    // SAFETY: the dynamic linker passes a library that is mapped during the call, and `scan`.
    unsafe {
        let (info, scan) = (&*info, &mut *scan.cast::<Scan<'_>>());
        let header = info.dlpi_phdr.addr();
        let path = CStr::from_ptr(info.dlpi_name);
        let is_it = |it: &(usize, CString)| it.0 == header && *it.1 == *path;
        if !scan.pending.iter().any(is_it) {
            return 0;
        }
        scan.libraries.checked.insert(header);
        let (calls, addresses) = (calls(info), addresses(info));
        if calls.are_of_this_interpreter(&addresses) {
            match calls.replace() {
                Ok(()) => scan.libraries.watched.push(addresses),
                Err(error) => scan.error = Some(format!("{}: {error}", path.to_string_lossy())),
            }
        }
    }
    0
}

/// Returns whether a library's calls of the functions need not, or must not, reach this module's.
///
/// # Safety
/// The library is mapped.
unsafe fn is_excluded(info: &libc::dl_phdr_info) -> bool {
    // SAFETY: the caller ensures that the library is mapped.
    let (addresses, path) = unsafe { (addresses(info), CStr::from_ptr(info.dlpi_name)) };
    let interpreter = loaded().map_or(0, |contextvars| contextvars.enter as *const () as usize);
    let own = enter as *const () as usize;
    let file = path.to_bytes().rsplit(|byte| *byte == b'/').next();
    addresses.contains(&interpreter)
        || addresses.contains(&own)
        // Module `eager` handles its tasks: in many interpreters, `_asyncio` is built in, and has
        // no addresses to replace.
        || file.is_some_and(|file| file.starts_with(b"_asyncio."))
}

/// Returns the program headers of a library.
///
/// # Safety
/// The library is mapped.
unsafe fn headers(info: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    // SAFETY: the dynamic linker says where they are.
    unsafe { slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) }
}

/// Returns the addresses from the first to the last byte of a library.
///
/// # Safety
/// The library is mapped.
unsafe fn addresses(info: &libc::dl_phdr_info) -> Range<usize> {
    let base = info.dlpi_addr as usize;
    // SAFETY: the caller ensures that the library is mapped.
    let segments = unsafe { headers(info) }.iter();
    let segments = segments.filter(|header| header.p_type == PT_LOAD);
    let segments = segments.map(|header| {
        let start = base.wrapping_add(header.p_vaddr as usize);
        start..start.wrapping_add(header.p_memsz as usize)
    });
    let all = segments.reduce(|all, it| all.start.min(it.start)..all.end.max(it.end));
    all.unwrap_or_default()
}

/// Returns where a library calls the functions.
///
/// # Safety
/// The library is mapped.
unsafe fn calls(info: &libc::dl_phdr_info) -> Calls {
    let mut calls = Calls::default();
    // SAFETY: the caller ensures that the library is mapped.
    let (addresses, headers) = unsafe { (addresses(info), headers(info)) };
    let base = info.dlpi_addr as usize;
    let find = |kind| headers.iter().find(|header| header.p_type == kind);
    let Some(dynamic) = find(PT_DYNAMIC) else {
        return calls;
    };
    let dynamic = base.wrapping_add(dynamic.p_vaddr as usize) as *const [usize; 2];
    let read_only = find(PT_GNU_RELRO).map_or(0..0, |header| {
        let start = base.wrapping_add(header.p_vaddr as usize);
        // As the dynamic linkers of glibc and musl round it.
        let page = |address: usize| address & !(page_size() - 1);
        page(start)..page(start + header.p_memsz as usize)
    });
    // SAFETY: the library stays loaded while the names are read.
    for (name, address) in unsafe { functions(base, dynamic, addresses) } {
        let places = match name {
            name if name == c"PyContext_Enter" => &mut calls.enter,
            name if name == c"PyContext_Exit" => &mut calls.exit,
            _ => continue,
        };
        places.push(Place {
            address,
            is_read_only: read_only.contains(&address),
        });
    }
    calls
}

/// Returns the functions that a library calls: name, and where their address is.
///
/// # Safety
/// `dynamic` is the dynamic section of a library at `base` and `addresses` that stays loaded.
unsafe fn functions(
    base: usize,
    mut dynamic: *const [usize; 2],
    addresses: Range<usize>,
) -> impl Iterator<Item = (&'static CStr, usize)> {
    let (mut symbols, mut strings) = (0, 0);
    // Addresses and sizes of `DT_RELA` and `DT_JMPREL`.
    let (mut data, mut calls) = ((0, 0), (0, 0));
    // SAFETY: the section ends with a null entry.
    unsafe {
        while (*dynamic)[0] != 0 {
            let [tag, value] = *dynamic;
            // glibc has added the base address here; musl has not. A library at a lower address
            // than it is linked for has a base address that wraps around.
            let address = if addresses.contains(&value) {
                value
            } else {
                base.wrapping_add(value)
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
        // SAFETY: the tables are those of the library.
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

/// `PyContext_Exit`, also with a pending exception. Publishes what was published before `enter`.
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
