//! The agent in the virtual machine (`call_trace.c`), which shares a file with the test.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use otelctx_fixtures::HANG_TIMEOUT;
use otelctx_reader::remote::Machine;
use otelctx_unwind::Registers;

use crate::reader::Shown;

/// `enum state`, below the number of the request.
const WANTED: i32 = 1;
const HELD: i32 = 4;
const RELEASED: i32 = 5;
const STATE_BITS: u32 = 3;
/// Offsets in `struct shared`, and the sizes of its arrays.
const THREAD: u64 = 4;
const COUNT: u64 = 8;
const REQUESTS: u64 = 12;
const ANSWERS: u64 = 16;
const GIVEN_UP: u64 = 20;
const REGISTERS: u64 = 32;
const CALLS: u64 = REGISTERS + 23 * 8;
const MAX_CALLS: u64 = 1024;
const CALL_SIZE: u64 = 16;
const NAMES: u64 = CALLS + MAX_CALLS * CALL_SIZE;
const NAME_SIZE: u64 = 256;
/// DWARF's numbers of the registers, in the order of `gregs`, up to the instruction pointer.
const NUMBERS: [u8; 16] = [8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7];

/// Time after which a request is given up: the thread does not run, or blocks signals. What is compared does not depend on it.
const HOLD_TIMEOUT: Duration = Duration::from_millis(500);
/// Time that names may take while the thread is held: one that a safepoint waits for keeps the agent from naming.
const NAME_TIMEOUT: Duration = Duration::from_millis(20);
/// Maximum number of requests in a row that are given up.
const MAX_GIVEN_UP: usize = 100;

pub(crate) struct Agent {
    file: File,
    /// The number of the last request for a thread, and how many in a row were given up.
    request: i32,
    given_up: usize,
}

/// What the virtual machine says of a thread.
#[derive(Debug)]
pub(crate) enum Calls {
    /// The methods, innermost first. `None` for one that is not there any more.
    Known(Vec<Option<Shown>>),
    /// It has no frame that it knows, or is in no state for that (`forte.cpp`).
    Unknown,
}

impl Agent {
    pub(crate) fn create(path: &Path) -> Self {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).open(path);
        let file = file.unwrap();
        file.set_len(NAMES + MAX_CALLS * NAME_SIZE).unwrap();
        Self {
            file,
            request: 0,
            given_up: 0,
        }
    }

    fn number(&self, at: u64) -> i32 {
        let mut bytes = [0; 4];
        self.file.read_exact_at(&mut bytes, at).unwrap();
        i32::from_ne_bytes(bytes)
    }

    fn put(&self, at: u64, number: i32) {
        self.file.write_all_at(&number.to_ne_bytes(), at).unwrap();
    }

    fn wait(&self, timeout: Duration, is_done: impl Fn() -> bool) -> bool {
        let begun = Instant::now();
        while !is_done() {
            if begun.elapsed() > timeout {
                return false;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        true
    }

    /// Sets the state of the newest request.
    fn set(&self, state: i32) {
        self.put(0, self.request << STATE_BITS | state);
    }

    /// Returns whether this is the state of the newest request.
    fn is(&self, state: i32) -> bool {
        self.number(0) == self.request << STATE_BITS | state
    }

    /// Interrupts a thread, and returns its registers there. It waits until its calls are asked for. `None` if it does not get to
    /// run.
    ///
    /// # Panics
    ///
    /// If that is so too often in a row, or the agent does not answer.
    pub(crate) fn hold(&mut self, thread: i32) -> Option<Registers> {
        self.request += 1;
        self.put(THREAD, thread);
        self.set(WANTED);
        if !self.wait(HOLD_TIMEOUT, || self.is(HELD)) {
            self.put(GIVEN_UP, self.request);
            // The thread may have begun to answer.
            let is_over = self.wait(HANG_TIMEOUT, || self.is(HELD) || self.is(RELEASED));
            assert!(is_over, "the agent does not give up a request");
            if self.is(RELEASED) {
                self.given_up += 1;
                assert!(self.given_up < MAX_GIVEN_UP, "no thread can be held");
                return None;
            }
        }
        self.given_up = 0;
        let word = |index: usize| {
            let mut bytes = [0; 8];
            let at = REGISTERS + 8 * index as u64;
            self.file.read_exact_at(&mut bytes, at).unwrap();
            u64::from_ne_bytes(bytes)
        };
        let mut registers = Registers::new(Machine::own(), word(16), word(15)).unwrap();
        for (index, number) in NUMBERS.into_iter().enumerate() {
            registers.set(number, word(index));
        }
        Some(registers)
    }

    /// The calls of the thread that is held, which goes on then.
    pub(crate) fn calls(&self) -> Calls {
        let request = self.number(REQUESTS) + 1;
        self.put(REQUESTS, request);
        let is_answered = || self.number(ANSWERS) == request;
        self.wait(NAME_TIMEOUT, is_answered);
        self.set(RELEASED);
        let is_answered = self.wait(HANG_TIMEOUT, is_answered);
        assert!(is_answered, "the agent names no calls");
        let count = self.number(COUNT);
        match u64::try_from(count) {
            Ok(count) if count > 0 => Calls::Known((0..count).map(|it| self.call(it)).collect()),
            _ => Calls::Unknown,
        }
    }

    fn call(&self, index: u64) -> Option<Shown> {
        let mut text = [0; NAME_SIZE as usize];
        let at = NAMES + index * NAME_SIZE;
        self.file.read_exact_at(&mut text, at).unwrap();
        let end = text.iter().position(|byte| *byte == 0)?;
        let text = std::str::from_utf8(&text[..end]).unwrap();
        let mut words = text.splitn(3, ' ');
        let (class, method, file) = (words.next()?, words.next()?, words.next()?);
        let line = self.number(CALLS + index * CALL_SIZE + 4);
        Some(Shown {
            name: format!("{}.{method}", class_name(class)),
            file: file.to_owned(),
            line: u32::try_from(line).unwrap(),
        })
    }
}

/// Converts a name as it is in signatures: what differs in each run is left out.
fn class_name(signature: &str) -> String {
    let mut name = signature;
    if let Some((class, _)) = name.split_once("$$Lambda") {
        name = &signature[..class.len() + "$$Lambda".len()];
    }
    for address in [".0x", "/0x", "+0x"] {
        name = name.split(address).next().unwrap();
    }
    // JDK 8 has no addresses there.
    if let Some((class, number)) = name.rsplit_once('/')
        && number.bytes().all(|byte| byte.is_ascii_digit())
    {
        name = class;
    }
    name.replace('/', ".")
}
