//! The destination of profiles, from arguments or from the environment variables of OTLP exporters
//! (OpenTelemetry specification, "OpenTelemetry Protocol Exporter").

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use crate::encoding::percent_decoded;
use crate::error::Error;
use crate::protocol::Protocol;
use crate::proxy::Proxy;

/// The path below an endpoint to which profiles are posted over HTTP.
const PATH: &str = "v1development/profiles";

/// The destination of profiles, and the way in which they are sent.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Endpoint {
    /// The URL, with the path of the request if the protocol is HTTP.
    pub(crate) uri: Uri,
    pub(crate) protocol: Protocol,
    pub(crate) headers: HeaderMap,
    pub(crate) proxy: Option<Proxy>,
    /// Timeout of one attempt, from connecting to the end of the response; 10 s by default.
    pub timeout: Duration,
    /// True if requests are compressed with gzip, as by default.
    pub gzip: bool,
    /// File with the CA certificates (PEM) for `https://` servers; by default, this machine's
    /// certificates are used.
    pub certificate: Option<PathBuf>,
    /// Files with this client's certificate and its private key (PEM), for servers that ask for them. By default there are
    /// none.
    pub client_certificate: Option<(PathBuf, PathBuf)>,
    /// Maximum number of attempts to send a message; 4 by default.
    pub attempts: u32,
    /// The delay after the first attempt, 1 s by default; it doubles with each attempt. A random
    /// part of up to half is subtracted, so that clients do not retry at the same time.
    pub pause: Duration,
    /// Maximum size of one message before compression, in bytes. 3 MiB by default: a collector
    /// accepts 4 MiB over gRPC, and so does the next one, to which the first may forward the
    /// message with additions.
    pub message_size: usize,
}

impl Endpoint {
    /// Creates an endpoint such as `http://localhost:4317` or
    /// `https://collector.example:4318/base`. Over HTTP, profiles are posted to
    /// `v1development/profiles` below it.
    ///
    /// # Errors
    ///
    /// [`Error::Endpoint`] if it is not an `http` or `https` URL.
    pub fn new(url: &str, protocol: Protocol) -> Result<Self, Error> {
        let uri = parse(url)?;
        let uri = match protocol {
            Protocol::Grpc => uri,
            Protocol::Http => with_path(url, &uri)?,
        };
        Ok(Self::of(uri, protocol))
    }

    pub(crate) fn of(uri: Uri, protocol: Protocol) -> Self {
        Self {
            uri,
            protocol,
            headers: HeaderMap::new(),
            proxy: None,
            timeout: Duration::from_secs(10),
            gzip: true,
            certificate: None,
            client_certificate: None,
            attempts: 4,
            pause: Duration::from_secs(1),
            message_size: 3 << 20,
        }
    }

    /// Creates an endpoint from `url` and `protocol`, and otherwise from the environment variables
    /// `OTEL_EXPORTER_OTLP_*` (`ENDPOINT`, `PROTOCOL`, `HEADERS`, `TIMEOUT`, `COMPRESSION`,
    /// `CERTIFICATE`, `CLIENT_CERTIFICATE` and `CLIENT_KEY`). `OTEL_EXPORTER_OTLP_PROFILES_*` take precedence. The HTTP proxy is
    /// that of `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`. `variable` returns their values.
    ///
    /// The port of a given `url` takes precedence over the variable `PROTOCOL` if it is a default
    /// port: 4317 for gRPC, 4318 for HTTP. Over HTTP, `PROFILES_ENDPOINT` is the whole URL of the
    /// request.
    ///
    /// # Errors
    ///
    /// [`Error::Endpoint`] and [`Error::Variable`].
    pub fn from_environment(
        url: Option<&str>,
        protocol: Option<Protocol>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Error> {
        let environment = Environment(&variable);
        let from_variable = environment.parsed("PROTOCOL", Protocol::from_str)?;
        let of_profiles = environment.value("OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT");
        let of_all = environment.value("OTEL_EXPORTER_OTLP_ENDPOINT");
        let is_of_profiles = url.is_none() && of_profiles.is_some();
        let given = url.map(str::to_owned).or(of_profiles).or(of_all);
        let port = given.as_deref().map(parse).transpose()?;
        let port = port.as_ref().and_then(by_port);
        // The port of a given URL takes precedence over a variable.
        let by_default = if url.is_some() {
            port.or(from_variable)
        } else {
            from_variable.or(port)
        };
        let protocol = protocol.or(by_default).unwrap_or(Protocol::Http);
        let mut endpoint = match given {
            Some(url) if is_of_profiles => Self::of(parse(&url)?, protocol),
            Some(url) => Self::new(&url, protocol)?,
            None => Self::new(&format!("http://localhost:{}", protocol.port()), protocol)?,
        };
        if let Some(headers) = environment.parsed("HEADERS", headers)? {
            endpoint.headers = headers;
        }
        if let Some(timeout) = environment.parsed("TIMEOUT", milliseconds)? {
            endpoint.timeout = timeout;
        }
        if let Some(gzip) = environment.parsed("COMPRESSION", is_gzip)? {
            endpoint.gzip = gzip;
        }
        endpoint.proxy = Proxy::from_environment(&endpoint.uri, &variable)?;
        let path = |name| environment.parsed(name, |path| Ok(PathBuf::from(path)));
        endpoint.certificate = path("CERTIFICATE")?;
        endpoint.client_certificate = match (path("CLIENT_CERTIFICATE")?, path("CLIENT_KEY")?) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (certificate, _) => {
                let names = ["CLIENT_CERTIFICATE", "CLIENT_KEY"]
                    .map(|it| "OTEL_EXPORTER_OTLP_".to_owned() + it);
                let [given, missing] = names;
                let (variable, missing) = match certificate {
                    Some(_) => (given, missing),
                    None => (missing, given),
                };
                let reason = format!("{missing} is not set");
                return Err(Error::Variable { variable, reason });
            }
        };
        Ok(endpoint)
    }

    /// The protocol that carries OTLP.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    pub(crate) fn host(&self) -> &str {
        let host = self.uri.host().unwrap_or_default();
        host.trim_start_matches('[').trim_end_matches(']')
    }

    pub(crate) fn port(&self) -> u16 {
        let usual = if self.is_https() { 443 } else { 80 };
        self.uri.port_u16().unwrap_or(usual)
    }

    pub(crate) fn is_https(&self) -> bool {
        self.uri.scheme() == Some(&http::uri::Scheme::HTTPS)
    }
}

/// The URL without its query, which may contain a secret; for gRPC also without its path, which is
/// not used.
impl fmt::Display for Endpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(scheme), Some(authority)) = (self.uri.scheme(), self.uri.authority()) {
            write!(out, "{scheme}://{authority}")?;
        }
        match self.protocol {
            Protocol::Grpc => Ok(()),
            Protocol::Http => out.write_str(self.uri.path()),
        }
    }
}

struct Environment<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Environment<'_> {
    /// An empty variable counts as unset, according to the specification.
    fn value(&self, variable: &str) -> Option<String> {
        (self.0)(variable).filter(|value| !value.trim().is_empty())
    }

    fn parsed<T>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Error> {
        for prefix in ["OTEL_EXPORTER_OTLP_PROFILES_", "OTEL_EXPORTER_OTLP_"] {
            let variable = format!("{prefix}{name}");
            if let Some(value) = self.value(&variable) {
                let parsed = parse(value.trim());
                return parsed
                    .map(Some)
                    .map_err(|reason| Error::Variable { variable, reason });
            }
        }
        Ok(None)
    }
}

/// A URL to show: without its query, and without everything else if it contains a user, because it
/// is unclear where the password ends.
fn public(url: &str) -> String {
    if url.contains('@') {
        return "…@…".to_owned();
    }
    url.split('?').next().unwrap_or_default().to_owned()
}

pub(crate) fn parse(url: &str) -> Result<Uri, Error> {
    let wrong = |reason: &str| Error::Endpoint {
        url: public(url),
        reason: reason.to_owned(),
    };
    let uri = Uri::from_str(url.trim());
    let uri = uri.map_err(|_| wrong("write it like http://localhost:4317"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(wrong("it starts with neither http:// nor https://"));
    }
    match uri.authority() {
        Some(authority) if authority.as_str().contains('@') => Err(wrong(
            "pass user and password in a header (OTEL_EXPORTER_OTLP_HEADERS)",
        )),
        Some(authority) if !authority.host().is_empty() => Ok(uri),
        _ => Err(wrong("it has no host")),
    }
}

/// Appends the path for profiles to that of an endpoint, unless it already ends with it.
fn with_path(url: &str, uri: &Uri) -> Result<Uri, Error> {
    let base = uri.path().trim_end_matches('/');
    if base.ends_with(PATH) {
        return Ok(uri.clone());
    }
    let query = uri.query().map_or(String::new(), |it| format!("?{it}"));
    let mut parts = uri.clone().into_parts();
    let wrong = |reason: String| Error::Endpoint {
        url: public(url),
        reason,
    };
    let path = format!("{base}/{PATH}{query}").parse();
    parts.path_and_query = Some(path.map_err(|why| wrong(format!("its path: {why}")))?);
    Uri::from_parts(parts).map_err(|why| wrong(why.to_string()))
}

fn by_port(uri: &Uri) -> Option<Protocol> {
    let port = uri.port_u16()?;
    let protocols = [Protocol::Grpc, Protocol::Http];
    protocols.into_iter().find(|it| it.port() == port)
}

/// `KEY=VALUE,KEY=VALUE`, values percent-encoded (W3C baggage without its properties).
fn headers(text: &str) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    // A value may be a secret: do not show it.
    for (index, pair) in text.split(',').enumerate() {
        let number = index + 1;
        if pair.trim().is_empty() {
            continue;
        }
        let (name, value) = pair
            .split_once('=')
            .ok_or_else(|| format!("header {number} is not NAME=VALUE"))?;
        let name = HeaderName::from_str(name.trim());
        let name = name.map_err(|_| format!("the name of header {number} is invalid"))?;
        let value = HeaderValue::from_bytes(&percent_decoded(value.trim()));
        let mut value = value.map_err(|_| format!("the value of header {name} is invalid"))?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(milliseconds) if milliseconds > 0 => Ok(Duration::from_millis(milliseconds)),
        _ => Err(format!("{text:?} is not a positive number of milliseconds")),
    }
}

fn is_gzip(text: &str) -> Result<bool, String> {
    match text {
        "gzip" => Ok(true),
        "none" => Ok(false),
        other => Err(format!("{other:?} is neither gzip nor none")),
    }
}
