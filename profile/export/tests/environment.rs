//! The destination of profiles, from the environment variables of OTLP exporters.

use std::path::Path;
use std::time::Duration;

use otelctx_export::{Endpoint, Error, Protocol};

fn endpoint(
    url: Option<&str>,
    protocol: Option<Protocol>,
    variables: &[(&str, &str)],
) -> Result<Endpoint, Error> {
    Endpoint::from_environment(url, protocol, |name| {
        // Variables of proxies have other names.
        let name = name.strip_prefix("OTEL_EXPORTER_OTLP_")?;
        let found = variables.iter().find(|(variable, _)| *variable == name);
        found.map(|(_, value)| (*value).to_owned())
    })
}

/// URL and protocol.
fn of(url: Option<&str>, protocol: Option<Protocol>, variables: &[(&str, &str)]) -> String {
    let endpoint = endpoint(url, protocol, variables).unwrap();
    format!("{endpoint} {}", endpoint.protocol())
}

#[test]
fn the_port_chooses_the_protocol_of_a_url() {
    let of = |url, variables: &[(&str, &str)]| of(Some(url), None, variables);
    assert_eq!(of("http://a:4317", &[]), "http://a:4317 grpc");
    let http = "http://a:4318/v1development/profiles http/protobuf";
    assert_eq!(of("http://a:4318", &[]), http);
    assert_eq!(of("http://a:4318/", &[("PROTOCOL", "grpc")]), http);
    assert_eq!(of(http.split(' ').next().unwrap(), &[]), http);
    assert_eq!(
        of("https://a:1/x", &[("PROTOCOL", "grpc")]),
        "https://a:1 grpc"
    );
    let base = "https://a/x/v1development/profiles http/protobuf";
    assert_eq!(of("https://a/x", &[]), base);
}

#[test]
fn what_is_given_goes_before_the_environment() {
    let variables = [("ENDPOINT", "http://b:4318"), ("PROTOCOL", "http/protobuf")];
    let grpc = Some(Protocol::Grpc);
    assert_eq!(
        of(Some("http://a:4318"), grpc, &variables),
        "http://a:4318 grpc"
    );
    assert_eq!(of(None, grpc, &variables), "http://b:4318 grpc");
}

#[test]
fn the_environment_says_what_it_says_to_every_exporter() {
    let http = "http://localhost:4318/v1development/profiles http/protobuf";
    assert_eq!(of(None, None, &[]), http);
    assert_eq!(of(None, None, &[("ENDPOINT", " ")]), http);
    assert_eq!(
        of(None, None, &[("PROTOCOL", "grpc")]),
        "http://localhost:4317 grpc"
    );
    assert_eq!(
        of(None, None, &[("ENDPOINT", "http://b:4317")]),
        "http://b:4317 grpc"
    );
    let both = [("ENDPOINT", "http://b:4317"), ("PROTOCOL", "http/protobuf")];
    let posted = "http://b:4317/v1development/profiles http/protobuf";
    assert_eq!(of(None, None, &both), posted);
    // That of a signal is the whole URL.
    let own = [
        ("ENDPOINT", "http://b:4317"),
        ("PROFILES_ENDPOINT", "http://c:4318/p"),
    ];
    assert_eq!(of(None, None, &own), "http://c:4318/p http/protobuf");
    let own = [("PROTOCOL", "http/protobuf"), ("PROFILES_PROTOCOL", "grpc")];
    assert_eq!(of(None, None, &own), "http://localhost:4317 grpc");
    let all = [
        ("TIMEOUT", "2500"),
        ("PROFILES_TIMEOUT", "1500"),
        ("COMPRESSION", "none"),
        ("CERTIFICATE", "/ca.pem"),
    ];
    let found = endpoint(None, None, &all).unwrap();
    assert_eq!(found.timeout, Duration::from_millis(1500));
    assert!(!found.gzip);
    assert_eq!(found.certificate.as_deref(), Some(Path::new("/ca.pem")));
    let both = [
        ("CLIENT_CERTIFICATE", "/c.pem"),
        ("PROFILES_CLIENT_KEY", "/k.pem"),
    ];
    let found = endpoint(None, None, &both).unwrap();
    let expected = ("/c.pem".into(), "/k.pem".into());
    assert_eq!(found.client_certificate, Some(expected));
    for one in both {
        let error = endpoint(None, None, &[one]).unwrap_err().to_string();
        assert!(error.ends_with(" is not set"), "{error}");
    }
    let usual = endpoint(None, None, &[]).unwrap();
    assert_eq!((usual.timeout, usual.gzip), (Duration::from_secs(10), true));
}

#[test]
fn errors_name_what_is_wrong_without_secrets() {
    let wrong = |url, variables: &[(&str, &str)]| {
        let error = endpoint(url, None, variables).unwrap_err();
        let message = error.to_string();
        assert!(!message.contains("s3cret"), "{message}");
        message
    };
    let message = wrong(Some("localhost:4317"), &[]);
    assert!(
        message.contains("starts with neither http:// nor https://"),
        "{message}"
    );
    let message = wrong(Some("http://me:s3cret@a:4317"), &[]);
    assert!(message.contains("OTEL_EXPORTER_OTLP_HEADERS"), "{message}");
    wrong(Some("ftp://a/?token=s3cret"), &[]);
    wrong(Some("http://a b/?token=s3cret"), &[]);
    wrong(Some("http://a b/?token=x@y&s3cret"), &[]);
    wrong(Some("http://me:s3cret?x@a b"), &[]);
    // What it is called wherever it is shown.
    let shown = of(Some("http://a:4318/b?token=s3cret"), None, &[]);
    assert_eq!(
        shown,
        "http://a:4318/b/v1development/profiles http/protobuf"
    );
    assert!(wrong(Some("http://"), &[]).contains("is not a valid OTLP endpoint"));
    let variables = [
        ("PROTOCOL", "http/json"),
        ("TIMEOUT", "0"),
        ("HEADERS", "a=b,s3cret"),
        ("HEADERS", "a=s3cret%0a"),
        ("COMPRESSION", "zstd"),
        ("PROFILES_ENDPOINT", "unix:///s3cret@x"),
    ];
    for (name, value) in variables {
        let message = wrong(None, &[(name, value)]);
        assert!(
            message.contains(name) || name.ends_with("ENDPOINT"),
            "{name}: {message}"
        );
    }
    // A look-up that needs none of them.
    assert!(endpoint(Some("http://a:4317"), None, &[("ENDPOINT", "nonsense")]).is_ok());
}
