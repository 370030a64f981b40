//! Reads the active context of each Node.js thread, in any process that publishes according to the
//! Node.js part of OTEP 4947, where a context belongs to an asynchronous call and not to a thread.

mod process;
mod step;
mod walk;

use std::sync::Arc;

use otelctx_reader::format::NODEJS_SYMBOL as SYMBOL;
use otelctx_reader::remote::tls::TlsVariable;
use otelctx_reader::remote::{FileCache, LoadedModule, Modules, Target, tls};
use otelctx_reader::runtime::{Embedded, Runtime, RuntimeError, RuntimeProcess};

use process::NodeProcess;
use walk::{PUBLISHED_SIZE, RecordPlace};

/// The Node.js runtime.
#[derive(Clone, Debug, Default)]
pub struct Node {
    files: FileCache,
}

impl Node {
    /// Node.js in a process whose addon has its structure at this offset from the thread pointer, in
    /// bytes. For tests and fuzzing, where there are no modules to search.
    #[must_use]
    pub fn at(target: &dyn Target, offset: i64) -> Arc<dyn RuntimeProcess> {
        let addon = TlsVariable::at_offset(target.machine(), offset);
        Arc::new(NodeProcess::new(vec![addon], RecordPlace::Published, None))
    }
}

impl Runtime for Node {
    fn name(&self) -> &'static str {
        "nodejs"
    }

    /// Addons are libraries with the extension `.node`. The other files have the version.
    fn is_candidate(&self, file_name: &[u8]) -> bool {
        file_name.ends_with(b".node")
            || file_name.starts_with(b"node")
            || file_name.starts_with(b"libnode")
    }

    /// A single executable application is a copy of Node.js with any name. The smallest Node.js has
    /// twice as much code as this limit.
    fn embedded(&self) -> Option<Embedded> {
        const START: &str = "_ZN4node5StartEiPPc";
        Some(Embedded::new(START, 32 << 20))
    }

    fn probe(
        &self,
        target: &dyn Target,
        modules: &Modules,
    ) -> Result<Option<Arc<dyn RuntimeProcess>>, RuntimeError> {
        let publishes =
            |module: &LoadedModule| matches!(module.exported(target, SYMBOL), Ok(Some(_)));
        if !modules.loaded.iter().any(publishes) {
            return Ok(None);
        }
        let size = PUBLISHED_SIZE as u64;
        let resolution = tls::resolve_sized(target, &self.files, SYMBOL, size)?;
        if resolution.variables.is_empty() {
            let why = resolution.unreadable.first();
            let why = why.map_or("it is not bound yet", |(_, why)| why);
            return Err(RuntimeError::new(format!("{SYMBOL}: {why}")));
        }
        let place = RecordPlace::Published;
        let version = version(target, modules);
        let process = NodeProcess::new(resolution.variables, place, version);
        Ok(Some(Arc::new(process)))
    }
}

/// Returns the version of Node.js in a process, whether it publishes or not. `None` if there is none.
#[must_use]
pub fn version_in(target: &dyn Target, files: &FileCache) -> Option<String> {
    version(target, &Modules::read(target, files).ok()?)
}

/// `process.version` without its `v`, from `node::per_process::metadata` (src/node_metadata.h), whose
/// first member is this `std::string`. `None` if it is not exported.
fn version(target: &dyn Target, modules: &Modules) -> Option<String> {
    const METADATA: &str = "_ZN4node11per_process8metadataE";
    /// Nightly builds have the longest versions: `25.10.123-nightly20261122abcdef0123`.
    const MAX: u64 = 40;
    let address = modules.loaded.iter().find_map(|module| {
        let symbol = module.exported(target, METADATA).ok()??;
        Some(module.bias.wrapping_add(symbol.value))
    })?;
    let characters = target.read_u64(address).ok()?;
    let length = target.read_u64(address.wrapping_add(8)).ok()?;
    let length = (1..=MAX).contains(&length).then_some(length)?;
    let bytes = target.read_vec(characters, length, MAX as usize).ok()?;
    let is_version = |byte: &u8| byte.is_ascii_alphanumeric() || b".-+".contains(byte);
    let is_version = bytes[0].is_ascii_digit() && bytes.iter().all(is_version);
    is_version.then(|| String::from_utf8_lossy(&bytes).into_owned())
}
