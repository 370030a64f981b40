#![doc = include_str!("../README.md")]

mod code_cache;
mod compressed;
mod fields;
mod heap;
mod layout;
mod method;
mod names;
mod process;
mod record;
mod scopes;
mod tables;
#[cfg(test)]
mod tests;
mod threads;
mod walk;

use std::sync::Arc;

use otelctx_reader::remote::{LoadedModule, Modules, Target};
use otelctx_reader::runtime::{Runtime, RuntimeError, RuntimeProcess};

use layout::Layout;
use process::HotSpotProcess;
use tables::{Field, Tables};

/// Java virtual machines with HotSpot, as in all builds of OpenJDK.
#[derive(Clone, Debug, Default)]
pub struct HotSpot;

/// A member of a structure, as the tables of a virtual machine have it.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Member<'n> {
    /// The structure and the member's name.
    pub names: (&'n str, &'n str),
    /// The offset in bytes; of a static one, the address.
    pub at: u64,
    /// Size, in bytes.
    pub size: u8,
    pub is_static: bool,
}

impl HotSpot {
    /// A virtual machine with these members and sizes of structures. For fuzzing, where there is no library that exports tables.
    #[doc(hidden)]
    pub fn with_tables(
        target: &dyn Target,
        members: &[Member<'_>],
        sizes: &[(&str, u64)],
    ) -> Result<Arc<dyn RuntimeProcess>, RuntimeError> {
        let field = |member: &Member<'_>| {
            let (of, name) = member.names;
            let field = Field {
                at: member.at,
                is_static: member.is_static,
                size: member.size,
            };
            ((of.to_owned(), name.to_owned()), field)
        };
        let sizes = sizes.iter().map(|(name, size)| ((*name).to_owned(), *size));
        let tables = Tables {
            fields: members.iter().map(field).collect(),
            sizes: sizes.collect(),
        };
        let layout = Layout::new(target, &tables)?;
        Ok(Arc::new(HotSpotProcess::new(layout)))
    }
}

impl Runtime for HotSpot {
    fn name(&self) -> &'static str {
        "jvm"
    }

    fn is_candidate(&self, file_name: &[u8]) -> bool {
        file_name == b"libjvm.so"
    }

    fn probe(
        &self,
        target: &dyn Target,
        modules: &Modules,
    ) -> Result<Option<Arc<dyn RuntimeProcess>>, RuntimeError> {
        // Other virtual machines have a library of this name, too.
        let describes_itself = |module: &&LoadedModule| {
            matches!(module.exported(target, "gHotSpotVMStructs"), Ok(Some(_)))
        };
        let Some(module) = modules.loaded.iter().find(describes_itself) else {
            return Ok(None);
        };
        let tables = Tables::read(target, module)?;
        let layout = Layout::new(target, &tables)?;
        Ok(Some(Arc::new(HotSpotProcess::new(layout))))
    }
}
