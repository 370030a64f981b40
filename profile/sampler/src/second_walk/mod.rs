//! The second walk of a stack that was sampled before the rows of its code were there: over a copy of the stack, by rules that
//! are made for the functions in it alone.
//!
//! A thread walks: files can be on a file server that does not respond. The sampler waits for it, for a limited time, so that
//! each sample is passed on in its order.

mod known;
mod walker;

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError};
use std::time::{Duration, Instant};
use std::{fs::File, io};

use otelctx_reader::remote::{Memory, MemoryError};
use otelctx_sample::{Frame, Module, StackEnd};
use otelctx_unwind::Registers;

use crate::Options;
use crate::walkers::LiveWalkers;
pub(crate) use known::KnownWalks;

/// Maximum size of a copied stack, in bytes (`COPIED_PAGES` in `bpf/copy.h`).
pub(crate) const MAX_COPY: usize = 64 * 1024;
/// Bytes that are copied at a time: what can be read as a whole or not at all.
pub(crate) const PAGE: usize = 4096;
/// Bytes of the stack below the stack pointer to copy (`BELOW_STACK` there).
pub(crate) const BELOW_STACK: u64 = 256;
/// Bytes of code before the instruction, and from it on (`COPIED_CODE` there).
pub(crate) const COPIED_CODE: usize = 32;
/// Maximum time that one drain waits for second walks: rings have room for the usual samples of a second.
const MAX_WAIT: Duration = Duration::from_millis(40);
/// The same for stacks that have no other walk.
const MAX_WAIT_FOR_ONLY_WALKS: Duration = Duration::from_millis(200);
/// Number of general registers that may have addresses of code.
const REGISTERS: u8 = 33;

/// A thread's registers and a copy of its stack, at the time of a sample.
#[derive(Debug)]
pub(crate) struct CopiedStack {
    pub(crate) registers: Registers,
    /// Address of the first byte, and the bytes from there on.
    pub(crate) stack: (u64, StackBytes),
    /// The same of the code where the thread was: generated code is in no file.
    pub(crate) code: (u64, Vec<u8>),
    /// The walk may end where the copy does.
    pub(crate) may_be_cut: bool,
}

impl CopiedStack {
    /// Creates a copy of a thread's stack from the bytes of its lowest address on. Its code is in files.
    pub(crate) fn of_bytes(registers: Registers, stack: (u64, StackBytes)) -> Self {
        let pointer = registers.instruction_pointer();
        Self {
            registers,
            stack,
            code: (pointer, Vec::new()),
            may_be_cut: true,
        }
    }

    /// Copies the stack of a stopped thread, as far as it can be read.
    pub(crate) fn of(registers: Registers, memory: &dyn Memory) -> Self {
        let mut stack = (0, StackBytes::default());
        let lowest = registers.stack_pointer().wrapping_sub(BELOW_STACK);
        let first = lowest - lowest % PAGE as u64;
        for index in 0..(MAX_COPY / PAGE) as u64 {
            let address = first.wrapping_add(index * PAGE as u64);
            let mut page = [0; PAGE];
            if memory.read(address, &mut page).is_ok() {
                add_page(&mut stack, address, &page);
            } else if index > 0 {
                break;
            }
        }
        let pointer = registers.instruction_pointer();
        let start = pointer.wrapping_sub(COPIED_CODE as u64);
        let mut code = [[0; COPIED_CODE]; 2];
        let [before, behind] = &mut code;
        let has_before = memory.read(start, before).is_ok();
        let has_behind = memory.read(pointer, behind).is_ok();
        Self {
            code: copied_code(pointer, code.as_flattened(), has_before, has_behind),
            registers,
            stack,
            may_be_cut: false,
        }
    }

    /// Returns the word at an address of the stack.
    fn stack_word(&self, address: u64) -> Option<u64> {
        let (start, bytes) = &self.stack;
        let skip = usize::try_from(address.checked_sub(*start)?).ok()?;
        let word = bytes.get(skip..)?.first_chunk()?;
        Some(u64::from_ne_bytes(*word))
    }

    /// Returns the addresses of the copy: the first, and the one behind the last.
    fn range(&self) -> (u64, u64) {
        let (start, bytes) = &self.stack;
        (*start, start.saturating_add(bytes.len() as u64))
    }

    /// Calls `visit` for each word that may be an address of code.
    pub(crate) fn words(&self, visit: &mut dyn FnMut(u64)) {
        visit(self.registers.instruction_pointer());
        (0..REGISTERS)
            .filter_map(|it| self.registers.get(it))
            .for_each(&mut *visit);
        let words = self.stack.1.as_chunks().0.iter();
        words.for_each(|word| visit(u64::from_ne_bytes(*word)));
    }
}

/// The bytes of a copied stack.
#[derive(Debug)]
pub(crate) enum StackBytes {
    Own(Vec<u8>),
    /// A part of what a scan has read of many threads: its stacks are megabytes, which are not copied once more.
    Part(Arc<Vec<u8>>, Range<usize>),
}

impl StackBytes {
    /// Returns a part of `all` without copying it.
    pub(crate) fn part(all: &Arc<Vec<u8>>, part: &[u8]) -> Self {
        let start = part.as_ptr().addr().checked_sub(all.as_ptr().addr());
        let range = start.map(|start| start..start.saturating_add(part.len()));
        match range.filter(|it| it.end <= all.len()) {
            Some(range) => Self::Part(all.clone(), range),
            None => Self::Own(part.to_vec()),
        }
    }
}

impl Default for StackBytes {
    fn default() -> Self {
        Self::Own(Vec::new())
    }
}

impl Deref for StackBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Part(all, range) => all.get(range.clone()).unwrap_or_default(),
        }
    }
}

/// Adds the next page to the copy of a stack.
pub(crate) fn add_page(stack: &mut (u64, StackBytes), address: u64, page: &[u8; PAGE]) {
    let (start, StackBytes::Own(bytes)) = stack else {
        return;
    };
    if bytes.is_empty() {
        *start = address;
    }
    if start.checked_add(bytes.len() as u64) == Some(address) && bytes.len() < MAX_COPY {
        bytes.extend_from_slice(page);
    }
}

/// Returns the address of copied code, and its bytes: both halves of `code` that are there, before and behind the
/// instruction pointer.
pub(crate) fn copied_code(
    pointer: u64,
    code: &[u8],
    has_before: bool,
    has_behind: bool,
) -> (u64, Vec<u8>) {
    let start = if has_before { 0 } else { COPIED_CODE };
    let end = COPIED_CODE + if has_behind { COPIED_CODE } else { 0 };
    let address = pointer
        .wrapping_sub(COPIED_CODE as u64)
        .wrapping_add(start as u64);
    (address, code.get(start..end).unwrap_or_default().to_vec())
}

impl Memory for CopiedStack {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        let length = buffer.len();
        let of = |start: u64, bytes| {
            let skip = usize::try_from(address.checked_sub(start)?).ok()?;
            <[u8]>::get(bytes, skip..)?.get(..length)
        };
        let ((stack, bytes), (code, instructions)) = (&self.stack, &self.code);
        let found = of(*stack, bytes).or_else(|| of(*code, instructions));
        buffer.copy_from_slice(found.ok_or(MemoryError::Unmapped { address, length })?);
        Ok(())
    }
}

/// An executable mapping of the process, as it was at the time of the sample.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) range: (u64, u64),
    /// Offset in the file, in bytes.
    pub(crate) offset: u64,
    pub(crate) content: Content,
}

#[derive(Clone, Debug)]
pub(crate) enum Content {
    File(Arc<Module>, Arc<File>),
    Vdso,
    /// Memory of just-in-time compilers.
    Generated,
    /// A file that is not kept open, or not needed by any word of the copy.
    Unknown,
}

/// A stack that was walked again, innermost frame first.
#[derive(Clone, Debug)]
pub(crate) struct Walked {
    pub(crate) frames: Arc<[Frame]>,
    pub(crate) end: StackEnd,
    /// The words of the stack by which it was walked, with their addresses. `None` if it depends on more than these and the
    /// registers.
    pub(crate) stack_words: Option<Vec<(u64, u64)>>,
}

struct Request {
    number: u64,
    copied: Arc<CopiedStack>,
    places: Vec<Place>,
    walkers: Option<Arc<LiveWalkers>>,
}

struct Answer {
    number: u64,
    /// `None` where the copy or the places do not suffice.
    walked: Option<Walked>,
}

/// Passes copied stacks on to the thread that walks them.
#[derive(Debug)]
pub(crate) struct SecondWalk {
    /// The thread, from the first request on.
    walker: Option<(SyncSender<Request>, Receiver<Answer>)>,
    /// Number of the newest request.
    number: u64,
    /// The thread has not answered the newest request.
    is_behind: bool,
    /// Maximum time to wait in a drain.
    limit: Duration,
    /// Time that is left to wait in the current drain.
    left: Duration,
}

impl SecondWalk {
    pub(crate) fn new(options: &Options) -> Self {
        let limit = if options.holds_rows {
            Duration::MAX
        } else {
            MAX_WAIT
        };
        Self {
            walker: None,
            number: 0,
            is_behind: false,
            limit,
            left: limit,
        }
    }

    /// Creates the one that walks stacks that have no other walk. The longer a drain takes, the more the next one has.
    pub(crate) fn for_only_walks() -> Self {
        Self {
            walker: None,
            number: 0,
            is_behind: false,
            limit: MAX_WAIT_FOR_ONLY_WALKS,
            left: MAX_WAIT_FOR_ONLY_WALKS,
        }
    }

    /// Notes that a drain begins.
    pub(crate) fn begin(&mut self) {
        self.left = self.limit;
    }

    /// Returns true if there is time for a walk in this drain, and the thread is idle.
    pub(crate) fn is_ready(&mut self) -> bool {
        while let Some((_, answers)) = self.walker.as_ref().filter(|_| self.is_behind) {
            match answers.try_recv() {
                Ok(answer) => self.is_behind = answer.number != self.number,
                Err(TryRecvError::Empty) => return false,
                Err(TryRecvError::Disconnected) => self.drop_ended(),
            }
        }
        !self.left.is_zero()
    }

    /// Counts the time of preparing a walk since `begun`.
    pub(crate) fn count(&mut self, begun: Instant) {
        self.left = self.left.saturating_sub(begun.elapsed());
    }

    /// Walks a copied stack. `places` are in address order; `walkers` are those of its process. `None` where that is not
    /// possible, or takes too long.
    pub(crate) fn walk(
        &mut self,
        copied: Arc<CopiedStack>,
        places: Vec<Place>,
        walkers: Option<Arc<LiveWalkers>>,
    ) -> Option<Walked> {
        if self.walker.is_none() {
            self.walker = start().ok();
        }
        let (requests, answers) = self.walker.as_ref()?;
        self.number += 1;
        let number = self.number;
        let request = Request {
            number,
            copied,
            places,
            walkers,
        };
        match requests.try_send(request) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return None,
            Err(TrySendError::Disconnected(_)) => {
                self.drop_ended();
                return None;
            }
        }
        let begun = Instant::now();
        let answer = answers.recv_timeout(self.left);
        self.left = self.left.saturating_sub(begun.elapsed());
        match answer {
            Ok(answer) => answer.walked,
            Err(RecvTimeoutError::Timeout) => {
                self.is_behind = true;
                None
            }
            Err(RecvTimeoutError::Disconnected) => {
                self.drop_ended();
                None
            }
        }
    }

    /// Notes that the thread has panicked, which was printed: the next walk starts another one.
    fn drop_ended(&mut self) {
        (self.walker, self.is_behind) = (None, false);
    }
}

fn start() -> io::Result<(SyncSender<Request>, Receiver<Answer>)> {
    let (requests, of_walker) = mpsc::sync_channel(1);
    let (to_here, answers) = mpsc::channel();
    // It ends when the requests are dropped, or later, if a file server does not respond.
    std::thread::Builder::new()
        .name("otelctx-early".into())
        .spawn(move || walker::run(&of_walker, &to_here))?;
    Ok((requests, answers))
}

#[cfg(test)]
mod tests;
