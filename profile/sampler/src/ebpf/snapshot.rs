//! Snapshots of the contexts of all threads of a process, without stopping any of them.

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
use super::targets::{places_of, target};
use crate::{Error, Refusal, signals};

/// The compiled program; built by `cargo xtask bpf`.
#[cfg(target_arch = "x86_64")]
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../bpf/snapshot.x86_64.o");
#[cfg(target_arch = "aarch64")]
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../bpf/snapshot.aarch64.o");

/// The oldest supported kernel: the first with `bpf_copy_from_user_task`.
const MIN_LINUX: (u32, u32) = (5, 18);
/// Maximum number of attempts to read threads whose records change each time.
const MAX_ATTEMPTS: usize = 5;
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
    /// Fails if the kernel does not permit it.
    pub fn load(max_record: usize) -> Result<Self, Refusal> {
        if !namespace::inode().is_ok_and(|inode| inode == 0) {
            let why = "the recorder is in another PID namespace".into();
            return Err(Refusal::other(why));
        }
        let loaded = signals::blocked(|| Self::load_program(max_record));
        loaded.map_err(|refusal| refusal.needing(MIN_LINUX))
    }

    fn load_program(max_record: usize) -> Result<Self, Refusal> {
        let max_record = max_record.clamp(record::HEADER_SIZE, RECORD_LIMIT) as u32;
        let btf = Btf::from_sys_fs().map_err(Refusal::of)?;
        let mut programs = EbpfLoader::new()
            .btf(Some(&btf))
            .override_global("max_record", &max_record, true)
            .load(OBJECT)
            .map_err(Refusal::of)?;
        let program: &mut Iter = find(&mut programs, "snapshot")?;
        program.load(ITERATOR, &btf).map_err(Refusal::of)?;
        let wanted = map(&mut programs, "wanted")?;
        Ok(Self { programs, wanted })
    }

    /// Reads the context of each thread of a process, in the order of their IDs, from the variables
    /// found by [`reader::Process::thread_support`]. If a library is unloaded meanwhile, other data
    /// may take their place: see [`reader::Process::modules_unchanged`].
    ///
    /// # Errors
    /// Fails if the process has no readable contexts, or cannot be inspected.
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
            target: target(0, &places_of(&variables.resolution.variables)),
        };
        let set = self.wanted.set(0, wanted, 0).map_err(Refusal::of);
        set.map_err(Error::Snapshot)?;
        let mut threads: Vec<ThreadSnapshot> = Vec::new();
        for _ in 0..MAX_ATTEMPTS {
            let output = self.iterate().map_err(Error::Snapshot)?;
            for thread in parse(&output, process, &mut variables) {
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
    fn iterate(&mut self) -> Result<Vec<u8>, Refusal> {
        let program: &mut Iter = find(&mut self.programs, "snapshot")?;
        let link = program.attach().and_then(|link| program.take_link(link));
        let mut file: File = link
            .map_err(Refusal::of)?
            .into_file()
            .map_err(Refusal::of)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(Refusal::of)?;
        Ok(bytes)
    }
}

impl SnapshotSource for Snapshots {
    fn threads(
        &mut self,
        process: &mut reader::Process,
        variables: &ThreadVariables,
    ) -> Result<Vec<ThreadSnapshot>, reader::Error> {
        let threads = self.threads(process, variables);
        threads.map_err(|error| match error {
            Error::Reader(error) => error,
            Error::Remote(error) => error.into(),
            refused => reader::Error::Snapshot {
                reason: refused.to_string(),
            },
        })
    }
}

fn is_torn(thread: &ThreadSnapshot) -> bool {
    matches!(
        thread.context,
        Found::Invalid | Found::Unreadable(ReadStep::Verify)
    )
}

fn parse(
    mut bytes: &[u8],
    process: &mut reader::Process,
    variables: &mut ThreadVariables,
) -> Vec<ThreadSnapshot> {
    let mut threads = Vec::new();
    while let Some((head, parts)) = abi::event(bytes) {
        bytes = &bytes[size_of::<EventHead>() + head.size as usize..];
        let mut records = parts.filter(|part| part.kind == part::RECORD);
        let (first, second) = (records.next(), records.next());
        let variable = first.map_or(0, |part| usize::from(part.outcome));
        let context = abi::found(head.outcome, first.map(|part| part.bytes)).and_then(|first| {
            if second.is_some_and(|second| second.bytes == first) {
                decode(first, variable, process, variables)
            } else {
                Found::Unreadable(ReadStep::Verify)
            }
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
    variable: usize,
    process: &mut reader::Process,
    variables: &mut ThreadVariables,
) -> Found<DecodedContext> {
    let Ok(record) = record::decode(bytes) else {
        return Found::Unreadable(ReadStep::Record);
    };
    let keys = variables.keys.of_variable(variable);
    let context = record.resolve(keys);
    if context.skipped.unknown_key == 0 && !record.is_provisional(keys) {
        return Found::Attached(context);
    }
    // A key may have been registered since the key map was read.
    if let Ok(reader::ContextState::Published(published)) = process.context()
        && let Some(keys) = variables.keys.updated(&published)
    {
        variables.keys = keys;
        return Found::Attached(record.resolve(variables.keys.of_variable(variable)));
    }
    let keys = variables.keys.of_variable(variable);
    Found::Attached(record.resolve(&keys.without_provisional()))
}
