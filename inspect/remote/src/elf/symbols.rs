//! Symbol lookup by name.

use object::LittleEndian as LE;
use object::elf::{self, Sym64, SymbolType};

use super::ElfError::Malformed;
use super::{CHUNK, Elf, ElfError, MAX_ENTRIES, Source, chunks, structs};

/// Maximum number of links of a hash chain that are followed; linkers create short chains.
const MAX_CHAIN: u64 = 1 << 12;
/// Maximum number of symbols whose names are compared one by one; a program has a few hundred.
const MAX_COMPARED: u64 = 1 << 14;
/// Maximum size of the names of all symbols, where all are read, in bytes. Those of Node.js have 12 MiB.
const MAX_NAMES: usize = 64 << 20;
/// Maximum size of a name that is returned, with the NUL behind it, in bytes: symbols may share the rest of one long name.
const MAX_NAME: usize = 256;
const TOO_MANY_COMPARED: ElfError =
    Malformed("it has more than 16,384 symbols of one kind to compare");
const TOO_MANY_SYMBOLS: ElfError = Malformed("it has more than 8 million symbols");

/// A defined symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ElfSymbol {
    /// `st_value`: an address in the module, or an offset in its thread-local storage.
    pub value: u64,
    /// Size in bytes (`st_size`).
    pub size: u64,
    /// Variable, function or thread-local variable.
    pub kind: SymbolKind,
    /// True if it is in `.dynsym`. If not, it was found in `.symtab`, which `strip` removes.
    pub dynamic: bool,
}

/// A function, from its symbol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedFunction {
    /// Its name.
    pub name: Vec<u8>,
    /// Its address in the module (`st_value`).
    pub address: u64,
    /// Size in bytes (`st_size`).
    pub size: u64,
}

/// The kind of a symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SymbolKind {
    /// A variable (STT_OBJECT).
    Object,
    /// A function (STT_FUNC).
    Function,
    /// A thread-local variable (STT_TLS).
    ThreadLocal,
    /// Any other type, by its number.
    Other(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FoundSymbol {
    /// Its index in the table; 0 in [`Elf::static_tls_symbol`].
    pub(crate) index: u32,
    pub(crate) value: u64,
    pub(crate) size: u64,
    pub(crate) kind: SymbolType,
    pub(crate) defined: bool,
    /// True if it is visible only in its own module (STB_LOCAL). gold and mold put hidden variables
    /// into `.dynsym` so that relocations of TLS descriptors can name them.
    pub(crate) local: bool,
    /// STV_HIDDEN or STV_INTERNAL
    pub(crate) hidden: bool,
}

/// The address of a function that a symbol defines.
fn function(symbol: &Sym64<LE>) -> Option<u64> {
    let is_function = match symbol.st_type() {
        elf::STT_FUNC | elf::STT_GNU_IFUNC => true,
        elf::STT_NOTYPE => symbol.st_bind() == elf::STB_GLOBAL,
        _ => false,
    };
    let section = symbol.st_shndx.get(LE);
    let is_defined = section != elf::SHN_UNDEF && section != elf::SHN_ABS;
    (is_function && is_defined).then(|| symbol.st_value.get(LE))
}

impl Elf<'_> {
    /// The definition of `name`: in `.dynsym`, or else in `.symtab`, which only files have.
    ///
    /// # Errors
    /// If the tables are malformed, exceed the limits, or cannot be read.
    pub fn symbol(&self, name: &[u8]) -> Result<Option<ElfSymbol>, ElfError> {
        if let Some(found) = self.exported_symbol(name)? {
            return Ok(Some(found));
        }
        let sections = self.sections()?;
        let Some(table) = sections.iter().find(|it| it.kind == elf::SHT_SYMTAB) else {
            return Ok(None);
        };
        let named = self.symbols_named(&sections, table, name)?;
        // Other object files may have local symbols with the name.
        let defined = || named.iter().filter(|symbol| symbol.defined);
        let found = defined().find(|symbol| !symbol.local);
        let found = found.or_else(|| defined().next());
        Ok(found.map(|found| ElfSymbol::of(found, false)))
    }

    /// The addresses of the functions that symbols name, as far as they are wanted, in order and each once: those of type
    /// STT_FUNC and STT_GNU_IFUNC, and global symbols without a type, as assembly often has. None for a module that is
    /// loaded, whose section headers are not.
    ///
    /// # Errors
    /// If the tables are malformed, have more than 8 million symbols together, or cannot be read.
    pub fn functions(&self, is_wanted: &dyn Fn(u64) -> bool) -> Result<Vec<u64>, ElfError> {
        let mut found = Vec::new();
        let Source::File(file) = self.source else {
            return Ok(found);
        };
        let entry = size_of::<Sym64<LE>>() as u64;
        let mut left = MAX_ENTRIES;
        for table in self.sections()? {
            if !matches!(table.kind, elf::SHT_SYMTAB | elf::SHT_DYNSYM) {
                continue;
            }
            let rest = left.checked_sub(table.size / entry);
            left = rest.ok_or(TOO_MANY_SYMBOLS)?;
            chunks(table.size, entry, |skip, length| {
                let at = table.offset.wrapping_add(skip);
                let bytes = file.read_vec(at, length, CHUNK as usize)?;
                let addresses = structs::<Sym64<LE>>(&bytes).iter().filter_map(function);
                found.extend(addresses.filter(|address| is_wanted(*address)));
                Ok(())
            })?;
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// The functions in `.symtab` (STT_FUNC) whose names begin with a prefix. Names of more than 255 bytes are skipped. None
    /// if the module has no `.symtab`, as after `strip`, or is loaded.
    ///
    /// # Errors
    /// If the tables are malformed, have more than 8 million symbols, 64 MiB of names or 16,384 functions with the prefix,
    /// or cannot be read.
    pub fn functions_with_prefix(&self, prefix: &[u8]) -> Result<Vec<NamedFunction>, ElfError> {
        let mut found = Vec::new();
        let Source::File(file) = self.source else {
            return Ok(found);
        };
        let sections = self.sections()?;
        let Some(table) = sections.iter().find(|it| it.kind == elf::SHT_SYMTAB) else {
            return Ok(found);
        };
        let Some(strings) = sections.get(table.link as usize) else {
            return Err(Malformed("its .symtab has no string table"));
        };
        let entry = size_of::<Sym64<LE>>() as u64;
        if table.size / entry > MAX_ENTRIES {
            return Err(TOO_MANY_SYMBOLS);
        }
        let names = file.read_vec(strings.offset, strings.size, MAX_NAMES)?;
        let mut compared = 0;
        chunks(table.size, entry, |skip, length| {
            let at = table.offset.wrapping_add(skip);
            for symbol in structs::<Sym64<LE>>(&file.read_vec(at, length, CHUNK as usize)?) {
                let name = names.get(symbol.st_name.get(LE) as usize..);
                let name = name.filter(|name| name.starts_with(prefix));
                let is_function =
                    symbol.st_type() == elf::STT_FUNC && symbol.st_shndx.get(LE) != elf::SHN_UNDEF;
                let Some(name) = name.filter(|_| is_function) else {
                    continue;
                };
                compared += 1;
                if compared > MAX_COMPARED {
                    return Err(TOO_MANY_COMPARED);
                }
                let start = &name[..name.len().min(MAX_NAME)];
                if let Some(end) = start.iter().position(|byte| *byte == 0) {
                    found.push(NamedFunction {
                        name: start[..end].to_vec(),
                        address: symbol.st_value.get(LE),
                        size: symbol.st_size.get(LE),
                    });
                }
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// The size of the names of the symbols in `.symtab`, in bytes; 0 if there is no `.symtab`.
    pub fn size_of_names(&self) -> Result<u64, ElfError> {
        let sections = self.sections()?;
        let table = sections.iter().find(|it| it.kind == elf::SHT_SYMTAB);
        let strings = table.and_then(|table| sections.get(table.link as usize));
        Ok(strings.map_or(0, |strings| strings.size))
    }

    /// The definition of `name` in `.dynsym`, looked up in a hash table.
    pub fn exported_symbol(&self, name: &[u8]) -> Result<Option<ElfSymbol>, ElfError> {
        let found = self.dynamic_symbol(name)?.filter(|it| it.defined);
        Ok(found.map(|found| ElfSymbol::of(&found, true)))
    }

    /// Looks up a symbol in `.dynsym`: a definition in the hash table, or else a reference.
    pub(crate) fn dynamic_symbol(&self, name: &[u8]) -> Result<Option<FoundSymbol>, ElfError> {
        let table = &self.table;
        if table.symbols == 0 || table.strings == 0 {
            return Ok(None);
        }
        if table.gnu_hash != 0 {
            self.gnu_lookup(name)
        } else if table.hash != 0 {
            self.sysv_lookup(name)
        } else {
            Ok(None)
        }
    }

    /// DT_GNU_HASH: {buckets, first hashed symbol, bloom words, bloom shift}, bloom filter,
    /// buckets, chains. Symbols that are only referred to come before the first hashed one.
    fn gnu_lookup(&self, name: &[u8]) -> Result<Option<FoundSymbol>, ElfError> {
        let at = self.table.gnu_hash;
        let mut head = [0; 16];
        self.read_at(at, &mut head)?;
        let words = head.as_chunks::<4>().0;
        let [buckets, first, bloom_words, bloom_shift] =
            [0, 1, 2, 3].map(|index| u64::from(u32::from_le_bytes(words[index])));
        if buckets == 0 || bloom_words == 0 || bloom_shift >= 32 {
            return Err(Malformed(
                "its DT_GNU_HASH has no buckets or an impossible filter",
            ));
        }
        let hash = u64::from(elf::gnu_hash(name));
        let bloom_at = at.wrapping_add(16);
        let buckets_at = bloom_at.wrapping_add(8 * bloom_words);
        let chains_at = buckets_at.wrapping_add(4 * buckets);

        let bloom = self.read_u64(bloom_at.wrapping_add(8 * ((hash / 64) % bloom_words)))?;
        let both = (1 << (hash % 64)) | (1 << ((hash >> bloom_shift) % 64));
        if bloom & both == both {
            let start = self.read_u32(buckets_at.wrapping_add(4 * (hash % buckets)))?;
            let mut index = u64::from(start);
            let mut links = 0;
            while index >= first && start != 0 {
                let link = u64::from(self.read_u32(chains_at.wrapping_add(4 * (index - first)))?);
                if link | 1 == hash | 1
                    && let Some(symbol) = self.dynamic_symbol_if_named(index, name)?
                {
                    return Ok(Some(symbol));
                }
                links += 1;
                if link & 1 == 1 {
                    break;
                }
                if links > MAX_CHAIN {
                    return Err(Malformed("a chain of its DT_GNU_HASH does not end"));
                }
                index += 1;
            }
        }
        let mut unhashed = first.saturating_sub(1);
        if unhashed == 0 {
            // If nothing is exported, GNU ld writes an empty table that does not contain the number
            // of symbols (binutils bfd/elflink.c, "Empty .gnu.hash … section is special").
            self.relocations(&mut |_, _, symbol, _| {
                unhashed = unhashed.max(u64::from(symbol));
                Ok(())
            })?;
        }
        self.unhashed_tls_symbol(unhashed, name)
    }

    /// DT_HASH: {buckets, chains}, buckets, chains.
    fn sysv_lookup(&self, name: &[u8]) -> Result<Option<FoundSymbol>, ElfError> {
        let at = self.table.hash;
        let buckets = u64::from(self.read_u32(at)?);
        let chains = u64::from(self.read_u32(at.wrapping_add(4))?);
        if buckets == 0 {
            return Ok(None);
        }
        let hash = u64::from(elf::hash(name));
        let mut index = u64::from(self.read_u32(at.wrapping_add(8 + 4 * (hash % buckets)))?);
        let chains_at = at.wrapping_add(8 + 4 * buckets);
        for _ in 0..=MAX_CHAIN.min(chains) {
            if index == 0 || index >= chains {
                return Ok(None);
            }
            if let Some(symbol) = self.dynamic_symbol_if_named(index, name)? {
                return Ok(Some(symbol));
            }
            index = u64::from(self.read_u32(chains_at.wrapping_add(4 * index))?);
        }
        Err(Malformed("a chain of its DT_HASH does not end"))
    }

    fn dynamic_symbol_if_named(
        &self,
        index: u64,
        name: &[u8],
    ) -> Result<Option<FoundSymbol>, ElfError> {
        let size = size_of::<Sym64<LE>>() as u64;
        let mut bytes = [0; size_of::<Sym64<LE>>()];
        let at = self.table.symbols.wrapping_add(size.wrapping_mul(index));
        self.read_at(at, &mut bytes)?;
        let [symbol] = structs::<Sym64<LE>>(&bytes) else {
            return Ok(None);
        };
        let named = self.is_named(symbol, name)?;
        Ok(named.then(|| FoundSymbol::new(index as u32, symbol)))
    }

    fn is_named(&self, symbol: &Sym64<LE>, name: &[u8]) -> Result<bool, ElfError> {
        let offset = u64::from(symbol.st_name.get(LE));
        let length = name.len() as u64 + 1;
        if offset + length > self.table.strings_size {
            return Ok(false);
        }
        let mut bytes = vec![0; name.len() + 1];
        self.read_at(self.table.strings.wrapping_add(offset), &mut bytes)?;
        Ok(bytes.split_last() == Some((&0, name)))
    }

    /// Searches the part of `.dynsym` that no hash table covers, from index 1, for a thread-local
    /// variable: a reference, or one that is local to the module.
    fn unhashed_tls_symbol(
        &self,
        count: u64,
        name: &[u8],
    ) -> Result<Option<FoundSymbol>, ElfError> {
        let size = size_of::<Sym64<LE>>() as u64;
        let from = self.table.symbols.wrapping_add(size);
        let mut found = None;
        let mut index = 1;
        let mut compared = 0;
        self.for_chunks(from, count.saturating_mul(size), size, |bytes| {
            for symbol in structs::<Sym64<LE>>(bytes) {
                if symbol.st_type() == elf::STT_TLS && found.is_none() {
                    compared += 1;
                    if compared > MAX_COMPARED {
                        return Err(TOO_MANY_COMPARED);
                    }
                    if self.is_named(symbol, name)? {
                        found = Some(FoundSymbol::new(index, symbol));
                    }
                }
                index += 1;
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Looks up a thread-local definition in `.symtab`, which only files have.
    pub(crate) fn static_tls_symbol(&self, name: &[u8]) -> Result<Option<FoundSymbol>, ElfError> {
        let mut found = None;
        self.static_definitions(elf::STT_TLS, name.len(), &mut |symbol, its_name| {
            if its_name == name {
                found = Some(symbol);
            }
            found.is_none()
        })?;
        Ok(found)
    }

    /// The names without `prefix`, and the values, of the objects in `.symtab` whose names have
    /// that prefix and at most `longest` bytes.
    pub(crate) fn static_objects(
        &self,
        prefix: &[u8],
        longest: usize,
    ) -> Result<Vec<(Vec<u8>, u64)>, ElfError> {
        let mut found = Vec::new();
        self.static_definitions(elf::STT_OBJECT, longest, &mut |symbol, name| {
            if let Some(name) = name.strip_prefix(prefix) {
                found.push((name.to_vec(), symbol.value));
            }
            true
        })?;
        Ok(found)
    }

    /// Calls `visit` for the definitions of a kind in `.symtab`, with their names if these have at
    /// most `longest` bytes, until it returns false.
    fn static_definitions(
        &self,
        kind: SymbolType,
        longest: usize,
        visit: &mut dyn FnMut(FoundSymbol, &[u8]) -> bool,
    ) -> Result<(), ElfError> {
        let Source::File(file) = self.source else {
            return Ok(());
        };
        let sections = self.sections()?;
        let Some(table) = sections.iter().find(|it| it.kind == elf::SHT_SYMTAB) else {
            return Ok(());
        };
        let Some(strings) = sections.get(table.link as usize) else {
            return Err(Malformed("its .symtab has no string table"));
        };
        let entry = size_of::<Sym64<LE>>() as u64;
        let mut buffer = vec![0; longest + 1];
        let mut goes_on = true;
        let mut compared = 0;
        chunks(table.size, entry, |skip, length| {
            let at = table.offset.wrapping_add(skip);
            for symbol in structs::<Sym64<LE>>(&file.read_vec(at, length, CHUNK as usize)?) {
                let found = FoundSymbol::new(0, symbol);
                let offset = u64::from(symbol.st_name.get(LE));
                let left = strings.size.saturating_sub(offset).min(longest as u64 + 1);
                if !goes_on || found.kind != kind || !found.defined || left == 0 {
                    continue;
                }
                compared += 1;
                if compared > MAX_COMPARED {
                    return Err(TOO_MANY_COMPARED);
                }
                let name = &mut buffer[..left as usize];
                file.read(strings.offset.wrapping_add(offset), name)?;
                if let Some(end) = name.iter().position(|byte| *byte == 0) {
                    goes_on = visit(found, &name[..end]);
                }
            }
            Ok(())
        })
    }
}

impl ElfSymbol {
    fn of(found: &FoundSymbol, dynamic: bool) -> Self {
        ElfSymbol {
            value: found.value,
            size: found.size,
            kind: match found.kind {
                elf::STT_OBJECT => SymbolKind::Object,
                elf::STT_FUNC => SymbolKind::Function,
                elf::STT_TLS => SymbolKind::ThreadLocal,
                other => SymbolKind::Other(other.0),
            },
            dynamic,
        }
    }
}

impl FoundSymbol {
    pub(super) fn new(index: u32, symbol: &Sym64<LE>) -> Self {
        FoundSymbol {
            index,
            value: symbol.st_value.get(LE),
            size: symbol.st_size.get(LE),
            kind: symbol.st_type(),
            defined: symbol.st_shndx.get(LE) != elf::SHN_UNDEF,
            local: symbol.st_bind() == elf::STB_LOCAL,
            hidden: matches!(symbol.st_visibility(), elf::STV_HIDDEN | elf::STV_INTERNAL),
        }
    }
}
