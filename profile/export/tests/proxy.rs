//! Sending through an HTTP proxy.

mod server;
#[path = "../../write/tests/shop/mod.rs"]
mod shop;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use otelctx_export::{Endpoint, Error, Exporter, Failed, Protocol, Sent};
use otelctx_profile::Options;
use server::{Reply, Server};

/// `me:p@ss`
const AUTHORIZATION: &str = "Basic bWU6cEBzcw==";

/// A proxy that answers each request with this line, and connects the client to `to` if that is a success. Returns its
/// address, and the heads of requests.
fn proxy(line: &'static str, to: SocketAddr) -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (heads, received) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            let _ = heads.send(String::from_utf8(head).unwrap());
            write!(stream, "{line}\r\nVia: 1.1 proxy\r\n\r\n").unwrap();
            if line.contains(" 200 ") {
                let other = TcpStream::connect(to).unwrap();
                let (mut from, mut back) =
                    (stream.try_clone().unwrap(), other.try_clone().unwrap());
                thread::spawn(move || io::copy(&mut from, &mut { other }));
                thread::spawn(move || io::copy(&mut back, &mut stream));
            }
        }
    });
    (address, received)
}

fn send(url: &str, protocol: Protocol, proxy: SocketAddr) -> Result<Sent, Failed> {
    let of_proxy = format!("http://me:p%40ss@{proxy}");
    let variable = |name: &str| (name == "HTTP_PROXY").then(|| of_proxy.clone());
    let mut endpoint = Endpoint::from_environment(Some(url), Some(protocol), variable).unwrap();
    endpoint.attempts = 1;
    endpoint.timeout = std::time::Duration::from_secs(60);
    let mut exporter = Exporter::new(&endpoint).unwrap();
    exporter.send(&shop::profile(), &Options::default())
}

#[test]
fn a_tunnel_leads_to_the_collector() {
    let server = Server::start(Protocol::Grpc, vec![Reply::Taken]);
    let (address, heads) = proxy("HTTP/1.1 200 Connection established", server.address);
    let sent = send("http://collector.invalid:4317", Protocol::Grpc, address).unwrap();
    assert_eq!((sent.messages, server.seen().len()), (1, 1));
    let expected = format!(
        "CONNECT collector.invalid:4317 HTTP/1.1\r\nHost: collector.invalid:4317\r\n\
         Proxy-Authorization: {AUTHORIZATION}\r\n\r\n"
    );
    assert_eq!(heads.recv().unwrap(), expected);
    // The collector does not see the password.
    let seen = &server.seen()[0].headers;
    assert!(!seen.contains_key("proxy-authorization"), "{seen:?}");
}

/// Over HTTP without TLS, the proxy forwards requests, as `curl` and Go's client have it.
#[test]
fn a_plain_request_is_forwarded() {
    let server = Server::start(Protocol::Http, vec![Reply::Taken]);
    let url = "http://collector.invalid:4318/base";
    let sent = send(url, Protocol::Http, server.address).unwrap();
    assert_eq!(sent.messages, 1);
    let seen = &server.seen()[0];
    assert_eq!(seen.path, "/base/v1development/profiles");
    assert_eq!(seen.headers["host"], "collector.invalid:4318");
    assert_eq!(seen.headers["proxy-authorization"], AUTHORIZATION);
}

#[test]
fn a_proxy_that_refuses_is_named_without_its_password() {
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let url = "http://collector.invalid:4317";
    for (line, expected) in [
        (
            "HTTP/1.1 407 Proxy Authentication Required",
            "it answers 407 Proxy Authentication Required",
        ),
        ("HTTP/1.0 502 \u{1b}[31mno", "it answers 502 [31mno"),
        ("SSH-2.0-x", "it is no HTTP proxy"),
    ] {
        let (address, _heads) = proxy(line, nowhere);
        let error = send(url, Protocol::Grpc, address).unwrap_err().why;
        let start = format!("cannot connect to {url} through the proxy http://{address}: ");
        assert_eq!(error.to_string(), format!("{start}{expected}"));
        assert!(matches!(error, Error::Proxy { .. }));
    }
    // One that is not there.
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    for protocol in [Protocol::Grpc, Protocol::Http] {
        let error = send(url, protocol, address).unwrap_err().why;
        let text = error.to_string();
        assert!(text.contains("through the proxy"), "{text}");
        assert!(text.contains("Connection refused"), "{text}");
    }
}

#[test]
fn a_proxy_whose_answer_does_not_end_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        while stream.write_all(b"HTTP/1.1 200 OK\r\nX: y\r\n").is_ok() {}
    });
    let error = send("http://collector.invalid:4317", Protocol::Grpc, address);
    let text = error.unwrap_err().why.to_string();
    assert!(text.ends_with("its answer is too long"), "{text}");
}
