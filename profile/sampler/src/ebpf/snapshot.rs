//! Reads the contexts of all threads of a process, without stopping any of them.

use std::fs::File;
use std::io::Read;

use aya::maps::{Array, MapData};
use aya::programs::Iter;
use aya::{Btf, Ebpf, EbpfLoader};
use otelctx_reader as reader;
use otelctx_sample::format::record::{self, DecodedContext};
use otelctx_sample::{Found, ReadStep};
use reader::ThreadVariables;
use reader::sweep::SnapshotSource;
pub use reader::sweep::ThreadSnapshot;

use super::abi::{self, EventHead, RECORD_LIMIT, Wanted, part};
use super::decode::name;
use super::namespace;
use super::object::{find, map};
use super::targets::{places, target};
use crate::{Error, Refusal, signals};

/// The compiled program; built by `cargo xtask bpf`.
#[cfg(target_arch = "x86_64")]
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../bpf/snapshot.x86_64.o");
#[cfg(target_arch = "aarch64")]
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../bpf/snapshot.aarch64.o");

/// The oldest supported kernel: the first with `bpf_copy_from_user_task`.
const MIN_LINUX: (u32, u32) = (5, 18);
/// Maximum number of attempts to read a thread whose record changes each time, before it counts as
/// torn, and to read a process that keeps loading or unloading libraries.
const MAX_ATTEMPTS: usize = 5;
/// The kernel program is an iterator over this.
const ITERATOR: &str = "task";

/// Reads the contexts of all threads of a process without stopping any of them. A running thread
/// may change its record during a read, so each record is read until two reads are equal.
///
/// Needs Linux 5.18, and the capabilities that [`Sampler`](crate::Sampler) needs for eBPF.
pub struct Snapshots {
    programs: Ebpf,
    wanted: Array<MapData, Wanted>,
}

impl Snapshots {
    /// Loads the program, which reads at most `max_record` bytes of each record, and at most 4096.
    ///
    /// # Errors
    /// If the kernel does not permit it.
    pub fn load(max_record: usize) -> Result<Self, Refusal> {
        if !namespace::is_first() {
            let why = "the recorder is in another PID namespace".into();
            return Err(Refusal::other(why));
        }
        let loaded = signals::blocked(|| Self::load_program(max_record));
        loaded.map_err(|refusal| refusal.needing(MIN_LINUX))
    }

    fn load_program(max_record: usize) -> Result<Self, Refusal> {
        let max_record = max_record.clamp(record::HEADER_SIZE, RECORD_LIMIT) as u32;
        let btf = Btf::from_sys_fs().map_err(|error| Refusal::of(&error))?;
        let mut programs = EbpfLoader::new()
            .btf(Some(&btf))
            .override_global("max_record", &max_record, true)
            .load(OBJECT)
            .map_err(|error| Refusal::of(&error))?;
        let program: &mut Iter = find(&mut programs, "snapshot")?;
        program
            .load(ITERATOR, &btf)
            .map_err(|error| Refusal::of(&error))?;
        let wanted = map(&mut programs, "wanted")?;
        Ok(Self { programs, wanted })
    }

    /// Reads the context of each thread of a process, in the order of their IDs, from the variables
    /// found by [`reader::Process::thread_support`]. If a library is unloaded meanwhile, other data
    /// may take their place: see [`reader::Process::modules_unchanged`].
    ///
    /// # Errors
    /// If the process has no readable contexts, or cannot be inspected.
    pub fn threads(
        &mut self,
        process: &mut reader::Process,
        variables: &ThreadVariables,
    ) -> Result<Vec<ThreadSnapshot>, Error> {
        let pid = process.running()?.pid();
        let mut variables = variables.clone();
        let wanted = Wanted {
            pid: pid as u32,
            reserved: 0,
            target: target(0, &places(&variables.resolution.variables)),
        };
        self.wanted
            .set(0, wanted, 0)
            .map_err(|error| Error::Snapshot(Refusal::of(&error)))?;
        let mut threads: Vec<ThreadSnapshot> = Vec::new();
        for _ in 0..MAX_ATTEMPTS {
            for thread in parse(&self.iterate()?, process, &mut variables) {
                match threads.iter_mut().find(|known| known.tid == thread.tid) {
                    Some(known) if is_torn(known) => *known = thread,
                    Some(_) => {}
                    None => threads.push(thread),
                }
            }
            if !threads.iter().any(is_torn) {
                break;
            }
        }
        threads.sort_by_key(|thread| thread.tid);
        Ok(threads)
    }

    /// Runs the program over all threads, and returns its output.
    fn iterate(&mut self) -> Result<Vec<u8>, Error> {
        let read = || {
            let program: &mut Iter = find(&mut self.programs, "snapshot")?;
            let mut file: File = program
                .attach()
                .and_then(|link| program.take_link(link))
                .map_err(|error| Refusal::of(&error))?
                .into_file()
                .map_err(|error| Refusal::of(&error))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)
                .map_err(|error| Refusal::of(&error))?;
            Ok(bytes)
        };
        let mut read = read;
        read().map_err(Error::Snapshot)
    }
}

impl SnapshotSource for Snapshots {
    fn threads(
        &mut self,
        process: &mut reader::Process,
        variables: &ThreadVariables,
    ) -> Result<Vec<ThreadSnapshot>, reader::Error> {
        self.threads(process, variables)
            .map_err(|error| match error {
                Error::Reader(error) => error,
                Error::Remote(error) => error.into(),
                refused => reader::Error::Snapshot {
                    reason: refused.to_string(),
                },
            })
    }
}

fn is_torn(thread: &ThreadSnapshot) -> bool {
    let torn = [Found::Invalid, Found::Unreadable(ReadStep::Verify)];
    torn.contains(&thread.context)
}

/// Decodes the output of one run.
fn parse(
    mut bytes: &[u8],
    process: &mut reader::Process,
    variables: &mut ThreadVariables,
) -> Vec<ThreadSnapshot> {
    let mut threads = Vec::new();
    while let Some((head, parts)) = abi::event(bytes) {
        bytes = &bytes[size_of::<EventHead>() + head.size as usize..];
        let mut records = parts
            .filter(|part| part.kind == part::RECORD)
            .map(|part| part.bytes);
        let both = (records.next(), records.next());
        let context = abi::found(head.outcome, both.0).and_then(|first| match both.1 {
            Some(second) if first == second => decode(first, process, variables),
            _ => Found::Unreadable(ReadStep::Verify),
        });
        threads.push(ThreadSnapshot {
            tid: head.tid as i32,
            name: name(&head.comm).into_owned(),
            context,
        });
    }
    threads
}

fn decode(
    bytes: &[u8],
    process: &mut reader::Process,
    variables: &mut ThreadVariables,
) -> Found<DecodedContext> {
    let Ok(record) = record::decode(bytes) else {
        return Found::Unreadable(ReadStep::Record);
    };
    let context = record.resolve(&variables.keys);
    if context.skipped.unknown_key == 0 {
        return Found::Attached(context);
    }
    // A key may have been registered since the key map was read.
    if let Ok(reader::ContextState::Published(published)) = process.context()
        && let Ok(Some(keys)) = &published.keys
    {
        variables.keys = keys.clone();
    }
    Found::Attached(record.resolve(&variables.keys))
}
