//! Reads the JavaScript functions on the stacks of V8, in any process with Node.js, without its help: their names, files and
//! lines, also of functions that were inlined.
//!
//! V8 describes its structures in constants that Node.js exports, `v8dbg_*`. Frames are found by their frame pointers; the
//! functions by the objects in them, the bytecode that they execute, and the tables that V8 keeps of generated code to
//! be able to return from it to the interpreter.
//!
//! It runs on x86-64, with V8 12.4 or later (Node.js 22), without compressed pointers.

mod builtins;
mod code;
mod function;
mod heap;
mod kept;
mod layout;
mod positions;
mod process;
mod record;
mod script;
mod stage;
mod text;
mod translation;
mod walker;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use otelctx_reader::remote::{Machine, Modules, Target};
use otelctx_reader::runtime::{Embedded, Runtime, RuntimeError, RuntimeProcess};

use crate::builtins::Builtins;
use crate::layout::Layout;
use crate::process::V8Process;

/// V8 in Node.js, and in programs that contain that.
#[derive(Clone, Debug, Default)]
pub struct V8;

impl Runtime for V8 {
    fn name(&self) -> &'static str {
        "v8"
    }

    fn is_candidate(&self, file_name: &[u8]) -> bool {
        file_name.starts_with(b"node") || file_name.starts_with(b"libnode")
    }

    /// Programs that contain Node.js, or export the same constants.
    fn embedded(&self) -> Option<Embedded> {
        const CONSTANT: &str = "v8dbg_SmiTag";
        Some(Embedded::new(CONSTANT, 32 << 20))
    }

    fn probe(
        &self,
        target: &dyn Target,
        modules: &Modules,
    ) -> Result<Option<Arc<dyn RuntimeProcess>>, RuntimeError> {
        /// What is known of a module's V8, or why that is not supported.
        type Known = Result<(Arc<Layout>, Arc<Builtins>), String>;
        struct Facts(Option<Known>);
        if target.machine() != Machine::X86_64 {
            return Ok(None);
        }
        for module in &modules.loaded {
            let facts = module.fact(target, "", |elf| {
                Ok(Facts(match Layout::read(elf)? {
                    None => None,
                    Some(Ok(layout)) => {
                        let builtins = Builtins::read(elf)?;
                        Some(Ok((Arc::new(layout), Arc::new(builtins))))
                    }
                    Some(Err(reason)) => Some(Err(reason)),
                }))
            })?;
            match &facts.0 {
                None => {}
                Some(Ok((layout, builtins))) => {
                    let file = (module.device, module.inode);
                    let process = V8Process::new(layout.clone(), builtins.clone(), file);
                    return Ok(Some(Arc::new(process)));
                }
                Some(Err(reason)) => return Err(RuntimeError::new(reason)),
            }
        }
        Ok(None)
    }
}
