//! TCP and UDP sockets of a network namespace, from the tables in `/proc/PID/net`.
//!
//! The tables are read rather than asked for by sock_diag(7): they exist without further kernel modules, and are those of
//! the process's namespace without entering it.

use std::collections::HashMap;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use foldhash::fast::RandomState;
use otelctx_reader::remote::Process;

/// Maximum number of bytes read of one table: about 100,000 sockets.
const MAX_TABLE: u64 = 16 << 20;
/// Maximum number of namespaces whose tables are kept; all are dropped when there are more.
const MAX_NAMESPACES: usize = 64;
/// Minimum time between two readings of the tables of one namespace, in nanoseconds, and by how much longer it is for each
/// byte that was read: a reading takes about 10 ns a byte, so this is a hundredth of a CPU at most.
const MIN_INTERVAL: u64 = 1_000_000_000;
const INTERVAL_PER_BYTE: u64 = 1_000;
/// Time for which the entry of a connected socket is valid, in nanoseconds: an inode may be used again.
const MAX_AGE: u64 = 10_000_000_000;

/// The tables, with their protocols.
const TABLES: [(&str, Protocol); 4] = [
    ("tcp", Protocol::Tcp),
    ("tcp6", Protocol::Tcp),
    ("udp", Protocol::Udp),
    ("udp6", Protocol::Udp),
];
/// TCP_LISTEN (include/net/tcp_states.h).
const LISTEN: u8 = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
}

/// A socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inet {
    pub(crate) protocol: Protocol,
    pub(crate) local: SocketAddr,
    /// `None` if it is not connected.
    pub(crate) remote: Option<SocketAddr>,
    pub(crate) is_listening: bool,
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OtherEnd {
    /// A socket of the same namespace, with its inode.
    Socket(u64),
    /// It is in this namespace, but no process is known.
    Local,
    /// It is not in this namespace.
    Remote,
}

/// The tables of the namespaces of processes.
#[derive(Debug, Default)]
pub(crate) struct InetSockets {
    namespaces: HashMap<OsString, Namespace, RandomState>,
}

#[derive(Debug, Default)]
pub(crate) struct Namespace {
    sockets: HashMap<u64, Inet, RandomState>,
    /// By local and remote address; 0 for a connection that its server has not accepted.
    connections: HashMap<(Protocol, SocketAddr, SocketAddr), u64, RandomState>,
    /// By port.
    listeners: HashMap<u16, Vec<(IpAddr, u64)>, RandomState>,
    read_at: u64,
    interval: u64,
}

impl InetSockets {
    /// The socket with this inode, in the namespace of `process`.
    pub(crate) fn get(&mut self, process: &Process, inode: u64, now: u64) -> Option<Inet> {
        let is_current = |namespace: &Namespace| {
            let found = namespace.sockets.get(&inode);
            let is_connected = found.is_some_and(|it| it.is_listening || it.remote.is_some());
            is_connected && now.saturating_sub(namespace.read_at) < MAX_AGE
        };
        self.namespace(process, now, is_current)?
            .sockets
            .get(&inode)
            .copied()
    }

    /// The other end of a connection of a socket in the namespace of `process`.
    pub(crate) fn other_end(&mut self, process: &Process, inet: &Inet, now: u64) -> OtherEnd {
        let Some(remote) = inet.remote else {
            return OtherEnd::Remote;
        };
        let key = (inet.protocol, remote, inet.local);
        let is_current = |namespace: &Namespace| {
            let accepted = namespace.connections.get(&key).is_some_and(|it| *it != 0);
            accepted && now.saturating_sub(namespace.read_at) < MAX_AGE
        };
        let Some(namespace) = self.namespace(process, now, is_current) else {
            return OtherEnd::Remote;
        };
        match namespace.connections.get(&key) {
            Some(0) => namespace.listener(remote),
            Some(inode) => OtherEnd::Socket(*inode),
            // While it connects, there is no other end yet.
            None if is_loopback(remote.ip()) && inet.protocol == Protocol::Tcp => {
                namespace.listener(remote)
            }
            None if is_loopback(remote.ip()) => OtherEnd::Local,
            None => OtherEnd::Remote,
        }
    }

    /// The namespace of `process`: read again if it is not `is_current`, and was not read just before.
    fn namespace(
        &mut self,
        process: &Process,
        now: u64,
        is_current: impl Fn(&Namespace) -> bool,
    ) -> Option<&Namespace> {
        let name = process.namespace("net").ok()?;
        if self.namespaces.len() >= MAX_NAMESPACES && !self.namespaces.contains_key(&name) {
            self.namespaces.clear();
        }
        let namespace = self.namespaces.entry(name).or_default();
        let is_due = now.saturating_sub(namespace.read_at) >= namespace.interval;
        if is_due && !is_current(namespace) {
            *namespace = Namespace::read(process, now);
        }
        Some(namespace)
    }
}

impl Namespace {
    fn read(process: &Process, now: u64) -> Self {
        let mut namespace = Self {
            read_at: now,
            ..Self::default()
        };
        let mut bytes = 0;
        for (name, protocol) in TABLES {
            // Without IPv6, a table is missing.
            let text = process.network_table(name, MAX_TABLE).unwrap_or_default();
            bytes += text.len() as u64;
            namespace.add_table(&text, protocol);
        }
        namespace.interval = MIN_INTERVAL + bytes * INTERVAL_PER_BYTE;
        namespace
    }

    /// One table alone.
    pub(crate) fn of_table(text: &[u8], protocol: Protocol) -> Self {
        let mut namespace = Self::default();
        namespace.add_table(text, protocol);
        namespace
    }

    /// What was found, in an order that does not depend on chance.
    pub(crate) fn summary(&self) -> String {
        let mut sockets: Vec<_> = self.sockets.iter().collect();
        sockets.sort_unstable_by_key(|(inode, _)| **inode);
        let (connections, ports) = (self.connections.len(), self.listeners.len());
        format!("{sockets:?}, {connections} connections, {ports} ports")
    }

    fn add_table(&mut self, text: &[u8], protocol: Protocol) {
        let lines = text.split(|byte| *byte == b'\n').skip(1);
        for (inet, inode) in lines.filter_map(|line| parse(line, protocol)) {
            if inet.is_listening {
                let listeners = self.listeners.entry(inet.local.port()).or_default();
                listeners.push((inet.local.ip(), inode));
            }
            if let Some(remote) = inet.remote {
                let key = (protocol, inet.local, remote);
                self.connections.insert(key, inode);
            }
            if inode != 0 {
                self.sockets.insert(inode, inet);
            }
        }
    }

    /// The socket that accepts connections to an address.
    fn listener(&self, address: SocketAddr) -> OtherEnd {
        let listeners = self.listeners.get(&address.port());
        let listeners = listeners.map_or(&[][..], Vec::as_slice);
        let exact = listeners.iter().find(|(ip, _)| *ip == address.ip());
        let found = exact.or_else(|| listeners.iter().find(|(ip, _)| ip.is_unspecified()));
        found.map_or(OtherEnd::Local, |(_, inode)| OtherEnd::Socket(*inode))
    }
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Parses a line of a table (net/ipv4/tcp_ipv4.c, `get_tcp4_sock`, and its like for IPv6 and UDP).
fn parse(line: &[u8], protocol: Protocol) -> Option<(Inet, u64)> {
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split_ascii_whitespace();
    let local = address(words.nth(1)?)?;
    let remote = address(words.next()?)?;
    let state = u8::from_str_radix(words.next()?, 16).ok()?;
    // Skips queues, timers, user and timeout.
    let inode = words.nth(5)?.parse().ok()?;
    let is_connected = remote.port() != 0;
    let inet = Inet {
        protocol,
        local,
        remote: is_connected.then_some(remote),
        is_listening: protocol == Protocol::Tcp && state == LISTEN,
    };
    Some((inet, inode))
}

/// Parses an address: words in this machine's byte order, as hexadecimal numbers, and a port.
fn address(text: &str) -> Option<SocketAddr> {
    let (digits, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |digits: &str| Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes());
    let ip = match digits.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(digits)?)),
        32 => {
            let mut bytes = [0; 16];
            for (index, bytes) in bytes.chunks_exact_mut(4).enumerate() {
                let digits = digits.get(index * 8..index * 8 + 8)?;
                bytes.copy_from_slice(&word(digits)?);
            }
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some((ip, port).into())
}

/// The registered name of a server's port (IANA's Service Name and Transport Protocol Port Number Registry), under the name
/// by which its program is known.
pub(crate) fn port_name(inet: &Inet) -> Option<&'static str> {
    const NAMES: [(u16, &str); 21] = [
        (22, "ssh"),
        (25, "smtp"),
        (53, "dns"),
        (80, "http"),
        (389, "ldap"),
        (443, "https"),
        (636, "ldaps"),
        (853, "dns"),
        (1433, "mssql"),
        (1521, "oracle"),
        (2049, "nfs"),
        (2181, "zookeeper"),
        (2379, "etcd"),
        (3306, "mysql"),
        (4317, "otlp"),
        (4318, "otlp"),
        (5432, "postgres"),
        (5672, "amqp"),
        (6379, "redis"),
        (11211, "memcached"),
        (27017, "mongodb"),
    ];
    let name = |port: u16| NAMES.iter().find(|(known, _)| *known == port);
    let (_, found) = name(inet.remote?.port())?;
    // If this end has a server's port, too, it is not known which end is the server.
    name(inet.local.port()).is_none().then_some(*found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
           0: 0100007F:1538 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 100 1 0 100 0 0 10 0\n\
           1: 0100007F:9C40 0100007F:1538 01 00000000:00000000 00:00000000 00000000     0        0 101 1 0 20 4 30 10 -1\n\
           2: 0100007F:1538 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 102 1 0 20 4 30 10 -1\n\
           3: 0100007F:9C41 0100007F:1538 01 00000000:00000000 00:00000000 00000000     0        0 103 1 0 20 4 30 10 -1\n\
           4: 0100007F:1538 0100007F:9C41 01 00000000:00000000 00:00000000 00000000     0        0 0 1 0 20 4 30 10 -1\n\
           garbage\n\
           5: 0100007F:1538 0100007F:9C41\n";

    #[test]
    fn tables_are_parsed() {
        let namespace = Namespace::of_table(TCP.as_bytes(), Protocol::Tcp);
        let local: SocketAddr = "127.0.0.1:40000".parse().unwrap();
        let server: SocketAddr = "127.0.0.1:5432".parse().unwrap();
        let client = Inet {
            protocol: Protocol::Tcp,
            local,
            remote: Some(server),
            is_listening: false,
        };
        assert_eq!(namespace.sockets.len(), 4);
        assert_eq!(namespace.sockets[&101], client);
        assert!(namespace.sockets[&100].is_listening);
        assert_eq!(namespace.connections[&(Protocol::Tcp, server, local)], 102);
        assert_eq!(namespace.listener(server), OtherEnd::Socket(100));
        let other: SocketAddr = "127.0.0.2:5432".parse().unwrap();
        assert_eq!(namespace.listener(other), OtherEnd::Local);
    }

    #[test]
    fn addresses_of_both_versions() {
        let parsed = |text: &str| address(text).map(|it| it.to_string());
        let mapped = "0000000000000000FFFF00000100007F:1538";
        assert_eq!(parsed(mapped).as_deref(), Some("127.0.0.1:5432"));
        let own = "00000000000000000000000001000000:0050";
        assert_eq!(parsed(own).as_deref(), Some("[::1]:80"));
        for wrong in [
            "",
            "0100007F",
            "0100007F:",
            "01:50",
            "ä00007F:0050",
            "0100007F:15380",
        ] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_port_names_a_server_only_if_the_other_is_a_client() {
        let inet = |local: &str, remote: &str| Inet {
            protocol: Protocol::Tcp,
            local: local.parse().unwrap(),
            remote: remote.parse().ok(),
            is_listening: false,
        };
        assert_eq!(
            port_name(&inet("10.0.0.1:40000", "10.0.0.5:5432")),
            Some("postgres")
        );
        assert_eq!(port_name(&inet("10.0.0.1:80", "10.0.0.5:5432")), None);
        assert_eq!(port_name(&inet("10.0.0.1:40000", "10.0.0.5:41000")), None);
        assert_eq!(port_name(&inet("10.0.0.1:5432", "10.0.0.5:41000")), None);
    }
}
