//! What system calls point to, read from the waiting process. All of it is untrusted, and may have changed since the call.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use otelctx_reader::remote::Memory;

/// Size of `struct pollfd` (poll(2)), in bytes: descriptor, requested and returned events.
const POLLFD_SIZE: u64 = 8;
/// Maximum number of bytes read of descriptors: 8,192 of poll(2), half a million of select(2).
const MAX_BYTES: u64 = 64 * 1024;
/// Size of `struct sockaddr_storage`, in bytes.
const MAX_ADDRESS: u64 = 128;
/// Maximum length of a path (PATH_MAX), and the pieces in which it is read: the next page may not be mapped.
const MAX_PATH: usize = 4096;

const AF_UNIX: u16 = 1;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// The address of a socket, as passed to connect(2) or sendto(2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Inet(SocketAddr),
    /// A path, or a name that starts with a zero byte.
    Unix(Vec<u8>),
}

/// The descriptors of poll(2), without the negative ones, which it ignores, and the number of others that were not read.
pub(crate) fn polled(memory: &dyn Memory, address: u64, count: u64) -> Option<(Vec<i32>, usize)> {
    let wanted = count.checked_mul(POLLFD_SIZE)?;
    let length = wanted.min(MAX_BYTES);
    let bytes = memory.read_vec(address, length, MAX_BYTES as usize).ok()?;
    let numbers = bytes
        .chunks_exact(POLLFD_SIZE as usize)
        .map(|entry| i32::from_ne_bytes([entry[0], entry[1], entry[2], entry[3]]));
    let unread = (wanted - length) / POLLFD_SIZE;
    Some((numbers.filter(|it| *it >= 0).collect(), unread as usize))
}

/// The descriptors in any of the three sets of select(2), of which the kernel uses the first `count`.
pub(crate) fn selected(memory: &dyn Memory, sets: [u64; 3], count: u64) -> Option<Vec<i32>> {
    // An int, which the kernel checks.
    let count = i32::try_from(count as u32).ok()?;
    let length = u64::from(count.unsigned_abs()).div_ceil(64) * 8;
    let length = length.min(MAX_BYTES) as usize;
    let mut all = vec![0_u8; length];
    for set in sets.into_iter().filter(|set| *set != 0) {
        let bytes = memory.read_vec(set, length as u64, length).ok()?;
        all.iter_mut()
            .zip(bytes)
            .for_each(|(all, byte)| *all |= byte);
    }
    // Sets are arrays of longs: on a little-endian machine, their bits are in the order of the bytes.
    let is_set = |number: &i32| {
        let byte = all.get(*number as usize / 8);
        byte.is_some_and(|byte| byte & 1 << (number % 8) != 0)
    };
    Some((0..count).filter(is_set).collect())
}

/// The time of a `struct timespec`, in nanoseconds. `None` if it is not a valid one.
pub(crate) fn timespec(memory: &dyn Memory, address: u64) -> Option<u64> {
    let (seconds, nanoseconds) = pair(memory, address)?;
    let is_valid = nanoseconds < 1_000_000_000;
    is_valid.then(|| seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds))?
}

/// The time of a `struct timeval`, in nanoseconds.
pub(crate) fn timeval(memory: &dyn Memory, address: u64) -> Option<u64> {
    let (seconds, microseconds) = pair(memory, address)?;
    let microseconds = microseconds.checked_mul(1000)?;
    seconds
        .checked_mul(1_000_000_000)?
        .checked_add(microseconds)
}

fn pair(memory: &dyn Memory, address: u64) -> Option<(u64, u64)> {
    if address == 0 {
        return None;
    }
    let mut bytes = [0; 16];
    memory.read(address, &mut bytes).ok()?;
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
    Some((word(0), word(8)))
}

/// A word of 64 bits, such as a set of signals.
pub(crate) fn word(memory: &dyn Memory, address: u64) -> Option<u64> {
    memory.read_u64(address).ok()
}

/// The address of a socket.
pub(crate) fn address(memory: &dyn Memory, at: u64, length: u64) -> Option<Address> {
    let length = u64::from(length as u32).min(MAX_ADDRESS);
    if at == 0 || length < 2 {
        return None;
    }
    Address::parse(&memory.read_vec(at, length, MAX_ADDRESS as usize).ok()?)
}

impl Address {
    /// Parses a `struct sockaddr`.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (family, rest) = bytes.split_first_chunk()?;
        let port = || Some(u16::from_be_bytes(*rest.first_chunk()?));
        match u16::from_ne_bytes(*family) {
            AF_INET => {
                let address: [u8; 4] = *rest.get(2..)?.first_chunk()?;
                Some(Self::Inet((Ipv4Addr::from(address), port()?).into()))
            }
            AF_INET6 => {
                let address: [u8; 16] = *rest.get(6..)?.first_chunk()?;
                let address = IpAddr::V6(Ipv6Addr::from(address)).to_canonical();
                Some(Self::Inet((address, port()?).into()))
            }
            AF_UNIX => {
                let is_abstract = rest.first() == Some(&0);
                let end = rest
                    .iter()
                    .skip(is_abstract.into())
                    .position(|byte| *byte == 0);
                let name = match end {
                    Some(end) if !is_abstract => &rest[..end],
                    _ => rest,
                };
                Some(Self::Unix(name.to_vec()))
            }
            _ => None,
        }
    }
}

/// A string that ends with a zero byte, such as a path.
pub(crate) fn string(memory: &dyn Memory, address: u64) -> Option<Vec<u8>> {
    const PAGE: u64 = 4096;
    let mut text = Vec::new();
    let mut at = address;
    while text.len() < MAX_PATH {
        let length = (PAGE - at % PAGE).min(256);
        let piece = memory.read_vec(at, length, PAGE as usize).ok()?;
        if let Some(end) = piece.iter().position(|byte| *byte == 0) {
            text.extend_from_slice(&piece[..end]);
            return Some(text);
        }
        text.extend(piece);
        at = at.checked_add(length)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_sockets() {
        let inet = [2, 0, 0x15, 0x38, 10, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0];
        let expected = Address::Inet("10.0.0.5:5432".parse().unwrap());
        assert_eq!(Address::parse(&inet), Some(expected.clone()));
        assert_eq!(Address::parse(&inet[..8]), Some(expected.clone()));
        assert_eq!(Address::parse(&inet[..7]), None);
        let mut inet6 = vec![10, 0, 0x15, 0x38, 0, 0, 0, 0];
        inet6.extend(Ipv4Addr::new(10, 0, 0, 5).to_ipv6_mapped().octets());
        assert_eq!(Address::parse(&inet6), Some(expected));
        let unix = |name: &[u8]| Address::parse(&[&[1, 0], name].concat());
        let path = |name: &[u8]| Some(Address::Unix(name.to_vec()));
        assert_eq!(unix(b"/x\0junk"), path(b"/x"));
        assert_eq!(unix(b"/x"), path(b"/x"));
        assert_eq!(unix(b"\0name\0"), path(b"\0name\0"));
        assert_eq!(unix(b""), path(b""));
        assert_eq!(Address::parse(&[16, 0, 1]), None);
        assert_eq!(Address::parse(&[1]), None);
    }
}
