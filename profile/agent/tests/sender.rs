//! What a sender does with each answer of a collector.

mod numbered;
#[path = "../../export/tests/server/mod.rs"]
mod server;

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use numbered::{message, number};
use otelctx_agent::{Backoff, DropReason, Event, Queue, QueueLimits, Sender};
use otelctx_export::{Endpoint, Exporter, Protocol};
use server::{Reply, Server};

const BOTH: [Protocol; 2] = [Protocol::Grpc, Protocol::Http];
/// So long that a test that waited for it would not end.
const HOUR: Duration = Duration::from_secs(3600);
/// `google.rpc.Status` with a `RetryInfo` of 1 ms, and of an hour.
const SOON: &[u8] =
    b"\x1a\x30\x0a\x28type.googleapis.com/google.rpc.RetryInfo\x12\x04\x0a\x02\x10\x01";
const IN_AN_HOUR: &[u8] =
    b"\x1a\x31\x0a\x28type.googleapis.com/google.rpc.RetryInfo\x12\x05\x0a\x03\x08\x90\x1c";

fn exporter(url: &str, protocol: Protocol) -> Exporter {
    let mut endpoint = Endpoint::new(url, protocol).unwrap();
    endpoint.timeout = HOUR;
    Exporter::new(&endpoint).unwrap()
}

/// Does not wait, but where the server asks for it.
const AT_ONCE: Backoff = Backoff {
    first: Duration::ZERO,
    max: Duration::ZERO,
    max_asked: HOUR,
};

/// A sender to a server that answers like this, with its events.
fn start(protocol: Protocol, replies: Vec<Reply>) -> (Server, Queue, Sender, Receiver<String>) {
    start_with(AT_ONCE, protocol, replies)
}

fn start_with(
    backoff: Backoff,
    protocol: Protocol,
    replies: Vec<Reply>,
) -> (Server, Queue, Sender, Receiver<String>) {
    let server = Server::start(protocol, replies);
    let queue = Queue::in_memory(QueueLimits::default());
    let (events, received) = channel();
    let on_event = move |event: Event| events.send(event.to_string()).unwrap();
    let exporter = exporter(&server.url(), protocol);
    let sender = Sender::start(queue.clone(), exporter, backoff, on_event).unwrap();
    (server, queue, sender, received)
}

fn numbers(server: &Server) -> Vec<u64> {
    let requests = server.seen();
    requests.iter().map(|it| number(&it.data)).collect()
}

#[test]
fn what_may_be_accepted_later_is_sent_again_and_in_order() {
    let later = |protocol| match protocol {
        Protocol::Grpc => vec![
            Reply::Grpc(14, "later", Vec::new()),
            Reply::Grpc(8, "full", SOON.to_vec()),
            Reply::Grpc(4, "slow", Vec::new()),
        ],
        Protocol::Http => vec![
            Reply::Http(503, Vec::new(), b"later".to_vec()),
            Reply::Http(429, vec![("retry-after", "0")], Vec::new()),
            Reply::Http(504, Vec::new(), Vec::new()),
        ],
    };
    for protocol in BOTH {
        let replies = [&later(protocol)[..], &[Reply::Taken]].concat();
        let (server, queue, sender, events) = start(protocol, replies);
        (1..=5).for_each(|number| queue.push(message(number, 2), 2));
        sender.stop(HOUR);
        assert_eq!(numbers(&server), [1, 1, 1, 1, 2, 3, 4, 5]);
        let counts = queue.counts();
        assert_eq!((counts.sent.messages, counts.sent.samples), (5, 10));
        assert_eq!((counts.retries, counts.all_dropped().messages), (3, 0));
        let events: Vec<_> = events.iter().collect();
        assert!(
            events[0].ends_with("later; messages are kept, and sent later"),
            "{events:?}"
        );
        let again = "the collector accepts profiles again, after 3 failed attempts";
        assert_eq!(events[1..], [again]);
    }
}

/// Regression: it was dropped as refused, and with it all of the queue.
#[test]
fn a_message_that_no_collector_has_read_is_kept() {
    for (there, asked) in [
        (Protocol::Http, Protocol::Grpc),
        (Protocol::Grpc, Protocol::Http),
    ] {
        let backoff = Backoff {
            first: HOUR,
            max: HOUR,
            max_asked: HOUR,
        };
        let server = Server::start(there, vec![Reply::Taken]);
        let queue = Queue::in_memory(QueueLimits::default());
        let (events, received) = channel();
        let on_event = move |event: Event| events.send(event.to_string()).unwrap();
        let wrong = exporter(&server.url(), asked);
        let sender = Sender::start(queue.clone(), wrong, backoff, on_event).unwrap();
        queue.push(message(1, 2), 2);
        let failing = received.recv().unwrap();
        let kept = "; messages are kept, and sent later";
        assert!(failing.ends_with(kept), "{failing}");
        sender.replace(exporter(&server.url(), there));
        let again = "the collector accepts profiles again, after 1 failed attempt";
        assert_eq!(received.recv().unwrap(), again);
        sender.stop(HOUR);
        assert_eq!(numbers(&server), [1]);
        let counts = queue.counts();
        assert_eq!(counts.all_dropped().messages, 0);
        assert_eq!(counts.sent.messages, 1);
    }
}

#[test]
fn what_is_refused_is_dropped_counted_and_said_once() {
    for (protocol, reply) in [
        (Protocol::Grpc, Reply::Grpc(3, "bad", Vec::new())),
        (Protocol::Grpc, Reply::Grpc(16, "who?", Vec::new())),
        (Protocol::Grpc, Reply::Grpc(8, "full", Vec::new())),
        (Protocol::Http, Reply::Http(400, Vec::new(), Vec::new())),
        (Protocol::Http, Reply::Http(404, Vec::new(), Vec::new())),
        (Protocol::Http, Reply::Http(500, Vec::new(), Vec::new())),
    ] {
        let replies = vec![reply.clone(), reply.clone(), reply, Reply::Taken];
        let (server, queue, sender, events) = start(protocol, replies);
        (1..=4).for_each(|number| queue.push(message(number, 3), 3));
        sender.stop(HOUR);
        assert_eq!(numbers(&server), [1, 2, 3, 4]);
        let counts = queue.counts();
        let dropped = counts.dropped(DropReason::Refused);
        assert_eq!((dropped.messages, dropped.samples), (3, 9));
        assert_eq!((counts.sent.samples, counts.retries), (3, 0));
        let events: Vec<_> = events.iter().collect();
        assert!(events[0].ends_with("the message is dropped"), "{events:?}");
        assert_eq!(events[1..], ["the collector accepts profiles"]);
    }
}

#[test]
fn what_is_accepted_in_part_is_not_sent_again() {
    for protocol in BOTH {
        let partly = Reply::Partly(2, "too old");
        let replies = vec![
            Reply::Taken,
            partly.clone(),
            partly,
            Reply::Partly(0, "use v2"),
            Reply::Taken,
        ];
        let (server, queue, sender, events) = start(protocol, replies);
        (1..=5).for_each(|number| queue.push(message(number, 1), 1));
        sender.stop(HOUR);
        assert_eq!(numbers(&server), [1, 2, 3, 4, 5]);
        let counts = queue.counts();
        assert_eq!((counts.sent.messages, counts.rejected_profiles), (5, 4));
        let accepts = "the collector accepts profiles";
        assert_eq!(
            events.iter().collect::<Vec<_>>(),
            [
                accepts,
                "the collector rejected 2 profiles: too old",
                "the collector says: use v2",
                accepts
            ]
        );
    }
}

#[test]
fn a_delay_that_is_asked_for_is_kept_to_also_at_the_end() {
    for (protocol, reply) in [
        (
            Protocol::Http,
            Reply::Http(429, vec![("retry-after", "3600")], Vec::new()),
        ),
        (Protocol::Grpc, Reply::Grpc(8, "full", IN_AN_HOUR.to_vec())),
    ] {
        let (server, queue, sender, events) = start(protocol, vec![reply, Reply::Taken]);
        queue.push(message(1, 7), 7);
        // Once the answer has come, no further attempt may follow.
        let failing = events.recv().unwrap();
        assert!(failing.ends_with("sent later"), "{failing}");
        sender.stop(HOUR);
        assert_eq!(numbers(&server), [1]);
        let dropped = queue.counts().dropped(DropReason::Stopped);
        assert_eq!((dropped.messages, dropped.samples), (1, 7));
    }
}

#[test]
fn a_collector_that_never_answers_does_not_delay_the_end() {
    for protocol in BOTH {
        let (server, queue, sender, _events) = start(protocol, vec![Reply::Never]);
        (1..=3).for_each(|number| queue.push(message(number, 1), 1));
        while server.seen().is_empty() {
            std::thread::yield_now();
        }
        sender.stop(Duration::ZERO);
        assert_eq!(numbers(&server), [1]);
        assert_eq!(queue.counts().dropped(DropReason::Stopped).messages, 3);
    }
}

#[test]
fn another_collector_takes_over_without_the_delay_of_the_former_one() {
    let asks = Reply::Http(429, vec![("retry-after", "3600")], Vec::new());
    let (former, queue, sender, events) = start(Protocol::Http, vec![asks]);
    (1..=2).for_each(|number| queue.push(message(number, 1), 1));
    events.recv().unwrap();
    let other = Server::start(Protocol::Grpc, vec![Reply::Taken]);
    sender.replace(exporter(&other.url(), Protocol::Grpc));
    assert!(events.recv().unwrap().contains("accepts profiles again"));
    sender.stop(HOUR);
    assert_eq!((numbers(&former), numbers(&other)), (vec![1], vec![1, 2]));
}

#[test]
fn at_the_end_one_more_attempt_is_made_at_once() {
    let later = Reply::Http(503, Vec::new(), Vec::new());
    let never = Backoff {
        first: HOUR,
        max: HOUR,
        max_asked: HOUR,
    };
    for (replies, sent, dropped) in [
        (vec![later.clone(), Reply::Taken], 3, 0),
        // One that still fails is the last one.
        (vec![later], 0, 3),
    ] {
        let (server, queue, sender, events) = start_with(never, Protocol::Http, replies);
        (1..=3).for_each(|number| queue.push(message(number, 1), 1));
        events.recv().unwrap();
        sender.stop(HOUR);
        let expected = if sent > 0 { &[1, 1, 2, 3][..] } else { &[1, 1] };
        assert_eq!(numbers(&server), expected);
        let counts = queue.counts();
        assert_eq!(counts.sent.messages, sent);
        assert_eq!(counts.dropped(DropReason::Stopped).messages, dropped);
    }
}

#[test]
fn a_sender_that_has_panicked_is_not_alive() {
    let server = Server::start(Protocol::Http, vec![Reply::Taken]);
    let queue = Queue::in_memory(QueueLimits::default());
    let exporter = exporter(&server.url(), Protocol::Http);
    let panics = |event: Event| panic!("as the test wants: {event}");
    let sender = Sender::start(queue.clone(), exporter, AT_ONCE, panics).unwrap();
    let liveness = sender.liveness();
    assert!(liveness.is_alive());
    queue.push(message(1, 2), 2);
    while liveness.is_alive() {
        std::thread::yield_now();
    }
    sender.stop(HOUR);
}
