//! All decoders of untrusted bytes in one function, for the fuzz target.

use crate::descriptor::{Object, epoll_size, info_field};
use crate::file_locks::{self, Kind};
use crate::inet::{Namespace, Protocol};
use crate::memory::Address;
use crate::{unix, words};

/// The number of kinds of bytes.
pub const KINDS: u8 = 8;

/// What the decoder of a kind, below [`KINDS`], makes of `bytes`, as text.
#[must_use]
pub fn decode(kind: u8, bytes: &[u8]) -> String {
    match kind {
        0 => format!("{:?}", Object::parse(bytes)),
        1 => format!("{} {:?}", epoll_size(bytes), info_field(bytes, b"Pid")),
        2 => format!("{:?}", Address::parse(bytes)),
        3 => Namespace::of_table(bytes, Protocol::Tcp).summary(),
        4 => format!("{:?}", unix::parse(bytes, 4711)),
        5 => format!("{:?}", unix::listening(bytes, b"/run/x.sock")),
        6 => {
            let text = String::from_utf8_lossy(bytes);
            let holder = |kind| file_locks::parse(&text, 4711, kind);
            format!("{:?} {:?}", holder(Kind::Flock), holder(Kind::Posix))
        }
        _ => words::plain(bytes),
    }
}
