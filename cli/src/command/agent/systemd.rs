//! Tells systemd what the agent does (sd_notify(3)), if it runs as a service with `Type=notify`.

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use otelctx_sampler::monotonic;

/// The socket of the service manager, if there is one.
#[derive(Debug)]
pub(super) struct Notifier {
    socket: Option<UnixDatagram>,
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
        Self { socket, watchdog }
    }

    pub(super) fn ready(&self) {
        self.send("READY=1");
    }

    /// Says that settings are being read again; then [`Self::ready`] must follow.
    pub(super) fn reloading(&self) {
        let microseconds = monotonic() / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={microseconds}"));
    }

    pub(super) fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Tells the watchdog that all is well, if it is time to.
    pub(super) fn alive(&mut self, is_well: impl Fn() -> bool) {
        let now = Instant::now();
        let Some((period, next)) = &mut self.watchdog else {
            return;
        };
        if now < *next || !is_well() {
            return;
        }
        *next = now + *period;
        self.send("WATCHDOG=1");
    }

    fn send(&self, message: &str) {
        if let Some(socket) = &self.socket {
            // A service manager that does not listen does not matter to the agent.
            let _ = socket.send(message.as_bytes());
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
