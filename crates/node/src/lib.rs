//! Reads which context each thread of Node.js works on, in any process: of programs that publish in the way of
//! the Node.js part of OTEP 4947, where a context belongs to an asynchronous call and not to a thread.

mod process;
mod step;
mod walk;

use std::sync::Arc;

use otelctx_reader::remote::{FileCache, Modules, Target, tls};
use otelctx_reader::runtime::{Runtime, RuntimeError, RuntimeProcess};

use process::NodeProcess;
use walk::{PUBLISHED_SIZE, RecordPlace};

/// The addon's thread-local variable.
const SYMBOL: &str = "otel_thread_ctx_nodejs_v1";

/// Node.js.
#[derive(Clone, Debug, Default)]
pub struct Node {
    files: FileCache,
}

impl Runtime for Node {
    fn name(&self) -> &'static str {
        "nodejs"
    }

    /// Addons are libraries with this extension, whatever their name.
    fn is_candidate(&self, file_name: &[u8]) -> bool {
        file_name.ends_with(b".node")
    }

    fn probe(
        &self,
        target: &dyn Target,
        modules: &Modules,
    ) -> Result<Option<Arc<dyn RuntimeProcess>>, RuntimeError> {
        let publishes = |module: &&otelctx_reader::remote::LoadedModule| {
            matches!(module.exported(target, SYMBOL), Ok(Some(_)))
        };
        if modules.loaded.iter().find(publishes).is_none() {
            return Ok(None);
        }
        let resolution = tls::resolve_sized(target, &self.files, SYMBOL, PUBLISHED_SIZE as u64)?;
        let Some(variable) = resolution.variables.first() else {
            let why = resolution.unreadable.first();
            let why = why.map_or("it is not bound yet", |(_, why)| why);
            return Err(RuntimeError::new(format!("{SYMBOL}: {why}")));
        };
        let place = RecordPlace::Published;
        Ok(Some(Arc::new(NodeProcess::new(variable.clone(), place))))
    }
}
