//! Exports `otel_thread_ctx_v1`, and checks that it is exported.

use std::fmt;

/// Adds the symbol to the dynamic symbol table of a cdylib.
///
/// rustc writes a linker version script with the names of the exported Rust items and `local: *`,
/// which hides symbols defined in assembly. In that script, this name is a glob that matches the
/// symbol. The letters in the brackets, none of them a digit, make the name unique to this copy.
#[cfg(target_os = "linux")]
#[unsafe(export_name = concat!("otel_thread_ctx_v[1", env!("OTELCTX_TAG"), "]"))]
#[allow(unreachable_pub)]
pub static EXPORT: u8 = 0;

/// Checks that other processes can find this process's thread contexts: that the thread-local
/// variable of this copy of the crate is in the dynamic symbol table of its module.
///
/// It needs no privileges and reads only this process's own memory. Call it once, for example at
/// start-up, and log the error.
///
/// ```
/// if let Err(why) = otelctx::is_exported() {
///     eprintln!("thread contexts are not visible: {why}");
/// }
/// ```
///
/// # Errors
/// [`NotExported`], which says how to fix it.
#[doc(alias = "ddog_otel_thread_ctx_sanity_check")]
pub fn is_exported() -> Result<(), NotExported> {
    #[cfg(all(target_os = "linux", not(miri)))]
    return own_modules::check(crate::arch::slot() as usize);
    #[cfg(not(all(target_os = "linux", not(miri))))]
    Err(NotExported::Unsupported)
}

/// The reason why other processes cannot find this process's thread contexts, and how to fix it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotExported {
    /// The module has a dynamic symbol table, but the linker did not export the variable.
    Hidden {
        /// The file that defines the variable.
        module: String,
    },
    /// The executable is fully static: it has no dynamic symbol table.
    Static {
        /// The executable.
        module: String,
    },
    /// The executable is a static-pie, and the linker did not export the variable.
    StaticPie {
        /// The executable.
        module: String,
    },
    /// No module of the process defines the variable.
    NotFound,
    /// Thread contexts are defined for Linux on x86-64 and aarch64.
    Unsupported,
}

impl fmt::Display for NotExported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hidden { module } => write!(
                f,
                "otel_thread_ctx_v1 is defined in {} but not exported: the linker kept it local. \
                 Add otelctx-build to the build-dependencies and otelctx_build::export(); to the \
                 build script of the package with the executable, or pass \
                 -Wl,--export-dynamic-symbol=otel_thread_ctx_v1 to the linker",
                module.escape_debug()
            ),
            Self::Static { module } => write!(
                f,
                "{} is fully static and has no dynamic symbol table, so otel_thread_ctx_v1 cannot \
                 be exported. Link it dynamically (-C target-feature=-crt-static), or as \
                 static-pie with lld or mold and \
                 -Wl,--export-dynamic-symbol=otel_thread_ctx_v1",
                module.escape_debug()
            ),
            Self::StaticPie { module } => write!(
                f,
                "otel_thread_ctx_v1 is defined in {} but not exported: the linker kept it local. Link \
                 this static-pie program with lld or mold and \
                 -Wl,--export-dynamic-symbol=otel_thread_ctx_v1 (linked by GNU ld, it would crash \
                 before main), or link it dynamically",
                module.escape_debug()
            ),
            Self::NotFound => f.write_str(
                "no loaded module defines otel_thread_ctx_v1; some C libraries do not tell where \
                 a module's thread-local storage is: run `otelctx check` on the executable",
            ),
            Self::Unsupported => f.write_str(
                "thread contexts are defined for Linux on x86-64 and aarch64; on this target \
                 nobody can read them",
            ),
        }
    }
}

impl std::error::Error for NotExported {}

/// The dynamic symbol tables of the modules of this process.
#[cfg(all(target_os = "linux", not(miri)))]
mod own_modules {
    use std::env;
    use std::ffi::{c_int, c_void, CStr};
    use std::slice;

    use super::NotExported;
    use crate::call::caught;

    const SYMBOL: &CStr = c"otel_thread_ctx_v1";

    // elf(5). Names as there.
    const PT_LOAD: u32 = 1;
    const PT_DYNAMIC: u32 = 2;
    const PT_INTERP: u32 = 3;
    const PT_TLS: u32 = 7;
    const DT_HASH: u64 = 4;
    const DT_STRTAB: u64 = 5;
    const DT_SYMTAB: u64 = 6;
    const DT_GNU_HASH: u64 = 0x6fff_fef5;
    const STT_TLS: u8 = 6;
    const STB_LOCAL: u8 = 0;

    #[repr(C)]
    struct Symbol {
        name: u32,
        info: u8,
        other: u8,
        section: u16,
        value: u64,
        size: u64,
    }

    struct Search {
        variable: usize,
        /// The result for the module whose thread-local storage holds the variable.
        result: Option<Result<(), NotExported>>,
        /// The result for this code's module if the address of its storage is unknown: glibc
        /// allocates that of a library loaded later only on first use.
        own: Option<Result<(), NotExported>>,
    }

    pub(super) fn check(variable: usize) -> Result<(), NotExported> {
        if !crate::arch::OBSERVED {
            return Err(NotExported::Unsupported);
        }
        let mut search = Search {
            variable,
            result: None,
            own: None,
        };
        // SAFETY: the callback takes a `Search`, which outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(visit_module), (&raw mut search).cast()) };
        // This module has a definition of its own. If it is local, it is the variable. If it is
        // exported, the variable is this or another exported one, to which this module is bound.
        let result = search.result.or(search.own);
        result.unwrap_or(Err(NotExported::NotFound))
    }

    /// Ends the iteration at the module whose thread-local storage holds the variable.
    unsafe extern "C" fn visit_module(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        search: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes a module that stays loaded during the call.
        caught(1, || unsafe {
            let (info, search) = (&*info, &mut *search.cast::<Search>());
            let headers = slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
            let start = info.dlpi_tls_data as usize;
            let Some(tls) = headers.iter().find(|header| header.p_type == PT_TLS) else {
                return 0;
            };
            let offset = search.variable.wrapping_sub(start);
            let offset = (start != 0 && offset < tls.p_memsz as usize).then_some(offset);
            let base = info.dlpi_addr as usize;
            let is_own = start == 0 && {
                let here = SYMBOL.as_ptr() as usize;
                let mut loaded = headers.iter().filter(|header| header.p_type == PT_LOAD);
                loaded.any(|header| {
                    let offset = here.wrapping_sub(base.wrapping_add(header.p_vaddr as usize));
                    offset < header.p_memsz as usize
                })
            };
            if offset.is_none() && !is_own {
                return 0;
            }
            let dynamic = headers.iter().find(|header| header.p_type == PT_DYNAMIC);
            let table = dynamic.and_then(|dynamic| {
                Table::new(base, (base + dynamic.p_vaddr as usize) as *const [u64; 2])
            });
            let is_static =
                library(info).is_none() && headers.iter().all(|header| header.p_type != PT_INTERP);
            let result = match table {
                Some(table) if table.exports(offset) => Ok(()),
                Some(_) if is_static => Err(NotExported::StaticPie { module: name(info) }),
                Some(_) => Err(NotExported::Hidden { module: name(info) }),
                None => Err(NotExported::Static { module: name(info) }),
            };
            if is_own {
                search.own = Some(result);
                return 0;
            }
            search.result = Some(result);
            1
        })
    }

    /// Returns the module's path; `None` for an executable, unless musl names it.
    unsafe fn library(info: &libc::dl_phdr_info) -> Option<&CStr> {
        // SAFETY: the loader passes null or a C string.
        let name = (!info.dlpi_name.is_null()).then(|| unsafe { CStr::from_ptr(info.dlpi_name) });
        // The second is what musl calls a static executable.
        name.filter(|name| !name.is_empty() && *name != c"/proc/self/exe")
    }

    /// Returns the module's file.
    unsafe fn name(info: &libc::dl_phdr_info) -> String {
        // SAFETY: `info` comes from the loader.
        if let Some(name) = unsafe { library(info) } {
            return name.to_string_lossy().into_owned();
        }
        let path = env::current_exe();
        path.map_or("the executable".into(), |path| {
            path.to_string_lossy().into_owned()
        })
    }

    struct Table {
        symbols: *const Symbol,
        strings: *const libc::c_char,
        /// Number of symbols, according to the hash table.
        count: usize,
    }

    impl Table {
        /// Returns the symbol table that a dynamic section describes.
        ///
        /// # Safety
        /// `dynamic` is the dynamic section of a loaded module at `base`.
        unsafe fn new(base: usize, mut dynamic: *const [u64; 2]) -> Option<Self> {
            let (mut symbols, mut strings, mut hash, mut gnu_hash) = (0, 0, 0, 0);
            // SAFETY: the section ends with a null entry.
            unsafe {
                while (*dynamic)[0] != 0 {
                    let [tag, address] = *dynamic;
                    // glibc has added the base address here; musl has not.
                    let address = match address as usize {
                        address if address < base => address + base,
                        address => address,
                    };
                    match tag {
                        DT_SYMTAB => symbols = address,
                        DT_STRTAB => strings = address,
                        DT_HASH => hash = address,
                        DT_GNU_HASH => gnu_hash = address,
                        _ => {}
                    }
                    dynamic = dynamic.add(1);
                }
                if symbols == 0 || strings == 0 {
                    return None;
                }
                let count = match (hash, gnu_hash) {
                    (0, 0) => return None,
                    // nbucket, nchain: the latter is the number of symbols.
                    (hash, _) if hash != 0 => *(hash as *const u32).add(1) as usize,
                    (_, gnu_hash) => gnu_count(gnu_hash as *const u32),
                };
                Some(Self {
                    symbols: symbols as _,
                    strings: strings as _,
                    count,
                })
            }
        }

        /// Returns whether the table has the variable, at this offset of the storage if that is
        /// known.
        ///
        /// # Safety
        /// The module is still loaded.
        unsafe fn exports(&self, offset: Option<usize>) -> bool {
            (0..self.count).any(|index| {
                // SAFETY: the hash table says that the table has this many symbols.
                unsafe {
                    let symbol = &*self.symbols.add(index);
                    // gold and mold put local variables there, too.
                    symbol.info >> 4 != STB_LOCAL
                        && symbol.section != 0
                        && symbol.info & 0xf == STT_TLS
                        && offset.is_none_or(|offset| symbol.value as usize == offset)
                        && CStr::from_ptr(self.strings.add(symbol.name as usize)) == SYMBOL
                }
            })
        }
    }

    /// Returns the index after the last symbol of a GNU hash table: the end of the highest bucket's
    /// chain, whose last hash value is odd.
    ///
    /// # Safety
    /// `table` belongs to a loaded module.
    unsafe fn gnu_count(table: *const u32) -> usize {
        // SAFETY: four words, bloom words of 64 bits, buckets, chains.
        unsafe {
            let [buckets, first, bloom] = [0, 1, 2].map(|word| *table.add(word) as usize);
            let bucket = table.add(4 + 2 * bloom);
            let chain = bucket.add(buckets);
            let Some(mut last) = (0..buckets).map(|at| *bucket.add(at) as usize).max() else {
                return first;
            };
            if last < first {
                return first;
            }
            while *chain.add(last - first) & 1 == 0 {
                last += 1;
            }
            last + 1
        }
    }
}
