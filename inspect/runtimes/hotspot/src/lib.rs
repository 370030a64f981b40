#![doc = include_str!("../README.md")]

mod code_cache;
mod compressed;
mod layout;
mod method;
mod names;
mod process;
mod record;
mod scopes;
mod tables;
#[cfg(test)]
mod tests;
mod walk;

use std::sync::Arc;

use otelctx_reader::remote::{LoadedModule, Modules, Target};
use otelctx_reader::runtime::{Runtime, RuntimeError, RuntimeProcess};

use layout::Layout;
use process::HotSpotProcess;
use tables::Tables;

/// Java virtual machines with HotSpot, as in all builds of OpenJDK.
#[derive(Clone, Debug, Default)]
pub struct HotSpot;

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
