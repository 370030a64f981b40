//! A core file: process context, thread-local variable and records from memory that anyone can
//! have made.
//!
//! Input: two bytes, where to cut it short; then the core file.
#![no_main]

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use nix::sys::memfd::{MFdFlags, memfd_create};
use otelctx_reader::{Options, Process};
use otelctx_remote::{CoreFile, Memory, Target};

/// Limit on threads and mappings that are read; more would run the same code.
const MAX_READ: usize = 64;
/// No file of this machine is taken for one that was mapped.
const NOWHERE: &str = "/proc/self/nowhere";

/// Files that cost no disk.
static WHOLE: LazyLock<File> = LazyLock::new(file);
static CUT: LazyLock<File> = LazyLock::new(file);

fn file() -> File {
    File::from(memfd_create(c"core", MFdFlags::empty()).expect("a memfd is to be had"))
}

fn open(file: &File, bytes: &[u8]) -> io::Result<Option<CoreFile>> {
    file.set_len(0)?;
    file.write_all_at(bytes, 0)?;
    let core = CoreFile::from_file(file.try_clone()?, Path::new("core"), Path::new(NOWHERE));
    Ok(core.ok())
}

fuzz_target!(|data: &[u8]| {
    let &[high, low, ref bytes @ ..] = data else {
        return;
    };
    let whole = open(&WHOLE, bytes).expect("a memfd can be written");
    let length = usize::from(u16::from_be_bytes([high, low])) % (bytes.len() + 1);
    let cut = open(&CUT, &bytes[..length]).expect("a memfd can be written");
    let Some(whole) = whole else {
        // The number of program headers may stand behind a cut, but not be right there.
        assert!(cut.is_none());
        return;
    };
    if let Some(cut) = cut {
        for start in starts(&whole) {
            let (mut left, mut all) = ([0; 48], [0; 48]);
            if cut.read(start, &mut left).is_ok() {
                whole
                    .read(start, &mut all)
                    .expect("it has all that the cut one has");
                assert_eq!(left, all);
            }
        }
        assert!(cut.threads().len() <= whole.threads().len());
        inspect(cut);
    }
    inspect(whole);
});

/// Everything twice: the answer is the same.
fn inspect(core: CoreFile) {
    let mut options = Options::default();
    options.any_schema = true;
    let mut core = Process::of_target(core, options);
    let context = core.context().expect("cores can be read");
    assert_eq!(core.context().expect("it could be"), context);
    for thread in core
        .threads()
        .expect("cores can be read")
        .iter()
        .take(MAX_READ)
    {
        let outcome = thread.context().ok();
        assert_eq!(thread.context().ok(), outcome);
    }
}

/// Where its first mappings start.
fn starts(core: &CoreFile) -> Vec<u64> {
    let mut starts = Vec::new();
    let walk = core.mappings(&mut |mapping| {
        starts.push(mapping.start);
        match starts.len() < MAX_READ {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    });
    walk.expect("cores can be read");
    starts
}
