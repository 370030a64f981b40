//! Resolves a thread-local variable in a synthetic process.
//!
//! Input: see `synthetic.rs`.
#![no_main]

mod synthetic;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use nix::time::{ClockId, clock_gettime};
use otelctx_reader::SYMBOL as NAME;
use otelctx_remote::tls::{Resolution, resolve};
use otelctx_remote::{FileCache, Storage};
use synthetic::Synthetic;

/// Limit on CPU time of one resolution, in a build that is several times slower than the command.
const MAX_TIME: Duration = Duration::from_secs(1);
/// Limit on bytes allocated at a time, without those of the process itself.
const MAX_MEMORY: usize = 64 << 20;
/// Limit on memory reads of one resolution: every slot of the dynamic linker's list of modules, and
/// the tables of 64 KiB of input.
const MAX_READS: u64 = 1 << 20;

/// Counts what is allocated.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: both go to the system's allocator with the arguments unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let allocated = ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(allocated, Ordering::Relaxed);
        // SAFETY: the caller keeps the promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fuzz_target!(|bytes: &[u8]| {
    let process = Synthetic::new(bytes);
    let before = ALLOCATED.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let started = cpu_time();

    let cache = FileCache::new();
    let Ok(resolution) = resolve(&process, &cache, NAME) else {
        panic!("its mappings can be read");
    };
    check_addresses(&process, &resolution);

    assert!(cpu_time() - started <= MAX_TIME);
    assert!(PEAK.load(Ordering::Relaxed) - before <= MAX_MEMORY);
    assert!(process.reads() <= MAX_READS);

    // A second resolution, with and without the cache of files, gives the same.
    for cache in [&cache, &FileCache::new()] {
        let Ok(again) = resolve(&process, cache, NAME) else {
            panic!("its mappings could be read");
        };
        assert_eq!(again.variables, resolution.variables);
        assert_eq!(again.bound_elsewhere, resolution.bound_elsewhere);
        assert_eq!(again.unreadable, resolution.unreadable);
    }
});

fn check_addresses(process: &Synthetic, resolution: &Resolution) {
    for variable in &resolution.variables {
        let mut distance = None;
        for &thread in &process.threads {
            let reads = process.reads();
            let address = variable.address(process, thread);
            let reads = process.reads() - reads;
            match (variable.storage(), address) {
                (_, Ok(None)) if thread == 0 => assert_eq!(reads, 0),
                // Everywhere at the same distance, and nothing is read.
                (Storage::Static, address) => {
                    let address = address.ok().flatten().expect("it is always there");
                    let here = address.wrapping_sub(thread);
                    assert_eq!((*distance.get_or_insert(here), reads), (here, 0));
                }
                (Storage::Dynamic, _) => assert!(reads <= 3),
            }
        }
    }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID);
    time.expect("there is such a clock").into()
}
