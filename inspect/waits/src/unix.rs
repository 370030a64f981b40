//! Unix sockets: their names and peers, by sock_diag(7).
//!
//! `/proc/PID/net/unix` has names, but no peers. A request for one socket is answered without listing the others.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};

use foldhash::fast::RandomState;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};
use otelctx_reader::remote::Process;

/// Maximum number of bytes read of `/proc/PID/net/unix`.
const MAX_TABLE: u64 = 16 << 20;
/// Maximum number of network namespaces of which a socket is kept open; all are closed when there are more.
const MAX_NAMESPACES: usize = 16;

/// SOCK_DIAG_BY_FAMILY (<linux/sock_diag.h>).
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// UDIAG_SHOW_NAME | UDIAG_SHOW_PEER (<linux/unix_diag.h>).
const SHOW: u32 = 0x1 | 0x4;
/// UNIX_DIAG_NAME, UNIX_DIAG_PEER.
const NAME: u16 = 0;
const PEER: u16 = 2;
/// Maximum number of answers read for one request.
const MAX_ANSWERS: usize = 4;
/// NLM_F_REQUEST (<linux/netlink.h>).
const REQUEST: u16 = 1;
/// Sizes of `struct nlmsghdr` and `struct unix_diag_msg`.
const HEADER: usize = 16;
const MESSAGE: usize = 16;
/// TCP_LISTEN, which unix sockets use as well.
const LISTEN: u8 = 10;
/// __SO_ACCEPTCON, in the flags of `/proc/PID/net/unix`.
const ACCEPTS: u32 = 0x1_0000;
/// SOCK_DGRAM, as that file has it: such sockets get what is sent to their names without accepting.
const DATAGRAM: &[u8] = b"0002";

/// A unix socket.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Unix {
    /// Its path, or a name that starts with a zero byte, if it is bound.
    pub(crate) name: Option<Vec<u8>>,
    pub(crate) peer: Option<u64>,
    pub(crate) is_listening: bool,
}

/// Sockets through which the kernel is asked, one for each network namespace.
#[derive(Debug, Default)]
pub(crate) struct UnixSockets {
    /// `None` if the namespace cannot be entered.
    namespaces: HashMap<OsString, Option<OwnedFd>, RandomState>,
}

impl UnixSockets {
    /// The socket with this inode, in the namespace of `process`. `None` if there is none, or the kernel does not tell.
    pub(crate) fn get(&mut self, process: &Process, inode: u64) -> Option<Unix> {
        let name = process.namespace("net").ok()?;
        if self.namespaces.len() >= MAX_NAMESPACES && !self.namespaces.contains_key(&name) {
            self.namespaces.clear();
        }
        let open = || open_in(process, &name);
        let socket = self.namespaces.entry(name.clone()).or_insert_with(open);
        ask(socket.as_ref()?, u32::try_from(inode).ok()?)
    }

    /// The inode of the socket that accepts connections or gets datagrams to a path, or to a name that starts with a zero byte.
    pub(crate) fn listener(process: &Process, name: &[u8]) -> Option<u64> {
        let table = process.network_table("unix", MAX_TABLE).ok()?;
        let mut lines = table.split(|byte| *byte == b'\n').skip(1);
        lines.find_map(|line| listening(line, name))
    }
}

/// Opens a socket in the network namespace of `process`, which has this name.
fn open_in(process: &Process, name: &OsString) -> Option<OwnedFd> {
    let open = || {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let protocol = SockProtocol::NetlinkSockDiag;
        socket(AddressFamily::Netlink, SockType::Datagram, flags, protocol).ok()
    };
    let own = std::fs::read_link("/proc/self/ns/net").ok()?;
    if own.as_os_str() == name {
        return open();
    }
    let namespace = process.open_namespace("net").ok()?;
    // A socket stays in the namespace in which it was created. The thread that enters it ends.
    let work = move || {
        setns(namespace, CloneFlags::CLONE_NEWNET).ok()?;
        open()
    };
    std::thread::Builder::new().spawn(work).ok()?.join().ok()?
}

/// Asks for one socket.
fn ask(socket: &OwnedFd, inode: u32) -> Option<Unix> {
    send(socket.as_raw_fd(), &request(inode), MsgFlags::empty()).ok()?;
    let mut answer = [0; 4096];
    // The kernel has answered before send(2) returns (net/netlink/af_netlink.c, netlink_unicast_kernel). An earlier answer
    // may have been left.
    for _ in 0..MAX_ANSWERS {
        let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty()).ok()?;
        let found = parse(&answer[..length], inode);
        if found.is_some() {
            return found;
        }
    }
    None
}

/// `struct nlmsghdr` and `struct unix_diag_req`.
fn request(inode: u32) -> Vec<u8> {
    const UNIX: u8 = 1;
    let length = HEADER as u32 + 24;
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(REQUEST.to_ne_bytes());
    // Sequence number, port: not needed for one answer.
    bytes.extend([0; 8]);
    // Family, protocol and padding; all states.
    bytes.extend([UNIX, 0, 0, 0]);
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend(inode.to_ne_bytes());
    bytes.extend(SHOW.to_ne_bytes());
    // INET_DIAG_NOCOOKIE, twice.
    bytes.extend([0xff; 8]);
    bytes
}

pub(crate) fn parse(answer: &[u8], inode: u32) -> Option<Unix> {
    let word = |at: usize| Some(u32::from_ne_bytes(*answer.get(at..)?.first_chunk()?));
    let half = |bytes: &[u8], at: usize| Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let is_socket = half(answer, 4)? == SOCK_DIAG_BY_FAMILY && word(HEADER + 4)? == inode;
    if !is_socket {
        return None;
    }
    let mut unix = Unix {
        is_listening: *answer.get(HEADER + 2)? == LISTEN,
        ..Unix::default()
    };
    let end = answer.len().min(word(0)? as usize);
    let mut rest = answer.get(HEADER + MESSAGE..end)?;
    while let (Some(length), Some(kind)) = (half(rest, 0), half(rest, 2)) {
        let length = usize::from(length);
        let Some(value) = rest.get(4..length) else {
            break;
        };
        match kind {
            NAME if !value.is_empty() => {
                let is_path = value.first() != Some(&0);
                let value = value
                    .strip_suffix(b"\0")
                    .filter(|_| is_path)
                    .unwrap_or(value);
                unix.name = Some(value.to_vec());
            }
            PEER => unix.peer = value.first_chunk().map(|it| u32::from_ne_bytes(*it).into()),
            _ => {}
        }
        // Attributes are aligned to four bytes.
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    unix.peer = unix.peer.filter(|peer| *peer != 0);
    Some(unix)
}

/// The inode of a socket in a line of `/proc/PID/net/unix` (net/unix/af_unix.c, `unix_seq_show`), if it is reached by
/// `name`. The kernel writes zero bytes as `@`.
pub(crate) fn listening(line: &[u8], name: &[u8]) -> Option<u64> {
    let mut words = line
        .splitn(8, |byte| *byte == b' ')
        .filter(|word| !word.is_empty());
    let text = |word: Option<&[u8]>| std::str::from_utf8(word?).ok().map(str::to_owned);
    // Address, references, protocol.
    let flags = u32::from_str_radix(&text(words.nth(3))?, 16).ok()?;
    let is_datagram = words.next() == Some(DATAGRAM);
    if flags & ACCEPTS == 0 && !is_datagram {
        return None;
    }
    // After the state: inode padded with blanks, name.
    let rest = line
        .splitn(7, |byte| *byte == b' ')
        .nth(6)?
        .trim_ascii_start();
    let blank = rest.iter().position(|byte| *byte == b' ')?;
    let inode = std::str::from_utf8(&rest[..blank]).ok()?.parse().ok()?;
    let found = &rest[blank + 1..];
    let is_same = |(one, other): (&u8, &u8)| one == other || (*one == 0 && *other == b'@');
    let is_it = found.len() == name.len() && name.iter().zip(found).all(is_same);
    is_it.then_some(inode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_listening_sockets() {
        let line = |flags: &str, name: &str| {
            let line = format!("0000000000000000: 00000002 00000000 {flags} 0001 01  4711 {name}");
            line.into_bytes()
        };
        let path = b"/run/a b.sock";
        assert_eq!(
            listening(&line("00010000", "/run/a b.sock"), path),
            Some(4711)
        );
        assert_eq!(listening(&line("00000000", "/run/a b.sock"), path), None);
        let datagrams = b"0000000000000000: 00000002 00000000 00000000 0002 01 12345 /run/a b.sock";
        assert_eq!(listening(datagrams, path), Some(12345));
        assert_eq!(listening(&line("00010000", "/run/a b.soc"), path), None);
        assert_eq!(listening(&line("00010000", "@x@"), b"\0x\0"), Some(4711));
        assert_eq!(
            listening(
                b"0000000000000000: 00000002 00000000 00010000 0001 01 5",
                path
            ),
            None
        );
        assert_eq!(listening(b"", path), None);
    }

    #[test]
    fn answers_of_the_kernel() {
        let mut answer = vec![0; HEADER + MESSAGE];
        answer[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        answer[HEADER + 2] = LISTEN;
        answer[HEADER + 4..HEADER + 8].copy_from_slice(&7_u32.to_ne_bytes());
        let attribute = |kind: u16, value: &[u8]| {
            let length = (value.len() + 4) as u16;
            let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
            bytes.extend(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        answer.extend(attribute(NAME, b"/x\0"));
        answer.extend(attribute(PEER, &9_u32.to_ne_bytes()));
        let length = answer.len() as u32;
        answer[..4].copy_from_slice(&length.to_ne_bytes());
        let expected = Unix {
            name: Some(b"/x".to_vec()),
            peer: Some(9),
            is_listening: true,
        };
        assert_eq!(parse(&answer, 7), Some(expected));
        assert_eq!(parse(&answer, 8), None, "another socket");
        for length in 0..answer.len() {
            let cut = parse(&answer[..length], 7);
            assert!(cut.is_none_or(|it| it.peer.is_none()), "{length}");
        }
        // An attribute without a length does not end.
        let at = HEADER + MESSAGE;
        answer[at..at + 2].copy_from_slice(&0_u16.to_ne_bytes());
        assert_eq!(parse(&answer, 7).unwrap().name, None);
    }

    #[test]
    fn the_kernel_knows_both_ends() {
        use std::os::unix::fs::MetadataExt;
        use std::os::unix::net::UnixStream;

        let own = Process::open(i32::try_from(std::process::id()).unwrap()).unwrap();
        let (one, other) = UnixStream::pair().unwrap();
        let inode = |socket: &UnixStream| {
            let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
            std::fs::metadata(path).unwrap().ino()
        };
        let found = UnixSockets::default().get(&own, inode(&one)).unwrap();
        assert_eq!(found.peer, Some(inode(&other)));
        assert_eq!(found.name, None);
    }
}
