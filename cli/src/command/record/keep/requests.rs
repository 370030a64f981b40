//! Requests of `otelctx dump --last` to this recorder.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use crate::command::recorders::{
    Answer, MAX_REQUEST, Request, Socket, directories, is_own_peer, listen,
};
use crate::output::terminal;

/// Maximum number of requests that wait.
const MAX_WAITING: usize = 8;
/// Time that a client has to send its request: it sends it at once.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause after a failure to accept a connection, as with too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// A client that waits for its answer.
#[derive(Debug)]
pub(super) struct Waiting {
    /// The time to write.
    pub(super) last: Duration,
    stream: UnixStream,
}

impl Waiting {
    /// Sends the answer. The client may have gone.
    pub(super) fn answer(mut self, answer: &Answer) {
        let mut line = serde_json::to_vec(answer).unwrap_or_default();
        line.push(b'\n');
        // An answer fits into the socket's buffer; sampling does not wait for a client that is stopped.
        let _ = self.stream.set_nonblocking(true);
        let _ = self.stream.write_all(&line);
    }
}

/// Receives requests until it is dropped.
#[derive(Debug)]
pub(super) struct Requests {
    receiver: Receiver<Waiting>,
    /// Removed with this.
    _socket: Socket,
}

impl Requests {
    /// Listens for requests. If that is not possible, says so and returns `None`.
    pub(super) fn listen() -> Option<Self> {
        let socket = listen(&directories(), std::process::id());
        let listening = socket.and_then(|socket| Ok((socket.listener.try_clone()?, socket)));
        let (listener, socket) = match listening {
            Ok(listening) => listening,
            Err(error) => {
                let message = format!("otelctx dump --last cannot ask this recorder: {error}");
                terminal::complain(&message, Some("kill -USR1 asks it, too"));
                return None;
            }
        };
        let (sender, receiver) = sync_channel(MAX_WAITING);
        // Ends with the process.
        thread::spawn(move || {
            loop {
                match listener.accept() {
                    Ok((stream, _)) => accept(stream, &sender),
                    Err(_) => thread::sleep(PAUSE),
                }
            }
        });
        Some(Self {
            receiver,
            _socket: socket,
        })
    }

    /// Returns the next request, if one has arrived.
    pub(super) fn next(&self) -> Option<Waiting> {
        self.receiver.try_recv().ok()
    }
}

/// Reads a client's request, and passes it on.
fn accept(mut stream: UnixStream, sender: &SyncSender<Waiting>) {
    if !is_own_peer(&stream) || stream.set_read_timeout(Some(REQUEST_TIMEOUT)).is_err() {
        return;
    }
    let mut message = [0; MAX_REQUEST];
    // A request is sent at once, and so read at once; nothing is what a client sends that only looks who listens.
    let Ok(size @ 1..) = stream.read(&mut message) else {
        return;
    };
    let refuse = |stream, why: &str| {
        let waiting = Waiting {
            last: Duration::ZERO,
            stream,
        };
        waiting.answer(&Answer {
            recorder: std::process::id() as i32,
            failed: vec![why.to_owned()],
            ..Answer::default()
        });
    };
    let Ok(Request { last_ns }) = serde_json::from_slice(&message[..size]) else {
        return refuse(stream, "this is no request of otelctx dump --last");
    };
    let waiting = Waiting {
        last: Duration::from_nanos(last_ns),
        stream,
    };
    match sender.try_send(waiting) {
        Err(TrySendError::Full(it)) => refuse(it.stream, "too many requests wait already"),
        Ok(()) | Err(TrySendError::Disconnected(_)) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    fn exchange(message: &[u8], sender: &SyncSender<Waiting>) -> UnixStream {
        let (mut client, server) = UnixStream::pair().unwrap();
        client.write_all(message).unwrap();
        accept(server, sender);
        client
    }

    fn answer(client: UnixStream) -> Answer {
        let mut line = String::new();
        BufReader::new(client).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn requests_are_passed_on_and_others_refused() {
        let (sender, receiver) = sync_channel(1);
        let client = exchange(b"{\"last_ns\": 30000000000}\n", &sender);
        let busy = exchange(b"{\"last_ns\": 1}\n", &sender);
        assert_eq!(answer(busy).failed, ["too many requests wait already"]);
        let waiting = receiver.try_recv().unwrap();
        assert_eq!(waiting.last, Duration::from_secs(30));
        let sent = Answer {
            recorder: 7,
            samples: 3,
            files: vec!["/tmp/a.svg".into()],
            ..Answer::default()
        };
        waiting.answer(&sent);
        assert_eq!(answer(client), sent);
        for wrong in [&b"{}"[..], b"\xff", b"{\"last_ns\": -1}", &[b' '; 5000]] {
            let refused = answer(exchange(wrong, &sender)).failed;
            assert_eq!(refused, ["this is no request of otelctx dump --last"]);
        }
        let (client, server) = UnixStream::pair().unwrap();
        drop(client);
        accept(server, &sender);
        assert!(receiver.try_recv().is_err());
    }
}
