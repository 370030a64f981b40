//! Names of what descriptors refer to.

use std::os::unix::ffi::OsStrExt;

use super::Inspection;
use crate::Peer;
use crate::descriptor::{Object, epoll_size, info_field};
use crate::inet::{Inet, OtherEnd, Protocol, port_name};
use crate::memory::Address;
use crate::owners::{Holder, Shared};
use crate::unix::{Unix, UnixSockets};
use crate::words::plain;

/// Maximum number of bytes read of an epoll's `fdinfo`: about 50,000 descriptors.
const MAX_EPOLL_INFO: u64 = 4 << 20;
/// Maximum number of epolls of a process whose sizes are kept; all are dropped when there are more.
const MAX_EPOLLS: usize = 1024;
/// Time for which the size of an epoll is valid, in nanoseconds, and by how much longer it is for each descriptor: the kernel
/// holds the epoll's lock for about 0.2 µs for each while it lists them, so this is a ten-thousandth of the time.
const EPOLL_AGE: u64 = 500_000_000;
const EPOLL_AGE_PER_DESCRIPTOR: u64 = 2_000_000;
/// Maximum number of bytes read of another `fdinfo`.
const MAX_INFO: u64 = 4096;

/// Which way data goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    From,
    To,
    /// The call does not say: the descriptor does, if it is a pipe.
    Unknown,
}

/// A descriptor or address in words.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) text: String,
    pub(super) peer: Option<Peer>,
    /// It is an address, which needs a preposition.
    pub(super) is_address: bool,
    /// It is the socket's own address.
    pub(super) is_own: bool,
    /// The text without `connections to`.
    bare: Option<String>,
}

impl Named {
    fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            peer: None,
            is_address: false,
            is_own: false,
            bare: None,
        }
    }

    fn with_peer(mut self, peer: Option<Peer>) -> Self {
        self.peer = peer;
        self
    }

    /// A socket that accepts connections.
    fn listening(bare: String) -> Self {
        Self {
            bare: Some(bare.clone()),
            ..Self::new(format!("connections to {bare}"))
        }
    }

    /// The preposition of a call that moves data in this direction.
    pub(super) fn preposition(&self, direction: Direction) -> &'static str {
        match direction {
            _ if self.is_own => "on",
            Direction::To => "to",
            Direction::From | Direction::Unknown => "from",
        }
    }

    pub(super) fn bare(&self) -> &str {
        self.bare.as_ref().unwrap_or(&self.text)
    }
}

impl Inspection<'_> {
    /// What a descriptor refers to, in words.
    pub(super) fn named(&mut self, descriptor: i32, direction: Direction) -> Named {
        let Ok(link) = self.process.descriptor_link(descriptor) else {
            return Named::new(format!("descriptor {descriptor}"));
        };
        match Object::parse(link.as_bytes()) {
            Object::Socket(inode) => self.socket(inode),
            Object::Pipe(inode) => self.pipe(inode, descriptor, direction),
            Object::Anonymous(kind) => self.anonymous(&kind, descriptor),
            Object::Path(path) => Named::new(path_name(&path)),
        }
    }

    fn anonymous(&mut self, kind: &[u8], descriptor: i32) -> Named {
        match kind {
            b"eventpoll" => Named::new("epoll"),
            b"pidfd" => self.process_descriptor(descriptor),
            kind => Named::new(plain(kind)),
        }
    }

    fn process_descriptor(&mut self, descriptor: i32) -> Named {
        let info = self.process.descriptor_info(descriptor, MAX_INFO);
        // In the reader's PID namespace; −1 once it has ended.
        let pid = info.ok().and_then(|info| info_field(&info, b"Pid"));
        let pid = pid
            .and_then(|pid| i32::try_from(pid).ok())
            .filter(|pid| *pid > 0);
        match pid {
            Some(pid) => self.ended_process(pid),
            None => Named::new("process"),
        }
    }

    /// A process whose end is awaited.
    pub(super) fn ended_process(&mut self, pid: i32) -> Named {
        let peer = self.machine.peers.get(pid, self.thread.now);
        let label = peer.as_ref().map(|peer| format!(" ({})", peer.label()));
        Named::new(format!("process {pid}{}", label.unwrap_or_default())).with_peer(peer)
    }

    fn pipe(&mut self, inode: u64, descriptor: i32, direction: Direction) -> Named {
        let is_writing = match direction {
            Direction::From => false,
            Direction::To => true,
            Direction::Unknown => {
                let access = self.process.descriptor_access(descriptor);
                access.is_ok_and(|(_, is_writable)| is_writable)
            }
        };
        let preposition = if is_writing { "to" } else { "from" };
        let holders = self.holders(Shared::Pipe(inode));
        let ends = holders.iter().filter(|it| it.is_writable != is_writing);
        let ends: Vec<Holder> = ends.copied().collect();
        let (peer, others) = self.first(&ends);
        let text = match &peer {
            Some(peer) if peer.pid == self.process.pid() => format!("pipe {preposition} itself"),
            Some(peer) => {
                let (pid, label) = (peer.pid, peer.label());
                format!("pipe {preposition} {pid} ({label}){others}")
            }
            None => "pipe".to_owned(),
        };
        Named::new(text).with_peer(peer)
    }

    fn socket(&mut self, inode: u64) -> Named {
        let now = self.thread.now;
        if let Some(unix) = self.machine.unix.get(self.process, inode) {
            return self.unix(&unix);
        }
        match self.machine.inet.get(self.process, inode, now) {
            Some(inet) => self.inet(&inet),
            None => Named::new("socket"),
        }
    }

    fn inet(&mut self, inet: &Inet) -> Named {
        let protocol = match inet.protocol {
            Protocol::Tcp => "",
            Protocol::Udp => "UDP ",
        };
        let Some(remote) = inet.remote else {
            let bare = format!("{protocol}{}", inet.local);
            return match inet.is_listening {
                true => Named::listening(bare),
                false => Named {
                    is_address: true,
                    is_own: true,
                    ..Named::new(bare)
                },
            };
        };
        let end = self
            .machine
            .inet
            .other_end(self.process, inet, self.thread.now);
        let name = match end {
            OtherEnd::Remote => port_name(inet),
            OtherEnd::Local | OtherEnd::Socket(_) => None,
        };
        let (peer, label) = match end {
            OtherEnd::Socket(inode) => self.socket_holder(inode),
            OtherEnd::Local | OtherEnd::Remote => (None, String::new()),
        };
        let name = name.map_or(label, |name| format!(" ({name})"));
        Named {
            is_address: true,
            ..Named::new(format!("{protocol}{remote}{name}")).with_peer(peer)
        }
    }

    fn unix(&mut self, unix: &Unix) -> Named {
        if unix.is_listening {
            let name = unix.name.as_deref().map(unix_name);
            return Named::listening(format!("unix socket{}", name.unwrap_or_default()));
        }
        let other = unix
            .peer
            .and_then(|peer| self.machine.unix.get(self.process, peer));
        // A server's sockets have the path, a client's have none.
        let name = other
            .and_then(|other| other.name)
            .or_else(|| unix.name.clone());
        let name = name.as_deref().map(unix_name).unwrap_or_default();
        let (peer, label) = match unix.peer {
            Some(inode) => self.socket_holder(inode),
            None => (None, String::new()),
        };
        Named::new(format!("unix socket{name}{label}")).with_peer(peer)
    }

    /// An address that a call has as an argument.
    pub(super) fn named_address(&mut self, address: &Address) -> Named {
        match address {
            Address::Inet(address) => Named {
                is_address: true,
                ..Named::new(address.to_string())
            },
            Address::Unix(name) => {
                let listener = UnixSockets::listener(self.process, name);
                let (peer, label) = match listener {
                    Some(inode) => self.socket_holder(inode),
                    None => (None, String::new()),
                };
                Named::new(format!("unix socket{}{label}", unix_name(name))).with_peer(peer)
            }
        }
    }

    /// The process that has a socket open, and its name in parentheses.
    fn socket_holder(&mut self, inode: u64) -> (Option<Peer>, String) {
        let holders = self.holders(Shared::Socket(inode));
        let (peer, others) = self.first(&holders);
        let label = match &peer {
            Some(peer) if peer.pid == self.process.pid() => " (itself)".to_owned(),
            Some(peer) => format!(" ({}{others})", peer.label()),
            None => String::new(),
        };
        (peer, label)
    }

    fn holders(&mut self, object: Shared) -> Vec<Holder> {
        let machine = &mut *self.machine;
        machine
            .owners
            .of(object, self.thread.now, machine.max_links)
    }

    /// The first of several processes, other than the waiting one if possible, and how many more there are, in words.
    fn first(&mut self, holders: &[Holder]) -> (Option<Peer>, String) {
        let own = self.process.pid();
        let others = holders.iter().filter(|holder| holder.pid != own);
        let mut others = others.map(|holder| holder.pid);
        let first = others.next();
        let more = match others.count() {
            0 => String::new(),
            1 => " and 1 other".to_owned(),
            more => format!(" and {more} others"),
        };
        let pid = first.or_else(|| holders.first().map(|holder| holder.pid));
        let peer = pid.and_then(|pid| self.machine.peers.get(pid, self.thread.now));
        (peer, more)
    }

    /// The number of descriptors of an epoll.
    pub(super) fn epoll_size(&mut self, descriptor: i32) -> Option<usize> {
        let now = self.thread.now;
        let link = self.process.descriptor_link(descriptor).ok()?;
        if Object::parse(link.as_bytes()) != Object::Anonymous(b"eventpoll".to_vec()) {
            return None;
        }
        if let Some((known, size, read_at)) = self.known.epolls.get(&descriptor)
            && known == link.as_bytes()
            && now.saturating_sub(*read_at) < EPOLL_AGE + *size as u64 * EPOLL_AGE_PER_DESCRIPTOR
        {
            return Some(*size);
        }
        let info = self
            .process
            .descriptor_info(descriptor, MAX_EPOLL_INFO)
            .ok()?;
        let size = epoll_size(&info);
        if self.known.epolls.len() >= MAX_EPOLLS {
            self.known.epolls.clear();
        }
        self.known
            .epolls
            .insert(descriptor, (link.as_bytes().to_vec(), size, now));
        Some(size)
    }
}

/// The name of a file. A terminal is called one: reads of it wait for a person.
fn path_name(path: &[u8]) -> String {
    let is_terminal = path.starts_with(b"/dev/pts/") || path.starts_with(b"/dev/tty");
    match is_terminal {
        true => format!("terminal {}", plain(path)),
        false => plain(path),
    }
}

/// The name of a unix socket, after a blank. Names that are no paths are shown with `@`, as ss(8) does.
fn unix_name(name: &[u8]) -> String {
    match name.split_first() {
        Some((0, rest)) => format!(" @{}", plain(rest)),
        Some(_) => format!(" {}", plain(name)),
        None => String::new(),
    }
}
