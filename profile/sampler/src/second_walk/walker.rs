//! The thread that walks copied stacks.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use foldhash::fast::RandomState;
use otelctx_reader::remote::elf::{Elf, Source};
use otelctx_reader::remote::{FileBytes, Memory, MemoryError, module};
use otelctx_sample::{Frame, Module, StackEnd};
use otelctx_unwind::{
    CodeMap, CodeMapping, Dictionary, Error, FileRules, MAX_FRAMES, MAX_RULES, MakeRules,
    walk_generated,
};

use super::{Answer, Content, CopiedStack, Place, Request, Walked};
use crate::priority::raise_thread_priority;
use crate::walkers::LiveWalkers;
use crate::{user_stack, vdso};

/// Maximum number of files whose tables are kept.
const MAX_FILES: usize = 256;
/// Maximum size of the tables that are kept, in bytes, and of one more file. The files of large programs have some 10 MiB.
const MAX_TABLES: usize = 64 << 20;
/// Maximum size of a file, in bytes: reading the tables of larger ones takes as long as making their rows, beside which it would
/// go on.
const MAX_FILE: u64 = 256 << 20;
/// Time without a request after which no tables are kept: early stacks come in bursts.
const MAX_REST: Duration = Duration::from_secs(5);
/// Number of rules from which on the next walk begins with none: there must be room for those of a stack.
const MANY_RULES: usize = MAX_RULES / 2;

/// Answers requests until the other end is dropped.
pub(super) fn run(requests: &Receiver<Request>, answers: &Sender<Answer>) {
    // Samples wait for it, and else beside a load it would not get the CPU in time. Without the right to, they are cut.
    let _ = raise_thread_priority();
    let mut walker = Walker::default();
    loop {
        match requests.recv_timeout(MAX_REST) {
            Ok(request) => {
                let walked = walker.walk(&request);
                let number = request.number;
                if answers.send(Answer { number, walked }).is_err() {
                    break;
                }
            }
            Err(RecvTimeoutError::Timeout) => walker = Walker::default(),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
}

#[derive(Default)]
struct Walker {
    dictionary: Arc<Dictionary>,
    files: HashMap<Arc<Module>, Known, RandomState>,
    /// Size of their tables, in bytes.
    size: usize,
    vdso: Option<Known>,
}

#[derive(Clone)]
enum Known {
    Rules(FileRules),
    /// It has no tables: frame pointers lead on.
    NoTables,
    /// Its tables are damaged or cannot be read, or it is another file by now.
    Unusable,
}

impl From<Result<FileRules, Error>> for Known {
    fn from(made: Result<FileRules, Error>) -> Self {
        match made {
            Ok(rules) => Self::Rules(rules),
            Err(Error::NoTables | Error::Architecture) => Self::NoTables,
            Err(_) => Self::Unusable,
        }
    }
}

impl Walker {
    fn walk(&mut self, request: &Request) -> Option<Walked> {
        let (copied, places) = (&*request.copied, &request.places[..]);
        let walkers = request.walkers.as_deref();
        let pointer = copied.registers.instruction_pointer();
        if !self.has_room() || self.dictionary.len() >= MANY_RULES {
            *self = Self::default();
        }
        // Places whose rules are not known. A walk by the frame pointer may lead anywhere.
        let mut unknown = Vec::new();
        let mappings = places.iter().map(|place| {
            let known = self.known(&place.content);
            let (start, end) = place.range;
            let is_vdso = matches!(place.content, Content::Vdso);
            let offset = if is_vdso { 0 } else { place.offset };
            let rules = match known {
                Known::Rules(rules) => Some(rules),
                Known::NoTables => None,
                Known::Unusable => {
                    unknown.push(place.range);
                    None
                }
            };
            let bias = rules.as_ref().and_then(|rules| rules.bias(start, offset));
            CodeMapping {
                start,
                end,
                bias: bias.unwrap_or_default(),
                rules: rules.filter(|_| bias.is_some()).ok_or(None),
            }
        });
        let code = CodeMap::of(mappings.collect::<Vec<_>>());
        let memory = CopiedMemory {
            copied,
            places,
            live: walkers,
            live_stack: OnceCell::new(),
            stack_words: RefCell::new(Some(Vec::new())),
        };
        let mut found = Vec::new();
        let generated = walkers.map_or(&[][..], |it| it.walkers.walkers());
        let limit = MAX_FRAMES;
        let end = walk_generated(
            &copied.registers,
            &code,
            generated,
            &memory,
            limit,
            &mut found,
        );
        // Behind the walk: code that is replaced later has another description than the walk has found, and no name.
        let live = walkers.filter(|it| it.walkers.cover(pointer));
        if live.is_some_and(|live| is_replaced(copied, live)) {
            return Some(Walked {
                frames: [Frame::instruction(pointer)].into(),
                end: StackEnd::GeneratedCode,
                stack_words: None,
            });
        }
        let is_unknown = |frame: &otelctx_unwind::Frame| {
            let called = frame.address.wrapping_sub(frame.is_caller.into());
            let mut unknown = unknown.iter();
            unknown.any(|(start, end)| (*start..*end).contains(&called))
        };
        let mut end = user_stack::stack_end(end);
        // Else it is longer than the copy, or goes on on another stack.
        let is_walked = |frame: &otelctx_unwind::Frame| {
            let called = frame.address.wrapping_sub(frame.is_caller.into());
            walkers.is_some_and(|it| it.walkers.cover(called))
        };
        // The program's own walk is not better than one that ends in generated code.
        let has_generated = found.iter().any(is_walked);
        let is_without_stack = has_generated && copied.stack.1.is_empty();
        let is_usable = !is_without_stack
            && (end != StackEnd::Unreadable || copied.may_be_cut || has_generated)
            && self.dictionary.len() < MAX_RULES
            && !found.iter().any(is_unknown);
        // Generated code may be other code the next time.
        let is_generated = |frame: &otelctx_unwind::Frame| {
            let called = frame.address.wrapping_sub(frame.is_caller.into());
            let mut at = places
                .iter()
                .filter(|it| (it.range.0..it.range.1).contains(&called));
            at.any(|it| matches!(it.content, Content::Generated))
        };
        let is_in_files = !found.iter().any(is_generated) && !has_generated;
        let stack_words = memory.stack_words.into_inner();
        is_usable.then(|| Walked {
            frames: match walkers {
                Some(walkers) => walkers.frames(&found, &mut end).into(),
                None => user_stack::frames(&found, &mut end, &|_, _| Arc::default()).into(),
            },
            end,
            stack_words: stack_words.filter(|_| is_in_files),
        })
    }

    fn has_room(&self) -> bool {
        self.files.len() < MAX_FILES && self.size < MAX_TABLES
    }

    fn known(&mut self, content: &Content) -> Known {
        let dictionary = &self.dictionary;
        match content {
            Content::Generated => Known::NoTables,
            Content::Unknown => Known::Unusable,
            Content::Vdso => {
                let make = || vdso::rows(dictionary).map(|rows| Arc::new(rows).into());
                self.vdso.get_or_insert_with(|| make().into()).clone()
            }
            Content::File(module, file) => {
                if let Some(known) = self.files.get(module) {
                    return known.clone();
                }
                if !self.has_room() {
                    return Known::Unusable;
                }
                let has_build_id = || {
                    let build_id = module::build_id(file).unwrap_or_default();
                    module.build_id.is_empty() || module.build_id == build_id
                };
                let bytes = FileBytes(file);
                let make = || {
                    let elf = Elf::read(Source::File(&bytes))?.ok_or(Error::NoTables)?;
                    FileRules::of(&elf, dictionary, MakeRules::OnDemand)
                };
                let is_small = file.metadata().is_ok_and(|facts| facts.len() <= MAX_FILE);
                let known = if is_small && has_build_id() {
                    make().into()
                } else {
                    Known::Unusable
                };
                if let Known::Rules(rules) = &known {
                    self.size += rules.tables_size();
                }
                self.files.insert(module.clone(), known.clone());
                known
            }
        }
    }
}

/// Returns true if other code is by now where the thread was: the runtime has thrown away the one that it executed.
fn is_replaced(copied: &CopiedStack, live: &dyn Memory) -> bool {
    /// Runtimes change calls, jumps and barriers in code: an address has at most these bytes.
    const MAX_CHANGED: usize = 8;
    /// Number of equal bytes between two changes: other code has some equal bytes by chance.
    const MIN_EQUAL: usize = 4;
    let pointer = copied.registers.instruction_pointer();
    let (start, code) = &copied.code;
    let skip = usize::try_from(pointer.wrapping_sub(*start)).ok();
    let code = skip.and_then(|skip| code.get(skip..)).unwrap_or_default();
    let mut now = vec![0; code.len()];
    if live.read(pointer, &mut now).is_err() {
        return !code.is_empty();
    }
    let mut changed: Option<Range<usize>> = None;
    for at in (0..code.len()).filter(|at| code[*at] != now[*at]) {
        let start = match &changed {
            Some(before) if at - before.end < MIN_EQUAL => before.start,
            _ => at,
        };
        if at - start >= MAX_CHANGED {
            return true;
        }
        changed = Some(start..at + 1);
    }
    false
}

/// The copied stack, and code as the files have it.
struct CopiedMemory<'c> {
    copied: &'c CopiedStack,
    places: &'c [Place],
    /// The process as it is now, for the data of runtimes.
    live: Option<&'c LiveWalkers>,
    /// The addresses of the thread's stack there, which has gone on since it was copied.
    live_stack: OnceCell<Range<u64>>,
    /// The words of the stack that were read. `None` if anything else was read of it.
    stack_words: RefCell<Option<Vec<(u64, u64)>>>,
}

impl Memory for CopiedMemory<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        let (start, end_of_copy) = self.copied.range();
        let is_on_stack = (start..end_of_copy).contains(&address);
        let length = buffer.len();
        if is_on_stack && length > size_of::<u64>() {
            // The walk asks for whole pages first: only the words that it needs are noted.
            return Err(MemoryError::Unmapped { address, length });
        }
        let copied = self.copied.read(address, buffer);
        if copied.is_ok() {
            if is_on_stack {
                let mut words = self.stack_words.borrow_mut();
                match (<[u8; 8]>::try_from(&*buffer), &mut *words) {
                    (Ok(word), Some(words)) => words.push((address, u64::from_ne_bytes(word))),
                    _ => *words = None,
                }
            }
            return copied;
        }
        let behind = self.places.partition_point(|it| it.range.0 <= address);
        let place = behind.checked_sub(1).map(|at| &self.places[at]);
        let end = address.checked_add(buffer.len() as u64);
        if let Some(place) = place
            && let Content::File(_, file) = &place.content
            && end.is_some_and(|end| end <= place.range.1)
            && let Some(at) = place.offset.checked_add(address - place.range.0)
        {
            return file.read_exact_at(buffer, at).or(copied);
        }
        let Some(live) = self.live.filter(|_| !self.is_stack(address, end)) else {
            return copied;
        };
        live.read(address, buffer)
    }
}

impl CopiedMemory<'_> {
    /// Returns true if memory from `address` up to `end` is of the thread's stack, at least in part.
    fn is_stack(&self, address: u64, end: Option<u64>) -> bool {
        let (start, end_of_copy) = self.copied.range();
        let pointer = self.copied.registers.stack_pointer();
        let stack = self.live_stack.get_or_init(|| match self.live {
            Some(live) => live.stack(pointer),
            None => 0..0,
        });
        let overlaps =
            |start: u64, behind: u64| address < behind && end.is_none_or(|end| start < end);
        overlaps(start, end_of_copy) || overlaps(stack.start, stack.end)
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
