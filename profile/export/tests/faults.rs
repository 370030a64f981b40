//! Responses of a collector that does not accept a message, by both protocols.

#[path = "../../write/tests/flat/mod.rs"]
mod flat;
mod server;
#[path = "../../write/tests/shop/mod.rs"]
mod shop;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use opentelemetry_proto::tonic::profiles::v1development::ProfilesData;
use otelctx_export::{Endpoint, Error, Exporter, Failed, Protocol, Sent};
use otelctx_profile::{Format, Options};
use prost::Message as _;
use server::{Reply, Server};

const BOTH: [Protocol; 2] = [Protocol::Grpc, Protocol::Http];
/// So long that a test that waited for it would not end.
const HOUR: Duration = Duration::from_secs(3600);

fn endpoint(url: &str, protocol: Protocol) -> Endpoint {
    let mut endpoint = Endpoint::new(url, protocol).unwrap();
    endpoint.pause = Duration::from_millis(1);
    // Only the tests of it may meet it.
    endpoint.timeout = Duration::from_secs(60);
    endpoint
}

fn send(endpoint: &Endpoint) -> Result<Sent, Failed> {
    let mut exporter = Exporter::new(endpoint).unwrap();
    exporter.send(&shop::profile(), &Options::default())
}

fn written() -> ProfilesData {
    let mut bytes = Vec::new();
    let profile = shop::profile();
    profile
        .write(Format::Otlp, &Options::default(), &mut bytes)
        .unwrap();
    ProfilesData::decode(&bytes[..]).unwrap()
}

/// A status of gRPC as HTTP has it: with a number of its own, and without its details.
fn unavailable(protocol: Protocol) -> Reply {
    match protocol {
        Protocol::Grpc => Reply::Grpc(14, "later", Vec::new()),
        Protocol::Http => Reply::Http(503, Vec::new(), b"later".to_vec()),
    }
}

#[test]
fn who_is_not_ready_is_asked_again_with_the_same() {
    for protocol in BOTH {
        let not_yet = unavailable(protocol);
        let server = Server::start(protocol, vec![not_yet.clone(), not_yet, Reply::Taken]);
        let sent = send(&endpoint(&server.url(), protocol)).unwrap();
        assert_eq!((sent.messages, sent.rejected_profiles), (1, 0));
        assert_eq!(sent.remarks, [""; 0]);
        let seen = server.seen();
        assert_eq!(seen.len(), 3, "{protocol}");
        for request in seen {
            assert_eq!(request.data, written());
            assert_eq!(request.connection, 0, "{protocol}");
        }
    }
}

#[test]
fn retries_end() {
    for protocol in BOTH {
        let server = Server::start(protocol, vec![unavailable(protocol)]);
        let failed = send(&endpoint(&server.url(), protocol)).unwrap_err();
        assert_eq!((server.seen().len(), failed.attempts), (4, 4));
        assert!(
            matches!(failed.why, Error::Unavailable { .. }),
            "{failed:?}"
        );
        let said = failed.to_string();
        assert!(
            said.contains("later") && said.ends_with(", tried 4 times"),
            "{said}"
        );
    }
}

/// The pause of its own would be an hour.
#[test]
fn a_time_to_come_again_is_kept_to() {
    // `google.rpc.Status` with a `RetryInfo` of 1 ms.
    let retry_info =
        b"\x1a\x30\x0a\x28type.googleapis.com/google.rpc.RetryInfo\x12\x04\x0a\x02\x10\x01";
    let (exhausted, details) = (8, retry_info.to_vec());
    let too_many = |after| Reply::Http(429, vec![("retry-after", after)], Vec::new());
    for (protocol, reply) in [
        (Protocol::Grpc, Reply::Grpc(exhausted, "full", details)),
        (Protocol::Http, too_many("0")),
    ] {
        let server = Server::start(protocol, vec![reply, Reply::Taken]);
        let mut endpoint = endpoint(&server.url(), protocol);
        endpoint.pause = HOUR;
        assert_eq!(send(&endpoint).unwrap().messages, 1);
        assert_eq!(server.seen().len(), 2);
    }
    let server = Server::start(Protocol::Http, vec![too_many("3600")]);
    let failed = send(&endpoint(&server.url(), Protocol::Http)).unwrap_err();
    assert_eq!((server.seen().len(), failed.attempts), (1, 1));
    // Without a time, RESOURCE_EXHAUSTED is for good.
    let server = Server::start(
        Protocol::Grpc,
        vec![Reply::Grpc(exhausted, "full", Vec::new())],
    );
    let failed = send(&endpoint(&server.url(), Protocol::Grpc)).unwrap_err();
    assert!(matches!(failed.why, Error::Refused { .. }), "{failed:?}");
    assert_eq!(server.seen().len(), 1);
}

#[test]
fn who_refuses_is_not_asked_again() {
    // `google.rpc.Status`, whose message would change a terminal's title.
    let body = b"\x12\x10bad \x1b]0;x\x07 stack".to_vec();
    let protobuf = vec![("content-type", "application/x-protobuf")];
    let moved = vec![("location", "http://elsewhere/")];
    for (protocol, reply, says) in [
        (
            Protocol::Grpc,
            Reply::Grpc(3, "bad%1B stack", Vec::new()),
            "InvalidArgument: bad stack",
        ),
        (
            Protocol::Grpc,
            Reply::Grpc(16, "who?", Vec::new()),
            "Unauthenticated: who?",
        ),
        (
            Protocol::Http,
            Reply::Http(400, protobuf, body),
            "400 Bad Request: bad ]0;x stack",
        ),
        (
            Protocol::Http,
            Reply::Http(401, Vec::new(), Vec::new()),
            "401 Unauthorized",
        ),
        (
            Protocol::Http,
            Reply::Http(301, moved, Vec::new()),
            "it redirects to http://elsewhere/",
        ),
    ] {
        let server = Server::start(protocol, vec![reply]);
        let failed = send(&endpoint(&server.url(), protocol)).unwrap_err();
        assert!(matches!(failed.why, Error::Refused { .. }), "{failed:?}");
        assert!(failed.to_string().ends_with(says), "{failed}");
        assert_eq!((server.seen().len(), failed.attempts), (1, 1));
    }
}

#[test]
fn a_server_without_profiles_is_recognized() {
    for (protocol, reply) in [
        (
            Protocol::Grpc,
            Reply::Grpc(12, "unknown service", Vec::new()),
        ),
        (
            Protocol::Http,
            Reply::Http(404, Vec::new(), b"404 page not found".to_vec()),
        ),
    ] {
        let server = Server::start(protocol, vec![reply]);
        let failed = send(&endpoint(&server.url(), protocol)).unwrap_err();
        assert!(matches!(failed.why, Error::NoProfiles { .. }), "{failed:?}");
        let hint = failed.why.hint().unwrap();
        assert!(
            hint.contains("--feature-gates=service.profilesSupport"),
            "{hint}"
        );
        assert_eq!(server.seen().len(), 1);
    }
}

#[test]
fn rejected_profiles_are_reported_and_summed() {
    for protocol in BOTH {
        let replies = vec![
            Reply::Partly(2, "no\nroom"),
            Reply::Partly(0, "stacks are deprecated"),
            Reply::Partly(1, "no room"),
            Reply::Taken,
        ];
        let server = Server::start(protocol, replies);
        let mut endpoint = endpoint(&server.url(), protocol);
        endpoint.message_size = 1000;
        let sent = send(&endpoint).unwrap();
        assert_eq!(sent.rejected_profiles, 3);
        assert_eq!(sent.remarks, ["no room", "stacks are deprecated"]);
        // A receiver by HTTP that answers in JSON.
        if protocol == Protocol::Http {
            let kind = vec![("content-type", "application/json")];
            let body = br#"{"partialSuccess":{"rejectedProfiles":"7","errorMessage":"x"}}"#;
            let server = Server::start(protocol, vec![Reply::Http(200, kind, body.to_vec())]);
            endpoint = self::endpoint(&server.url(), protocol);
            let sent = send(&endpoint).unwrap();
            assert_eq!(
                (sent.rejected_profiles, &sent.remarks[..]),
                (7, &["x".to_owned()][..])
            );
        }
    }
}

#[test]
fn parts_of_a_profile_go_over_one_connection_until_one_fails() {
    for protocol in BOTH {
        let server = Server::start(protocol, vec![Reply::Taken]);
        let mut endpoint = endpoint(&server.url(), protocol);
        endpoint.message_size = 1000;
        endpoint.gzip = false;
        let sent = send(&endpoint).unwrap();
        let seen = server.seen();
        assert!(
            seen.len() > 3 && sent.messages == seen.len(),
            "{}",
            seen.len()
        );
        let sizes = seen.iter().map(|request| request.data.encoded_len());
        assert_eq!(sizes.sum::<usize>(), sent.bytes);
        assert!(seen.iter().all(|request| request.connection == 0));
        let data = seen.iter().map(|request| &request.data);
        assert_eq!(flat::lines(data), flat::lines([&written()]));
        let refused = match protocol {
            Protocol::Grpc => Reply::Grpc(7, "enough", Vec::new()),
            Protocol::Http => Reply::Http(403, Vec::new(), b"enough".to_vec()),
        };
        let replies = vec![Reply::Taken, Reply::Taken, refused, Reply::Taken];
        let server = Server::start(protocol, replies);
        let mut endpoint = self::endpoint(&server.url(), protocol);
        endpoint.message_size = 1000;
        let failed = send(&endpoint).unwrap_err();
        assert_eq!((failed.sent.messages, server.seen().len()), (2, 3));
        let said = failed.to_string();
        assert!(
            said.ends_with("; it accepted 2 parts of the profile before"),
            "{said}"
        );
    }
}

#[test]
fn a_closed_connection_is_reopened_at_once() {
    let server = Server::start(Protocol::Http, vec![Reply::Last, Reply::Taken]);
    let mut endpoint = endpoint(&server.url(), Protocol::Http);
    endpoint.pause = HOUR;
    let mut exporter = Exporter::new(&endpoint).unwrap();
    for _ in 0..3 {
        exporter
            .send(&shop::profile(), &Options::default())
            .unwrap();
    }
    let connections: Vec<_> = server
        .seen()
        .iter()
        .map(|request| request.connection)
        .collect();
    assert_eq!(connections, [0, 1, 1]);
}

#[test]
fn headers_go_with_each_request() {
    for protocol in BOTH {
        let server = Server::start(protocol, vec![Reply::Taken]);
        let variable = |name: &str| match name {
            "OTEL_EXPORTER_OTLP_HEADERS" => Some("api-key=s%20cret, X-Scope-OrgID=a".to_owned()),
            _ => None,
        };
        let endpoint =
            Endpoint::from_environment(Some(&server.url()), Some(protocol), variable).unwrap();
        send(&endpoint).unwrap();
        let [request] = &server.seen()[..] else {
            panic!("one request")
        };
        assert_eq!(request.headers["api-key"], "s cret");
        assert_eq!(request.headers["x-scope-orgid"], "a");
        let agent = request.headers["user-agent"].to_str().unwrap();
        assert!(agent.starts_with("otelctx/"), "{agent}");
        assert_eq!(
            request.path,
            match protocol {
                Protocol::Grpc =>
                    "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export",
                Protocol::Http => "/v1development/profiles",
            }
        );
    }
}

/// A server that does `act` with each connection.
fn raw(act: impl Fn(TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let act = Arc::new(act);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let act = Arc::clone(&act);
            std::thread::spawn(move || act(stream.unwrap()));
        }
    });
    url
}

/// Reads until the end of a request's head, which HTTP/2's preface has as well.
fn read_head(stream: &mut TcpStream) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|size| size == 1) {
        head.push(byte[0]);
    }
}

#[test]
fn who_does_not_answer_is_given_up() {
    for protocol in BOTH {
        let server = Server::start(protocol, vec![Reply::Never]);
        let silent = raw(|stream| {
            std::thread::sleep(HOUR);
            drop(stream);
        });
        let half = raw(|mut stream| {
            read_head(&mut stream);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx");
            std::thread::sleep(HOUR);
        });
        let urls = match protocol {
            Protocol::Grpc => vec![server.url(), silent],
            Protocol::Http => vec![server.url(), silent, half],
        };
        for url in urls {
            let mut endpoint = endpoint(&url, protocol);
            (endpoint.timeout, endpoint.attempts) = (Duration::from_millis(300), 2);
            let failed = send(&endpoint).unwrap_err();
            assert!(matches!(failed.why, Error::TimedOut { .. }), "{failed:?}");
            assert_eq!(failed.attempts, 2);
            assert!(
                failed
                    .why
                    .hint()
                    .unwrap()
                    .contains("OTEL_EXPORTER_OTLP_TIMEOUT")
            );
        }
    }
}

#[test]
fn a_server_that_is_not_a_collector_is_recognized() {
    let says = |bytes: &'static [u8]| {
        raw(move |mut stream| {
            // What is no HTTP/1 speaks before it is asked.
            if bytes.starts_with(b"HTTP/1.") {
                read_head(&mut stream);
            }
            let _ = stream.write_all(bytes);
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.read_to_end(&mut Vec::new());
        })
    };
    let page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>";
    let cut =
        b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 9\r\n\r\nx";
    let odd = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 2\r\n\r\n\xff\xff";
    let ssh = b"SSH-2.0-OpenSSH_9.2\r\n";
    let greeting = b"\0\0\0\x04\0\0\0\0\0";
    for (protocol, bytes) in [
        (Protocol::Http, &page[..]),
        (Protocol::Http, &cut[..]),
        (Protocol::Http, &odd[..]),
        (Protocol::Http, &ssh[..]),
        (Protocol::Http, &greeting[..]),
        (Protocol::Grpc, &page[..]),
        (Protocol::Grpc, &ssh[..]),
    ] {
        let failed = send(&endpoint(&says(bytes), protocol)).unwrap_err();
        let shown = String::from_utf8_lossy(bytes).into_owned();
        assert!(
            matches!(failed.why, Error::WrongProtocol { .. }),
            "{shown}: {failed:?}"
        );
        assert_eq!(failed.attempts, 1);
        let other = if protocol == Protocol::Grpc {
            "http/protobuf"
        } else {
            "grpc"
        };
        assert!(
            failed
                .why
                .hint()
                .unwrap()
                .starts_with(&format!("use {other} "))
        );
    }
    let nobody = says(b"");
    let failed = send(&endpoint(&nobody, Protocol::Http)).unwrap_err();
    assert!(
        matches!(failed.why, Error::Unavailable { .. }),
        "{failed:?}"
    );
    for reply in [
        Reply::Message(0, vec![0xff; 9]),
        Reply::Message(1, vec![0xff; 9]),
    ] {
        let server = Server::start(Protocol::Grpc, vec![reply]);
        let failed = send(&endpoint(&server.url(), Protocol::Grpc)).unwrap_err();
        assert!(matches!(failed.why, Error::Refused { .. }), "{failed:?}");
    }
}

/// The part of an endless response that is read.
#[test]
fn an_answer_without_end_is_not_read_to_its_end() {
    let taken = Arc::new(AtomicUsize::new(0));
    for head in [
        "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n\r\n",
        "HTTP/1.1 500 Oh\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: ",
    ] {
        let count = Arc::clone(&taken);
        let url = raw(move |mut stream| {
            read_head(&mut stream);
            let _ = stream.write_all(head.as_bytes());
            while let Ok(written) = stream.write(&[b'x'; 4096]) {
                count.fetch_add(written, Ordering::Relaxed);
            }
        });
        let mut endpoint = endpoint(&url, Protocol::Http);
        endpoint.attempts = 1;
        send(&endpoint).unwrap_err();
    }
    // Nearly all of it is what the sockets hold.
    assert!(taken.load(Ordering::Relaxed) < 64 << 20, "{taken:?}");
    // More than any answer to a profile needs, as it is or once it is decompressed.
    let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    bomb.write_all(&vec![0; 32 << 20]).unwrap();
    for reply in [
        Reply::Message(0, vec![0; 1 << 20]),
        Reply::Message(1, bomb.finish().unwrap()),
    ] {
        let server = Server::start(Protocol::Grpc, vec![reply]);
        let failed = send(&endpoint(&server.url(), Protocol::Grpc)).unwrap_err();
        assert!(
            !matches!(failed.why, Error::Unavailable { .. }),
            "{failed:?}"
        );
    }
}

#[test]
fn nobody_there_says_what_to_do() {
    for protocol in BOTH {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let endpoint = endpoint(&url, protocol);
        let refused = |error: &Error| {
            let kind = std::io::ErrorKind::ConnectionRefused;
            matches!(error, Error::Unreachable { kind: found, .. } if *found == kind)
        };
        let exporter = Exporter::new(&endpoint).unwrap();
        assert!(refused(&exporter.reach().unwrap_err()));
        let failed = send(&endpoint).unwrap_err();
        assert!(refused(&failed.why), "{failed:?}");
        assert_eq!(failed.attempts, 4);
        assert!(failed.why.hint().unwrap().contains("4317"));
    }
}
