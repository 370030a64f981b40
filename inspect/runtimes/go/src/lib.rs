//! Reads the goroutine that each thread of a Go program runs, and its labels (`runtime/pprof`), in any process.
//!
//! A goroutine carries its labels wherever it runs (`pprof.Do`), so they are what Go has in the place of a context for each
//! thread: OTEP 4947 calls this `go_pprof_labels_v1`. They are read whether a process announces this or not.

mod build_info;
mod dwarf;
mod file;
mod goroutine;
mod ids;
mod labels;
mod layout;
mod process;
mod step;
mod tasks;
mod threads;

use std::sync::Arc;

use otelctx_reader::remote::{LoadedModule, Modules, Target};
use otelctx_reader::runtime::{Embedded, Runtime, RuntimeError, RuntimeProcess};

use build_info::{MAGIC, SECTION};
use file::GoFile;
pub use ids::LabelNames;
use process::GoProcess;

/// The Go runtime. Of the labels of a goroutine, these are a trace and a span ID: `trace_id`, `trace id`, `otel.traceid` or
/// `traceID`, and `span_id`, `span id`, `otel.spanid` or `spanID`.
#[derive(Clone, Debug, Default)]
pub struct Go {
    names: Arc<LabelNames>,
}

impl Go {
    /// The Go runtime with other names of labels.
    #[must_use]
    pub fn with_names(names: LabelNames) -> Self {
        Self {
            names: Arc::new(names),
        }
    }
}

/// The smallest programs of Go have twice as much in memory, in bytes.
const MIN_SIZE: u64 = 512 << 10;

impl Runtime for Go {
    fn name(&self) -> &'static str {
        "go"
    }

    /// Programs of Go have any name.
    fn is_candidate(&self, _: &[u8]) -> bool {
        false
    }

    /// Go's linker writes the section into every program, and `strip` leaves it.
    fn embedded(&self) -> Option<Embedded> {
        Some(Embedded::with_section(SECTION, MAGIC, MIN_SIZE))
    }

    fn probe(
        &self,
        target: &dyn Target,
        modules: &Modules,
    ) -> Result<Option<Arc<dyn RuntimeProcess>>, RuntimeError> {
        let section = |module: &LoadedModule| {
            let section = module.section(target, SECTION, MAGIC);
            section.ok().flatten()
        };
        let mut loaded = modules.loaded.iter();
        let found = loaded.find_map(|module| Some((module, section(module)?)));
        let Some((module, section)) = found else {
            return Ok(None);
        };
        let file = module.fact(target, "go", |elf| {
            GoFile::read(elf, section, module.file.executable)
        })?;
        let Some(file) = file.as_ref() else {
            return Ok(None);
        };
        let process = GoProcess::new(target, module, file, self.names.clone())?;
        Ok(Some(Arc::new(process)))
    }
}
