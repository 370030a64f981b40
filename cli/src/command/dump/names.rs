//! Resolves the functions of stacks, for all processes of one run.

use std::collections::HashMap;

use otelctx_profile::{Function, SymbolQuery};
use otelctx_reader::sample::{Catalog, Mapping, NamedFrame, ProcessFacts};
use otelctx_symbolize::Symbols;

use super::model::Report;
use super::stack::{Code, Named, Place, Region};

/// Maximum memory of the functions that are kept for the next process, in bytes.
const MAX_CACHED: usize = 32 << 20;

/// Functions at addresses of files: processes that have the same library mapped share them.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Has no files open.
    symbols: Symbols,
    /// By build ID and offset in the file.
    known: HashMap<(Vec<u8>, u64), Vec<Function>>,
    size: usize,
}

/// Returns the function that a runtime has named.
fn function(frame: &NamedFrame) -> Function {
    Function {
        name: frame.name().to_owned(),
        file: frame.file.clone(),
        line: frame.line,
        ..Function::default()
    }
}

/// Returns the offset in a region's file.
fn offset(region: &Region, address: u64) -> u64 {
    let inside = address.wrapping_sub(region.start);
    inside.wrapping_add(region.offset)
}

/// Returns the address at which a symbolizer looks up a function: an offset if the region has a file.
fn lookup_address(region: &Region, address: u64) -> u64 {
    if region.module.has_file() {
        offset(region, address)
    } else {
        address
    }
}

impl Names {
    pub(super) fn new(symbols: Symbols) -> Self {
        Self {
            symbols,
            ..Self::default()
        }
    }

    /// Resolves the functions of a report's stacks.
    pub(super) fn resolve(&mut self, report: &mut Report) {
        if let Some(code) = report.code.take() {
            report.named = self.named(report.pid, &code);
        }
    }

    fn named(&mut self, pid: Option<i32>, code: &Code) -> Named {
        let mut symbols = self.symbols.clone().files(code.files.clone());
        let process = ProcessFacts {
            pid: pid.filter(|_| code.is_live).unwrap_or_default(),
            ..ProcessFacts::default()
        };
        let mut catalog = Catalog::new();
        let mut named = Named::default();
        let (mut functions, mut unknown) = (Vec::new(), Vec::new());
        for (index, region) in code.regions.iter().enumerate() {
            let of_region = self.known(region, code);
            let places: Vec<u64> = std::iter::zip(&region.lookups, &of_region)
                .filter(|(_, functions)| functions.is_none())
                .map(|(address, _)| lookup_address(region, *address))
                .collect();
            functions.push(of_region);
            if !places.is_empty() {
                let mapping = Mapping {
                    start: region.start,
                    end: region.end,
                    offset: region.offset,
                    module: catalog.module(region.module.clone()),
                    since: 0,
                };
                unknown.push((index, mapping, places));
            }
        }
        let queries: Vec<(SymbolQuery<'_>, &[u64])> = unknown
            .iter()
            .map(|(index, mapping, places)| {
                let query = SymbolQuery::new(&code.regions[*index].module, &process);
                let query = query.mapped(code.is_live.then_some(mapping));
                (query, &places[..])
            })
            .collect();
        let found = symbols.functions_of_all(&queries);
        for ((index, _, places), found) in unknown.iter().zip(found) {
            let build_id = &code.regions[*index].module.build_id;
            let missing = functions[*index].iter_mut().filter(|it| it.is_none());
            for ((place, found), missing) in places.iter().zip(found).zip(missing) {
                self.keep(build_id, *place, &found);
                *missing = Some(found);
            }
        }
        for (region, functions) in code.regions.iter().zip(functions) {
            let module = named.modules.len();
            named.modules.push(region.module.path.clone());
            for (address, functions) in region.lookups.iter().zip(functions) {
                let place = Place {
                    module,
                    offset: offset(region, *address),
                    functions: functions.unwrap_or_default(),
                };
                named.places.insert(*address, place);
            }
        }
        named.failures = symbols.failures().to_vec();
        named
    }

    /// The functions at the addresses of a region that are known without its file.
    fn known(&self, region: &Region, code: &Code) -> Vec<Option<Vec<Function>>> {
        let known = |address: &u64| {
            let generated = code.generated.as_ref().and_then(|it| it.at(*address));
            if let Some(named) = generated {
                return Some(vec![function(&named)]);
            }
            let address = lookup_address(region, *address);
            let key = (region.module.build_id.clone(), address);
            self.known.get(&key).cloned()
        };
        region.lookups.iter().map(known).collect()
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
