//! Resolves the functions of stacks.

use std::collections::HashMap;

use otelctx_profile::{Function, SymbolQuery, Symbolizer};
use otelctx_reader::sample::{Catalog, Mapping, NamedFrame, ProcessFacts};
use otelctx_symbolize::{Failure, Symbols};

use super::Code;

/// Maximum memory of the functions that are kept for the next process, in bytes.
const MAX_CACHED: usize = 32 << 20;

/// Functions at addresses of files: processes that have the same library mapped share them.
#[derive(Debug, Default)]
pub(in crate::command::dump) struct Names {
    /// Has no files open.
    symbols: Symbols,
    /// By build ID and offset in the file.
    known: HashMap<(Vec<u8>, u64), Vec<Function>>,
    size: usize,
}

/// The functions of a process's stacks.
#[derive(Debug, Default)]
pub(in crate::command::dump) struct Named {
    places: HashMap<u64, Place>,
    /// Paths of files.
    modules: Vec<String>,
    /// Files whose functions could not be resolved.
    pub(in crate::command::dump) failures: Vec<Failure>,
}

/// The code at an address.
#[derive(Debug)]
struct Place {
    /// Index of its module's path.
    module: usize,
    /// Offset in the file.
    offset: u64,
    /// Innermost inlined function first.
    functions: Vec<Function>,
}

impl Named {
    /// The functions at an address, innermost inlined function first.
    pub(super) fn functions(&self, address: u64) -> &[Function] {
        let place = self.places.get(&address);
        place.map_or(&[], |place| &place.functions)
    }

    /// Whether an address is in code that a runtime has generated for this function, and has no lines of its own.
    pub(super) fn is_generated_for(&self, address: u64, name: &str) -> bool {
        let functions = self.functions(address);
        let is_it = matches!(functions, [function] if function.name == name && function.line == 0);
        is_it && self.is_anonymous(address)
    }

    /// Whether an address is in memory without a file or another name.
    pub(super) fn is_anonymous(&self, address: u64) -> bool {
        let place = self.places.get(&address);
        place.is_some_and(|it| self.modules[it.module].is_empty())
    }

    /// The file at an address, and the offset in it.
    pub(super) fn module(&self, address: u64) -> Option<(&str, u64)> {
        let place = self.places.get(&address)?;
        let path = self.modules[place.module].as_str();
        (!path.is_empty()).then_some((path, place.offset))
    }
}

/// The function that a runtime has named.
fn function(frame: &NamedFrame) -> Function {
    Function {
        name: frame.name().to_owned(),
        file: frame.file.clone(),
        line: frame.line,
        ..Function::default()
    }
}

impl Names {
    /// Resolves functions by this symbolizer.
    pub(in crate::command::dump) fn new(symbols: Symbols) -> Self {
        Self {
            symbols,
            ..Self::default()
        }
    }

    /// Resolves the functions of a process's stacks.
    pub(in crate::command::dump) fn resolve(&mut self, pid: Option<i32>, code: &Code) -> Named {
        let mut symbols = self.symbols.clone().files(code.files.clone());
        let process = ProcessFacts {
            pid: pid.filter(|_| code.is_live).unwrap_or_default(),
            ..ProcessFacts::default()
        };
        let mut catalog = Catalog::new();
        let mut named = Named::default();
        for region in &code.regions {
            let module = &region.module;
            let offset = |address: &u64| {
                let inside = address.wrapping_sub(region.start);
                inside.wrapping_add(region.offset)
            };
            let place = |address: &u64| match module.has_file() {
                true => offset(address),
                false => *address,
            };
            let build_id = &module.build_id;
            let mut functions: Vec<Option<Vec<Function>>> = Vec::new();
            for address in &region.lookups {
                let generated = code.generated.as_ref().and_then(|it| it.at(*address));
                let known = self.known.get(&(build_id.clone(), place(address)));
                functions.push(match generated {
                    Some(named) => Some(vec![function(&named)]),
                    None => known.cloned(),
                });
            }
            let unknown: Vec<usize> = (0..functions.len())
                .filter(|index| functions[*index].is_none())
                .collect();
            if !unknown.is_empty() {
                let mapping = Mapping {
                    start: region.start,
                    end: region.end,
                    offset: region.offset,
                    module: catalog.module(module.clone()),
                    since: 0,
                };
                let query = SymbolQuery::new(module, &process);
                let query = query.mapped(code.is_live.then_some(&mapping));
                let places: Vec<u64> = unknown
                    .iter()
                    .map(|index| place(&region.lookups[*index]))
                    .collect();
                let found = symbols.functions(query, &places);
                for ((index, place), found) in unknown.into_iter().zip(places).zip(found) {
                    self.keep(build_id, place, &found);
                    functions[index] = Some(found);
                }
            }
            let index = named.modules.len();
            named.modules.push(module.path.clone());
            for (address, functions) in region.lookups.iter().zip(functions) {
                let place = Place {
                    module: index,
                    offset: offset(address),
                    functions: functions.unwrap_or_default(),
                };
                named.places.insert(*address, place);
            }
        }
        named.failures = symbols.failures().to_vec();
        named
    }

    fn keep(&mut self, build_id: &[u8], place: u64, functions: &[Function]) {
        let text =
            |function: &Function| size_of::<Function>() + function.name.len() + function.file.len();
        let size = 64 + build_id.len() + functions.iter().map(text).sum::<usize>();
        if !build_id.is_empty() && self.size + size <= MAX_CACHED {
            self.size += size;
            let key = (build_id.to_vec(), place);
            self.known.insert(key, functions.into());
        }
    }
}
