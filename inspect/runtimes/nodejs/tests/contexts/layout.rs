//! The layout of V8 that the own package announces in the process context, beside the place of the record in its structure:
//! earlier readers know nothing else.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use otelctx_fixtures::{Node, Target};
use otelctx_reader::format::NODEJS_SYMBOL;
use otelctx_reader::format::process_context::Attributes;
use otelctx_reader::remote::{self, FileCache, Modules, tls};
use otelctx_reader::runtime::{
    Runtime, RuntimeError, RuntimeProcess, RuntimeThread, Runtimes, ThreadView,
};
use otelctx_reader::{Options, Process};

use crate::{VERSIONS, compare, open, sample_each_thread};

/// The place of a record's offset in the structure, in bytes.
const RECORD_SLOT_OFFSET: u64 = 20;

/// Notes the thread pointer of each thread.
#[derive(Clone, Debug, Default)]
struct Pointers(Arc<Mutex<BTreeMap<i32, u64>>>);

impl Runtime for Pointers {
    fn name(&self) -> &'static str {
        "pointers"
    }

    fn is_candidate(&self, _: &[u8]) -> bool {
        true
    }

    fn probe(
        &self,
        _: &dyn remote::Target,
        _: &Modules,
    ) -> Result<Option<Arc<dyn RuntimeProcess>>, RuntimeError> {
        Ok(Some(Arc::new(self.clone())))
    }
}

impl RuntimeProcess for Pointers {
    fn facts(&self) -> Attributes {
        Vec::new()
    }

    fn thread(
        &self,
        _: &dyn remote::Target,
        thread: ThreadView,
    ) -> Result<Option<RuntimeThread>, RuntimeError> {
        let mut all = self.0.lock().unwrap();
        all.insert(thread.tid, thread.thread_pointer);
        Ok(None)
    }
}

/// The addresses of the structures of a program's threads.
fn structures(pid: i32) -> Vec<u64> {
    let pointers = Pointers::default();
    let mut options = Options::default();
    options.runtimes = Runtimes::new(vec![Arc::new(pointers.clone())]);
    let mut process = Process::with_options(pid, options).unwrap();
    let present = process.runtimes().unwrap();
    for thread in process.threads().unwrap() {
        // On a busy machine, it may not stop in time.
        let mut states = (0..10).map(|_| thread.state(&present, None));
        states.find_map(Result::ok).expect("it stops");
    }
    let memory = process.as_target().unwrap();
    let resolution = tls::resolve_sized(&*memory, &FileCache::default(), NODEJS_SYMBOL, 32);
    let [variable] = &resolution.unwrap().variables[..] else {
        panic!("one addon")
    };
    let all = pointers.0.lock().unwrap();
    let address = |pointer: &u64| variable.address(&*memory, *pointer).unwrap();
    all.values().filter_map(address).collect()
}

#[test]
fn contexts_are_found_by_the_layout_that_the_process_context_has() {
    for version in VERSIONS {
        let Some(node) = Node::with_version(version) else {
            continue;
        };
        let Some(mut command) = node.publishing(&[], "otelctx") else {
            return;
        };
        let target = Target::spawn(command.arg("hold"));
        let path = format!("/proc/{}/mem", target.pid());
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.unwrap();
        let mut zeroed = 0;
        for address in structures(target.pid()) {
            let mut offset = [0];
            file.read_exact_at(&mut offset, address + RECORD_SLOT_OFFSET)
                .unwrap();
            file.write_all_at(&[0], address + RECORD_SLOT_OFFSET)
                .unwrap();
            zeroed += usize::from(offset != [0]);
        }
        // The main thread and five workers.
        assert_eq!(zeroed, 6, "{version}");
        let name = format!("Node.js {version}, otelctx");
        compare(open(target.pid()), &target, &name);
        sample_each_thread(&target, &name);
    }
}
