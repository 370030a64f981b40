//! One reason: what the arguments of the call mean.

mod files;
mod named;
mod sleeps;

use otelctx_reader::remote::{Memory, Process};

use self::named::{Direction, Named};
use crate::known::{Known, MachineCaches};
use crate::lock_code::Lock;
use crate::memory::{self, Address};
use crate::words::{count, list, plain};
use crate::{Peer, Reason, Waiting, numbers};

/// Maximum number of descriptors that are named; the others are counted.
const MAX_NAMED: usize = 4;

/// One thread, and all that helps to explain its call.
pub(crate) struct Inspection<'r> {
    process: &'r Process,
    known: &'r mut Known,
    machine: &'r mut MachineCaches,
    thread: Waiting<'r>,
    peer: Option<Peer>,
    holder: Option<i32>,
}

impl<'r> Inspection<'r> {
    pub(crate) fn new(
        process: &'r Process,
        known: &'r mut Known,
        machine: &'r mut MachineCaches,
        thread: Waiting<'r>,
    ) -> Self {
        Self {
            process,
            known,
            machine,
            thread,
            peer: None,
            holder: None,
        }
    }

    pub(crate) fn reason(mut self) -> Reason {
        let number = self.thread.call.number;
        if number < 0 {
            return self.page_fault();
        }
        let Some(call) = numbers::name(number) else {
            return Reason::of(format!("system call {number}"));
        };
        let text = self.text(call).unwrap_or_else(|| call.to_owned());
        Reason {
            call: call.into(),
            text,
            peer: self.peer,
            holder: self.holder,
        }
    }

    /// A wait outside a system call. The address that is awaited is not known, only whose code accesses it.
    fn page_fault(&mut self) -> Reason {
        let mut reason = Reason::of("page fault");
        let innermost = self.thread.frames.first().copied();
        if let Some(file) = innermost.and_then(|address| self.known.code_at(self.process, address))
        {
            reason.text = format!("page fault in {}", plain(&file));
        }
        reason
    }

    fn memory(&self) -> Option<&dyn Memory> {
        let own = self.known.memory.as_ref().map(|it| it as &dyn Memory);
        self.thread.memory.or(own)
    }

    fn argument(&self, index: usize) -> u64 {
        self.thread.call.arguments[index]
    }

    /// An argument that is an int, as descriptors are: the upper half of its register is arbitrary.
    fn int(&self, index: usize) -> i32 {
        self.argument(index) as i32
    }

    /// The reason in words; `None` if there is nothing to add to the call's name.
    fn text(&mut self, call: &'static str) -> Option<String> {
        match call {
            "read" | "readv" | "pread64" | "preadv" | "preadv2" => {
                Some(self.transfer("read", Direction::From))
            }
            "write" | "writev" | "pwrite64" | "pwritev" | "pwritev2" => {
                Some(self.transfer("write", Direction::To))
            }
            "recvfrom" => self.with_preposition("recv", Direction::From),
            "recvmsg" | "recvmmsg" => self.with_preposition(call, Direction::From),
            "sendto" => self.send_to(),
            "sendmsg" | "sendmmsg" => self.with_preposition(call, Direction::To),
            "connect" => self.connect(),
            "accept" | "accept4" => {
                let named = self.named(self.int(0), Direction::From);
                Some(format!("accept on {}", named.bare()))
            }
            "poll" | "ppoll" => self.poll(call),
            "select" | "pselect6" => self.select(call),
            "epoll_wait" | "epoll_pwait" | "epoll_pwait2" => self.epoll(call),
            "futex" => self.futex(),
            _ => self.sleep(call).or_else(|| self.file(call)),
        }
    }

    /// The words for a descriptor that is read or written: `read /var/log/x`, `read from 127.0.0.1:5432 (postgres)`.
    fn transfer(&mut self, verb: &str, direction: Direction) -> String {
        let named = self.named(self.int(0), direction);
        let preposition = named.preposition(direction);
        match named.is_address {
            true => format!("{verb} {preposition} {}", self.with_peer(named)),
            false => format!("{verb} {}", self.with_peer(named)),
        }
    }

    fn with_preposition(&mut self, verb: &str, direction: Direction) -> Option<String> {
        let named = self.named(self.int(0), direction);
        let preposition = named.preposition(direction);
        Some(format!("{verb} {preposition} {}", self.with_peer(named)))
    }

    /// The name, whose peer becomes the reason's.
    fn with_peer(&mut self, named: Named) -> String {
        self.peer = self.peer.take().or(named.peer);
        named.text
    }

    fn send_to(&mut self) -> Option<String> {
        let (at, length) = (self.argument(4), self.argument(5));
        let address = self
            .memory()
            .and_then(|memory| memory::address(memory, at, length));
        match address {
            Some(address) => {
                let named = self.named_address(&address);
                Some(format!("sendto {}", self.with_peer(named)))
            }
            None => self.with_preposition("send", Direction::To),
        }
    }

    fn connect(&mut self) -> Option<String> {
        let (at, length) = (self.argument(1), self.argument(2));
        let address = self
            .memory()
            .and_then(|memory| memory::address(memory, at, length));
        let descriptor = self.int(0);
        let named = match address {
            Some(Address::Inet(_)) | None => {
                let named = self.named(descriptor, Direction::To);
                match (named.is_address, &address) {
                    (false, Some(address)) => self.named_address(address),
                    _ => named,
                }
            }
            Some(unix) => self.named_address(&unix),
        };
        Some(format!("connect to {}", self.with_peer(named)))
    }

    fn poll(&mut self, call: &str) -> Option<String> {
        let (at, number) = (self.argument(0), self.argument(1));
        // An unsigned int.
        let number = u64::from(number as u32);
        let (descriptors, unread) = memory::polled(self.memory()?, at, number)?;
        if descriptors.is_empty() {
            return self.poll_without_descriptors(call);
        }
        Some(format!(
            "{call} for {}",
            self.descriptors(&descriptors, unread)
        ))
    }

    fn select(&mut self, call: &str) -> Option<String> {
        let [number, reading, writing, exceptions, ..] = self.thread.call.arguments;
        let sets = [reading, writing, exceptions];
        let descriptors = memory::selected(self.memory()?, sets, number)?;
        if descriptors.is_empty() {
            return self.select_without_descriptors(call);
        }
        Some(format!("{call} for {}", self.descriptors(&descriptors, 0)))
    }

    /// The first descriptors by name, and how many more there are.
    fn descriptors(&mut self, descriptors: &[i32], unread: usize) -> String {
        let mut names = Vec::new();
        for descriptor in descriptors.iter().take(MAX_NAMED) {
            let named = self.named(*descriptor, Direction::Unknown);
            names.push(self.with_peer(named));
        }
        list(&names, descriptors.len() - names.len() + unread)
    }

    fn epoll(&mut self, call: &str) -> Option<String> {
        let number = self.epoll_size(self.int(0))?;
        Some(format!(
            "{call} on {}",
            count(number, "descriptor", "descriptors")
        ))
    }

    /// The lock that is waited for, if its holder is certain.
    fn futex(&mut self) -> Option<String> {
        let Known { memory, locks, .. } = &mut *self.known;
        let memory = memory.as_ref()?;
        let holder = locks.holder(self.process, memory, &self.machine.files, &self.thread)?;
        self.holder = Some(holder.tid);
        let lock = match holder.lock {
            Lock::Mutex => "lock",
            Lock::ReadWrite => "write lock",
        };
        Some(format!("{lock} held by thread {}", holder.tid))
    }

    /// A path in the process's memory.
    fn path(&self, index: usize) -> Option<String> {
        let path = memory::string(self.memory()?, self.argument(index))?;
        Some(plain(&path))
    }
}
