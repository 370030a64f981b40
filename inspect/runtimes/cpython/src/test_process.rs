//! The processes of tests.

use std::sync::Arc;

use otelctx_reader::remote::{FileCache, LiveProcess, Modules, Process, Target};

use crate::find;
use crate::process::PythonProcess;

/// Opens a process and its memory, which stay open until the tests end: readers borrow both.
pub(crate) fn open(pid: i32) -> LiveProcess<'static> {
    let process: &Process = Box::leak(Box::new(Process::open(pid).unwrap()));
    let memory = Box::leak(Box::new(process.memory().unwrap()));
    LiveProcess::new(process, memory)
}

/// Finds the interpreter in a process that has one.
pub(crate) fn find_python(target: &dyn Target) -> PythonProcess {
    let modules = Modules::read(target, &FileCache::default()).unwrap();
    let found = find::find(target, &modules, &Arc::default());
    found.unwrap().unwrap()
}
