//! HTTP proxies, from the usual environment variables: `HTTPS_PROXY` for `https://` endpoints, `HTTP_PROXY` for `http://`
//! ones, and `NO_PROXY`, each also in small letters.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::str::FromStr;

use http::{HeaderValue, Uri};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::encoding::{base64, percent_decoded};
use crate::error::Error;

/// Maximum size of a proxy's answer before the connection is a tunnel, in bytes.
const MAX_ANSWER: usize = 8 << 10;
/// The port of a proxy whose URL has none.
const PORT: u16 = 80;

/// An HTTP proxy.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Proxy {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The value of `Proxy-Authorization`, if the URL has a user.
    pub(crate) authorization: Option<HeaderValue>,
}

/// Without its password.
impl fmt::Debug for Proxy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Proxy({self})")
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(out, "http://[{}]:{}", self.host, self.port),
            false => write!(out, "http://{}:{}", self.host, self.port),
        }
    }
}

impl Proxy {
    /// Returns the proxy for this URL, if there is one.
    ///
    /// # Errors
    /// [`Error::Variable`]
    pub(crate) fn from_environment(
        uri: &Uri,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, Error> {
        let variable = |name: &str| {
            let names = [name.to_owned(), name.to_ascii_lowercase()];
            let values = names.into_iter().filter_map(|name| {
                let value = variable(&name).filter(|it| !it.trim().is_empty());
                Some((name, value?))
            });
            values.take(1).next()
        };
        let name = match uri.scheme_str() {
            Some("https") => "HTTPS_PROXY",
            _ => "HTTP_PROXY",
        };
        let Some((name, url)) = variable(name) else {
            return Ok(None);
        };
        let excluded = variable("NO_PROXY").map(|it| it.1).unwrap_or_default();
        let host = uri.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let usual = if uri.scheme_str() == Some("https") {
            443
        } else {
            80
        };
        if is_local(host) || is_excluded(&excluded, host, uri.port_u16().unwrap_or(usual)) {
            return Ok(None);
        }
        Self::parse(url.trim())
            .map(Some)
            .map_err(|reason| Error::Variable {
                variable: name,
                reason: reason.to_owned(),
            })
    }

    /// Parses `http://USER:PASSWORD@HOST:PORT`, of which the host is needed alone. Messages do not repeat the URL, which may
    /// contain a password.
    fn parse(url: &str) -> Result<Self, &'static str> {
        let rest = match url.split_once("://") {
            Some(("http", rest)) => rest,
            Some(_) => return Err("only proxies with http:// are supported"),
            None => url,
        };
        let rest = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (user, authority) = match rest.rsplit_once('@') {
            Some((user, authority)) => (Some(user), authority),
            None => (None, rest),
        };
        let invalid = "it is not the URL of a proxy, such as http://proxy.example:3128";
        let authority = http::uri::Authority::from_str(authority).map_err(|_| invalid)?;
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']');
        let has_port = authority.as_str().len() > authority.host().len();
        if host.is_empty() || has_port && authority.port_u16().is_none() {
            return Err(invalid);
        }
        let authorization = user.map(|user| {
            let mut value = b"Basic ".to_vec();
            value.extend(base64(&percent_decoded(user)));
            let mut value = HeaderValue::from_bytes(&value).map_err(|_| invalid)?;
            value.set_sensitive(true);
            Ok(value)
        });
        Ok(Self {
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(PORT),
            authorization: authorization.transpose()?,
        })
    }

    /// Makes a connection to the proxy one to this host, through it.
    pub(crate) async fn tunnel(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        host: &str,
        port: u16,
    ) -> io::Result<()> {
        let host = match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        };
        let mut request = format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n").into_bytes();
        if let Some(authorization) = &self.authorization {
            request.extend(b"Proxy-Authorization: ");
            request.extend(authorization.as_bytes());
            request.extend(b"\r\n");
        }
        request.extend(b"\r\n");
        stream.write_all(&request).await?;
        let mut answer = Vec::new();
        // One byte at a time: what follows the answer is the other end's.
        while !answer.ends_with(b"\r\n\r\n") {
            if answer.len() >= MAX_ANSWER {
                return Err(io::Error::other("its answer is too long"));
            }
            match stream.read_u8().await {
                Ok(byte) => answer.push(byte),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(io::Error::other("it closed the connection"));
                }
                Err(error) => return Err(error),
            }
        }
        let line = answer
            .split(|byte| *byte == b'\r')
            .next()
            .unwrap_or_default();
        let line = crate::answer::shown(&String::from_utf8_lossy(line));
        let mut words = line.splitn(2, ' ');
        match (words.next(), words.next()) {
            (Some("HTTP/1.1" | "HTTP/1.0"), Some(status)) if status.starts_with('2') => Ok(()),
            (Some("HTTP/1.1" | "HTTP/1.0"), Some(status)) => {
                Err(io::Error::other(format!("it answers {status}")))
            }
            _ => Err(io::Error::other("it is no HTTP proxy")),
        }
    }
}

/// Returns whether a host is this machine: no proxy could reach it.
fn is_local(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|it: IpAddr| it.is_loopback())
}

/// Returns whether `NO_PROXY` has a host: `*` for all, a name for itself and the names below it, an address, or a range of
/// addresses, such as `10.0.0.0/8`; each but the last with a port or without.
fn is_excluded(list: &str, host: &str, port: u16) -> bool {
    let address: Option<IpAddr> = host.parse().ok();
    let host = host.to_ascii_lowercase();
    list.split(',').map(str::trim).any(|entry| {
        if let Some((range, bits)) = entry.split_once('/') {
            let range = range.parse().ok().zip(bits.parse().ok());
            return range
                .zip(address)
                .is_some_and(|((start, bits), address)| is_in_range(address, start, bits));
        }
        let (entry, of_port) = match entry.rsplit_once(':') {
            // The colons of an IPv6 address.
            Some((before, _)) if before.contains(':') && !before.ends_with(']') => (entry, None),
            Some((before, of_port)) => (before, Some(of_port)),
            None => (entry, None),
        };
        if of_port.is_some_and(|it| it.parse() != Ok(port)) {
            return false;
        }
        let entry = entry
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_ascii_lowercase();
        if let Some(address) = address {
            return entry == "*" || entry.parse() == Ok(address);
        }
        let name = entry.trim_start_matches("*.").trim_start_matches('.');
        let is_below = || host.strip_suffix(name).is_some_and(|it| it.ends_with('.'));
        entry == "*" || !name.is_empty() && (host == name || is_below())
    })
}

/// Returns whether the first bits of both addresses are the same.
fn is_in_range(address: IpAddr, start: IpAddr, bits: u32) -> bool {
    let both = match (address, start) {
        (IpAddr::V4(address), IpAddr::V4(start)) => Some((
            u128::from(address.to_bits()),
            u128::from(start.to_bits()),
            32,
        )),
        (IpAddr::V6(address), IpAddr::V6(start)) => Some((address.to_bits(), start.to_bits(), 128)),
        _ => None,
    };
    both.is_some_and(|(address, start, width)| {
        let shift = u32::checked_sub(width, bits);
        shift.is_some_and(|it| (address ^ start).checked_shr(it).unwrap_or(0) == 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(url: &str, variables: &[(&str, &str)]) -> Result<Option<Proxy>, String> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(it, _)| *it == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let found = Proxy::from_environment(&url.parse().unwrap(), variable);
        found.map_err(|why| why.to_string())
    }

    fn shown(url: &str, variables: &[(&str, &str)]) -> String {
        found(url, variables)
            .unwrap()
            .map_or("none".to_owned(), |it| it.to_string())
    }

    #[test]
    fn the_variable_is_that_of_the_scheme() {
        let both = [
            ("HTTPS_PROXY", "http://secure.example:3128"),
            ("http_proxy", "plain.example"),
        ];
        assert_eq!(
            shown("https://c.example", &both),
            "http://secure.example:3128"
        );
        assert_eq!(
            shown("http://c.example:4318", &both),
            "http://plain.example:80"
        );
        assert_eq!(shown("http://c.example", &both[..1]), "none");
        assert_eq!(shown("https://c.example", &[("HTTPS_PROXY", " ")]), "none");
        let local = [
            "http://localhost:4317",
            "http://127.0.0.1:1",
            "http://[::1]:4317",
        ];
        for url in local {
            assert_eq!(shown(url, &both), "none");
        }
    }

    #[test]
    fn hosts_are_excluded_by_name_address_and_range() {
        for (list, url, expected) in [
            ("*", "http://c.example", true),
            ("c.example", "http://c.example", true),
            ("C.Example", "http://c.EXAMPLE", true),
            ("example", "http://c.example", true),
            (".example", "http://c.example", true),
            ("*.example", "http://c.example", true),
            ("a, c.example ,b", "http://c.example", true),
            ("ample", "http://c.example", false),
            ("", "http://c.example", false),
            (",,", "http://c.example", false),
            ("c.example:80", "http://c.example", true),
            ("c.example:4318", "http://c.example:4318", true),
            ("c.example:4317", "http://c.example:4318", false),
            ("10.1.2.3", "http://10.1.2.3:1", true),
            ("10.1.2.3:1", "http://10.1.2.3:1", true),
            ("10.0.0.0/8", "http://10.255.2.3", true),
            ("10.0.0.0/8", "http://11.0.0.0", false),
            ("10.0.0.0/33", "http://10.0.0.0", false),
            ("0.0.0.0/0", "http://10.0.0.0", true),
            ("0.0.0.0/0", "http://[fd00::1]", false),
            ("fd00::/8", "http://[fd12::1]", true),
            ("fd00::1", "http://[fd00::1]:4317", true),
            ("[fd00::1]:4317", "http://[fd00::1]:4317", true),
            ("[fd00::1]:4318", "http://[fd00::1]:4317", false),
            ("::/0", "http://[fd00::1]", true),
            ("x/y", "http://10.0.0.1", false),
        ] {
            let variables = [("HTTP_PROXY", "p.example"), ("NO_PROXY", list)];
            let is_excluded = found(url, &variables).unwrap().is_none();
            assert_eq!(is_excluded, expected, "{list} {url}");
        }
    }

    #[test]
    fn a_password_is_encoded_and_not_shown() {
        let variables = [("HTTPS_PROXY", "http://me:p%40ss@p.example:3128/")];
        let proxy = found("https://c.example", &variables).unwrap().unwrap();
        assert_eq!(format!("{proxy:?}"), "Proxy(http://p.example:3128)");
        assert_eq!(proxy.authorization.unwrap(), "Basic bWU6cEBzcw==");
        for (url, expected) in [
            (
                "socks5://me:secret@p:1",
                "HTTPS_PROXY: only proxies with http:// are supported",
            ),
            (
                "http://me:secret@",
                "HTTPS_PROXY: it is not the URL of a proxy",
            ),
            (
                "http://me:secret@p:port",
                "HTTPS_PROXY: it is not the URL of a proxy",
            ),
        ] {
            let error = found("https://c.example", &[("HTTPS_PROXY", url)]).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
