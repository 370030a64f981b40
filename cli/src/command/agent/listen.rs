//! Metrics and health over HTTP, if they are asked for.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

use super::monitor::Monitor;
use super::settings::ListenAddress;

/// Maximum number of clients at a time.
const MAX_CLIENTS: usize = 16;
/// Maximum size of a request's head, and of an answer to a probe, in bytes.
const MAX_HEAD: usize = 8 << 10;
/// Time that a client has for its request.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Answers on this address from a thread, until the process ends. Returns the address with its port.
pub(super) fn start(address: ListenAddress, monitor: Arc<Monitor>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address.0)?;
    let bound = listener.local_addr()?;
    let clients = Arc::new(AtomicUsize::new(0));
    let accept = move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                // Out of descriptors, most likely: without a pause, this would take a CPU.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            if clients.fetch_add(1, Ordering::AcqRel) >= MAX_CLIENTS {
                clients.fetch_sub(1, Ordering::AcqRel);
                continue;
            }
            let (monitor, of_client) = (Arc::clone(&monitor), Arc::clone(&clients));
            let client = Builder::new().name("client".to_owned()).spawn(move || {
                // The client has gone, or sends no request.
                let _ = answer(stream, &monitor);
                of_client.fetch_sub(1, Ordering::AcqRel);
            });
            if client.is_err() {
                clients.fetch_sub(1, Ordering::AcqRel);
            }
        }
    };
    Builder::new().name("metrics".to_owned()).spawn(accept)?;
    Ok(bound)
}

fn answer(mut stream: TcpStream, monitor: &Monitor) -> io::Result<()> {
    stream.set_write_timeout(Some(TIMEOUT))?;
    let head = head(&mut stream, TIMEOUT)?;
    let mut words = head.split(' ');
    let (method, path) = (words.next(), words.next().unwrap_or_default());
    let path = path.split('?').next().unwrap_or_default();
    let (status, kind, body) = match (method, path) {
        (Some("GET"), "/metrics") => {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            ("200 OK", kind, monitor.metrics())
        }
        (Some("GET"), "/health") => {
            let health = monitor.health();
            let status = match health.status {
                "ok" => "200 OK",
                _ => "503 Service Unavailable",
            };
            let body = serde_json::to_string(&health).unwrap_or_default() + "\n";
            (status, "application/json", body)
        }
        (Some("GET"), _) => ("404 Not Found", "text/plain", String::new()),
        _ => ("405 Method Not Allowed", "text/plain", String::new()),
    };
    let size = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n{body}"
    )
}

/// Reads the head of a request, or of a response with what follows it until the connection ends.
fn head(stream: &mut TcpStream, timeout: Duration) -> io::Result<String> {
    let end = Instant::now() + timeout;
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let size = stream.read(&mut chunk)?;
        head.extend_from_slice(&chunk[..size]);
        let is_whole = head.windows(4).any(|it| it == b"\r\n\r\n");
        if size == 0 || is_whole || head.len() > MAX_HEAD {
            return Ok(String::from_utf8_lossy(&head).into_owned());
        }
    }
}

/// Asks an agent that listens on this address for its health. Returns whether it is well, and what it says.
pub(super) fn probe(address: ListenAddress) -> io::Result<(bool, String)> {
    let mut address = address.0;
    if address.ip().is_unspecified() {
        // It listens on all addresses.
        let loopback = match address {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            SocketAddr::V6(_) => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
        };
        address.set_ip(loopback);
    }
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(MAX_HEAD as u64).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    Ok((head.starts_with("HTTP/1.1 200 "), body.to_owned()))
}
