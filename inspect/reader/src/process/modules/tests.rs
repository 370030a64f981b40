use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicUsize, Ordering};

use otelctx_format::process_context::Attributes;
use remote::libc::is_c_library;

use super::*;
use crate::Options;
use crate::runtime::{Runtime, RuntimeError, RuntimeProcess, RuntimeThread, Runtimes, ThreadView};

/// A runtime of every program, which counts how often its code was to be found.
#[derive(Debug, Clone, Default)]
struct Anything(Arc<AtomicUsize>);

impl Runtime for Anything {
    fn name(&self) -> &'static str {
        "anything"
    }

    fn is_candidate(&self, file_name: &[u8]) -> bool {
        let program = std::env::current_exe().unwrap();
        program.file_name().unwrap().as_bytes() == file_name
    }

    fn probe(
        &self,
        _: &dyn Target,
        _: &Modules,
    ) -> Result<Option<Arc<dyn RuntimeProcess>>, RuntimeError> {
        Ok(Some(Arc::new(self.clone())))
    }
}

impl RuntimeProcess for Anything {
    fn facts(&self) -> Attributes {
        Vec::new()
    }

    fn find_code(&self, _: &dyn Target) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn thread(&self, _: &dyn Target, _: ThreadView) -> Result<Option<RuntimeThread>, RuntimeError> {
        Ok(None)
    }
}

#[test]
fn a_runtime_without_published_contexts_takes_no_other_files_than_its_own_and_the_c_library() {
    let own = i32::try_from(std::process::id()).unwrap();
    let program = std::env::current_exe().unwrap();
    let mut files = BTreeSet::new();
    let mapped = remote::Process::open(own)
        .unwrap()
        .mappings(&mut |mapping| {
            let is_own = mapping.name == program.as_os_str().as_bytes();
            if mapping.permissions.execute && (is_own || is_c_library(mapping.name)) {
                files.insert(mapping.name.to_vec());
            }
            ControlFlow::Continue(())
        });
    mapped.unwrap();
    for native_stacks in [false, true] {
        let runtime = Anything::default();
        let options = Options {
            runtimes: Runtimes::new(vec![Arc::new(runtime.clone())]),
            native_stacks,
            ..Options::default()
        };
        let mut process = Process::with_options(own, options).unwrap();
        assert_eq!(process.runtimes().unwrap().len(), 1);
        assert_eq!(process.files().len(), files.len(), "{files:?}");
        assert!(process.resolution().unwrap().threads.is_known());
        // Once for a process.
        process.runtimes().unwrap();
        let found = runtime.0.load(Ordering::Relaxed);
        assert_eq!(found, usize::from(native_stacks));
        // The variable is still searched for in all files, if it is announced.
        process.resolve().unwrap();
        assert!(process.files().len() > files.len());
    }
}
