//! Tells systemd what the agent does (sd_notify(3)), if it runs as a service with `Type=notify`.

use std::collections::VecDeque;
use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use otelctx_sampler::monotonic;

/// Maximum number of changes that wait to be sent.
const MAX_UNSENT: usize = 16;

/// The socket of the service manager, if there is one.
#[derive(Debug)]
pub(super) struct Notifier {
    socket: Option<UnixDatagram>,
    /// Changes that the service manager had no room for.
    unsent: VecDeque<String>,
    /// The time between two messages to the watchdog, and the time of the next one.
    watchdog: Option<(Duration, Instant)>,
}

impl Notifier {
    /// Connects to the socket in `NOTIFY_SOCKET`, if this process was started with one.
    pub(super) fn from_environment() -> Self {
        let address = env::var_os("NOTIFY_SOCKET");
        let socket = address.and_then(|it| connect(it.as_bytes()).ok());
        let number = |name: &str| env::var(name).ok()?.parse::<u64>().ok();
        let is_own = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let period = number("WATCHDOG_USEC").filter(|it| is_own && *it > 0);
        // Half of it, as sd_watchdog_enabled(3) recommends.
        let watchdog = period.map(|it| (Duration::from_micros(it / 2), Instant::now()));
        Self {
            socket,
            unsent: VecDeque::new(),
            watchdog,
        }
    }

    pub(super) fn ready(&mut self) {
        self.change("READY=1".to_owned());
    }

    /// Says that settings are being read again; then [`Self::ready`] must follow.
    pub(super) fn reloading(&mut self) {
        let microseconds = monotonic() / 1000;
        self.change(format!("RELOADING=1\nMONOTONIC_USEC={microseconds}"));
    }

    pub(super) fn stopping(&mut self) {
        self.change("STOPPING=1".to_owned());
    }

    /// Tells the watchdog that all is well, if it is time to.
    pub(super) fn alive(&mut self, is_well: impl Fn() -> bool) {
        self.send_changes();
        let now = Instant::now();
        let Some((period, next)) = &mut self.watchdog else {
            return;
        };
        if now < *next || !is_well() {
            return;
        }
        *next = now + *period;
        if let Some(socket) = self.socket.as_ref().filter(|_| self.unsent.is_empty()) {
            // A service manager that does not listen does not matter to the agent, and another one follows.
            let _ = socket.send(b"WATCHDOG=1");
        }
    }

    fn change(&mut self, message: String) {
        if self.unsent.len() < MAX_UNSENT {
            self.unsent.push_back(message);
        }
        self.send_changes();
    }

    /// Sends changes in order, as far as there is room for them. Other errors do not matter to the agent.
    fn send_changes(&mut self) {
        let Some(socket) = &self.socket else {
            return self.unsent.clear();
        };
        while let Some(message) = self.unsent.front() {
            match socket.send(message.as_bytes()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                _ => drop(self.unsent.pop_front()),
            }
        }
    }
}

fn connect(address: &[u8]) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    // It must not wait for a service manager that is busy.
    socket.set_nonblocking(true)?;
    let address = match address {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))?,
    };
    socket.connect_addr(&address)?;
    Ok(socket)
}
