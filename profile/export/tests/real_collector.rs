//! OpenTelemetry's Collector takes what is sent, and what it keeps is what was sent.

mod collector;
#[path = "../../write/tests/flat/mod.rs"]
mod flat;
#[path = "../../write/tests/shop/mod.rs"]
mod shop;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use collector::{Collector, documented};
use opentelemetry_proto::tonic::profiles::v1development::ProfilesData;
use otelctx_export::{Endpoint, Error, Exporter, Protocol};
use otelctx_profile::sample::{Found, Sample};
use otelctx_profile::{Format, Options, Profile};
use prost::Message as _;

fn written(profile: &Profile) -> Vec<u8> {
    let mut bytes = Vec::new();
    profile
        .write(Format::Otlp, &Options::default(), &mut bytes)
        .unwrap();
    bytes
}

fn decoded(profile: &Profile) -> ProfilesData {
    ProfilesData::decode(&written(profile)[..]).unwrap()
}

/// More than 4 MiB: the shop's samples in 9,000 spans with attributes of their own.
fn large() -> Profile {
    let mut recording = shop::recording();
    let mut samples = Vec::new();
    for number in 0..9000_u32 {
        let mut context = shop::context(1, 1, &[]);
        context.span_id = shop::span(u64::from(number) + 1);
        let long = format!("/cart/{number}/{}", "x".repeat(480));
        context.attributes = vec![("http.route".into(), long)];
        let found = Found::Attached(recording.catalog.context(&context));
        let some = if number < 10 {
            recording.samples.len()
        } else {
            1
        };
        samples.extend(recording.samples[..some].iter().map(|sample| Sample {
            time: sample.time + u64::from(number),
            found,
            ..*sample
        }));
    }
    recording.samples = samples;
    Profile::new(recording, &mut shop::Names)
}

#[test]
fn profiles_of_any_size_arrive_by_each_way() {
    let Some(preparation) = Collector::prepare(0) else {
        return;
    };
    let collector = preparation.start(&documented());
    let (small, large) = (shop::profile(), large());
    let file = written(&small);
    let mut sent = Vec::new();
    for url in [collector.grpc(), collector.http()] {
        let mut endpoint = Endpoint::from_environment(Some(&url), None, |_| None).unwrap();
        endpoint.message_size = 1_000_000;
        for gzip in [true, false] {
            endpoint.gzip = gzip;
            let mut exporter = Exporter::new(&endpoint).unwrap();
            for profile in [&small, &large] {
                let taken = exporter.send(profile, &Options::default()).unwrap();
                assert_eq!((taken.rejected_profiles, taken.remarks.len()), (0, 0));
                assert_eq!(
                    taken.messages > 1,
                    std::ptr::eq(profile, &large),
                    "{taken:?}"
                );
                sent.push(decoded(profile));
            }
        }
    }
    post(&collector, &file);
    sent.push(decoded(&small));
    let received = collector.received();
    assert!(flat::lines(&received) == flat::lines(&sent));
}

/// The file as `curl --data-binary` would send it.
fn post(collector: &Collector, file: &[u8]) {
    let mut stream = TcpStream::connect((collector.address.as_str(), 4318)).unwrap();
    let head = format!(
        "POST /v1development/profiles HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
         Content-Type: application/x-protobuf\r\nContent-Length: {}\r\n\r\n",
        file.len()
    );
    stream.write_all(&[head.as_bytes(), file].concat()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

/// The bound of a message is what makes a large profile arrive.
#[test]
fn more_than_four_mebibytes_arrive_in_messages_that_are_taken() {
    let Some(preparation) = Collector::prepare(1) else {
        return;
    };
    let collector = preparation.start(&documented());
    let large = large();
    let size = written(&large).len();
    let mut endpoint = Endpoint::new(&collector.grpc(), Protocol::Grpc).unwrap();
    let own = endpoint.message_size;
    endpoint.message_size = usize::MAX;
    let failed = Exporter::new(&endpoint)
        .unwrap()
        .send(&large, &Options::default())
        .unwrap_err();
    assert!(size > 4 << 20, "{size}");
    assert!(matches!(failed.why, Error::Refused { .. }), "{failed:?}");
    assert!(failed.to_string().contains("larger than max"), "{failed}");
    endpoint.message_size = own;
    let sent = Exporter::new(&endpoint)
        .unwrap()
        .send(&large, &Options::default())
        .unwrap();
    assert_eq!(sent.messages, 2);
    let received = collector.received();
    assert!(flat::lines(&received) == flat::lines([&decoded(&large)]));
}

#[test]
fn the_wrong_way_says_which_is_the_right_one() {
    let Some(preparation) = Collector::prepare(2) else {
        return;
    };
    // It takes traces only.
    let configuration = documented().replace("    profiles:", "    traces:");
    let collector = preparation.start(&configuration);
    let send = |url: &str, protocol| {
        let endpoint = Endpoint::new(url, protocol).unwrap();
        let mut exporter = Exporter::new(&endpoint).unwrap();
        exporter.reach().unwrap();
        let failed = exporter.send(&shop::profile(), &Options::default());
        let failed = failed.unwrap_err();
        assert_eq!(failed.attempts, 1, "{failed:?}");
        failed.why
    };
    for (url, protocol) in [
        (collector.grpc(), Protocol::Grpc),
        (collector.http(), Protocol::Http),
    ] {
        let error = send(&url, protocol);
        assert!(matches!(error, Error::NoProfiles { .. }), "{error:?}");
        let hint = error.hint().unwrap();
        assert!(
            hint.contains("--feature-gates=service.profilesSupport"),
            "{hint}"
        );
    }
    for (url, protocol, other) in [
        (collector.grpc(), Protocol::Http, "use grpc "),
        (collector.http(), Protocol::Grpc, "use http/protobuf "),
    ] {
        let error = send(&url, protocol);
        assert!(matches!(error, Error::WrongProtocol { .. }), "{error:?}");
        assert!(error.hint().unwrap().starts_with(other), "{error:?}");
    }
}

#[cfg(feature = "tls")]
#[test]
fn a_secure_connection_is_made_to_whom_one_believes() {
    let Some(preparation) = Collector::prepare(3) else {
        return;
    };
    let certificate = preparation.folder.join("cert.pem");
    let key = preparation.folder.join("key.pem");
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
        ])
        .args(["-nodes", "-days", "2", "-subj", "/CN=otelctx"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE", "-addext"])
        .arg(format!("subjectAltName=IP:{}", preparation.address))
        .args(["-keyout".as_ref(), key.as_os_str()])
        .args(["-out".as_ref(), certificate.as_os_str()])
        .stderr(Stdio::null())
        .status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("skipped: openssl makes no certificate");
        return;
    }
    let tls = format!(
        "\n        tls: {{cert_file: {}, key_file: {}}}",
        certificate.display(),
        key.display()
    );
    let configuration = documented()
        .replace("localhost:4317", &format!("localhost:4317{tls}"))
        .replace("localhost:4318", &format!("localhost:4318{tls}"));
    let collector = preparation.start(&configuration);
    let expected = decoded(&shop::profile());
    for url in [collector.grpc(), collector.http()] {
        let url = url.replace("http:", "https:");
        let mut endpoint = Endpoint::from_environment(Some(&url), None, |_| None).unwrap();
        endpoint.certificate = Some(certificate.clone());
        let mut exporter = Exporter::new(&endpoint).unwrap();
        exporter
            .send(&shop::profile(), &Options::default())
            .unwrap();
        // Not known on this machine.
        endpoint.certificate = None;
        match Exporter::new(&endpoint) {
            Ok(mut exporter) => {
                let failed = exporter.send(&shop::profile(), &Options::default());
                let why = failed.unwrap_err().why;
                assert!(matches!(why, Error::Tls { .. }), "{why:?}");
            }
            Err(why) => assert!(matches!(why, Error::Certificates { .. }), "{why:?}"),
        }
    }
    let sent = [&expected, &expected];
    let kept = [&certificate, &key].map(|path| fs::read(path).unwrap());
    assert!(flat::lines(&collector.received()) == flat::lines(sent));
    // One that asks for a certificate, too: here its own.
    let preparation = Collector::prepare(3).unwrap();
    for (path, content) in [&certificate, &key].iter().zip(kept) {
        fs::write(path, content).unwrap();
    }
    let asks = format!("client_ca_file: {}, cert_file", certificate.display());
    let collector = preparation.start(&configuration.replace("cert_file", &asks));
    for url in [collector.grpc(), collector.http()] {
        let url = url.replace("http:", "https:");
        let mut endpoint = Endpoint::from_environment(Some(&url), None, |_| None).unwrap();
        endpoint.certificate = Some(certificate.clone());
        endpoint.attempts = 1;
        let send = |endpoint: &Endpoint| {
            let mut exporter = Exporter::new(endpoint)?;
            let sent = exporter.send(&shop::profile(), &Options::default());
            sent.map_err(|failed| failed.why)
        };
        send(&endpoint).unwrap_err();
        endpoint.client_certificate = Some((certificate.clone(), key.clone()));
        send(&endpoint).unwrap();
        endpoint.client_certificate = Some((certificate.clone(), certificate.clone()));
        let why = send(&endpoint).unwrap_err();
        assert!(matches!(why, Error::ClientCertificate { .. }), "{why:?}");
    }
    assert!(flat::lines(&collector.received()) == flat::lines(sent));
}
