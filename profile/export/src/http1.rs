//! OTLP over HTTP/1.1: a protobuf message is the body of a POST request, and the response's body is
//! one, too (OTLP specification, "OTLP/HTTP").

use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{
    CONTENT_ENCODING, CONTENT_TYPE, HOST, LOCATION, PROXY_AUTHORIZATION, RETRY_AFTER, USER_AGENT,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceResponse;
use prost::Message;

use crate::answer::{ANSWER_SIZE, Again, Answer, Failure, Status, shown};
use crate::connect::{Connector, NAME};
use crate::{Error, Protocol, other_protocol};

const PROTOBUF: &str = "application/x-protobuf";
const JSON: &str = "application/json";
/// How much time is spent for fewer bytes. Of messages of an agent beside compilers, 266 KB each, gzip leaves 37 % at level 1 in 0.9 ms,
/// 29.4 % at this one in 2.4 ms, and 29.3 % at the level of gRPC's library, 6, in 3.0 ms.
const LEVEL: Compression = Compression::new(5);

/// Sends over one connection as long as it lasts.
pub(crate) struct Http {
    connector: Connector,
    headers: HeaderMap,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl Http {
    pub(crate) fn new(connector: Connector) -> Self {
        let endpoint = connector.endpoint();
        let mut headers = endpoint.headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROTOBUF));
        headers.insert(USER_AGENT, HeaderValue::from_static(NAME));
        if endpoint.gzip {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        let authority = endpoint.uri.authority().map_or("", |found| found.as_str());
        if let Ok(host) = HeaderValue::from_str(authority) {
            headers.insert(HOST, host);
        }
        Self {
            connector,
            headers,
            connection: None,
        }
    }

    /// Encodes a message as a request's body.
    pub(crate) fn body(&self, message: Vec<u8>) -> Bytes {
        if !self.connector.endpoint().gzip {
            return message.into();
        }
        let mut encoder = GzEncoder::new(Vec::new(), LEVEL);
        let compressed = encoder.write_all(&message).and_then(|()| encoder.finish());
        compressed.expect("a Vec grows").into()
    }

    pub(crate) async fn send(&mut self, body: Bytes) -> Result<Answer, Failure> {
        let (mut connection, is_new) = match self.connection.take() {
            Some(connection) => (connection, false),
            None => (self.connect().await?, true),
        };
        let response = connection.send_request(self.request(body.clone())).await;
        let response = match response {
            // The server has closed it since it was last used.
            Err(_) if !is_new => {
                connection = self.connect().await?;
                connection.send_request(self.request(body)).await
            }
            response => response,
        };
        let response = match response {
            Ok(response) => response,
            Err(why) => return Err(self.broken(&why).await),
        };
        let (head, body) = response.into_parts();
        let body = Limited::new(body, ANSWER_SIZE).collect().await;
        let body = body.map(|whole| whole.to_bytes());
        if body.is_ok() {
            self.connection = Some(connection);
        }
        let head = Response::from_parts(head, ());
        if head.status().is_success() {
            let body =
                body.map_err(|_| self.wrong("its response is truncated or too long".into()))?;
            return self.taken(&head, &body).map_err(|why| self.wrong(why));
        }
        Err(self.refused(&head, &body.unwrap_or_default()))
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Failure> {
        let stream = self.connector.connect().await;
        let stream = stream.map_err(Failure::to_connect)?;
        let mut builder = http1::Builder::new();
        let handshake = builder.max_buf_size(ANSWER_SIZE).handshake(stream).await;
        let (connection, driver) = match handshake {
            Ok(both) => both,
            Err(why) => return Err(self.broken(&why).await),
        };
        // It ends with the connection; the request returns its errors.
        tokio::spawn(driver);
        Ok(connection)
    }

    fn request(&self, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.headers_mut() = self.headers.clone();
        let uri = &self.connector.endpoint().uri;
        if let Some(proxy) = self.connector.forwarding_proxy() {
            *request.uri_mut() = uri.clone();
            if let Some(authorization) = &proxy.authorization {
                let headers = request.headers_mut();
                headers.insert(PROXY_AUTHORIZATION, authorization.clone());
            }
            return request;
        }
        // The host is in a header, so the URI here is only the path.
        let path = uri.path_and_query().cloned();
        *request.uri_mut() = path.map_or(Uri::from_static("/"), Uri::from);
        request
    }

    fn wrong(&self, reason: String) -> Failure {
        Failure::for_good(self.other_protocol(reason))
    }

    fn other_protocol(&self, reason: String) -> Error {
        Error::WrongProtocol {
            endpoint: self.connector.endpoint().to_string(),
            protocol: Protocol::Http,
            reason,
        }
    }

    async fn broken(&self, why: &hyper::Error) -> Failure {
        if let Some(other) = other_protocol::detect(&self.connector).await {
            return Failure::unread(self.other_protocol(other));
        }
        if why.is_parse() {
            let reason = format!("its response is not HTTP/1 ({why})");
            return Failure::unread(self.other_protocol(reason));
        }
        Failure::for_now(Error::Unavailable {
            endpoint: self.connector.endpoint().to_string(),
            reason: format!("the connection was closed before it responded ({why})"),
        })
    }

    /// A success, possibly partial; otherwise the reason why it is not one.
    fn taken(&self, head: &Response<()>, body: &[u8]) -> Result<Answer, String> {
        let kind = content_type(head);
        if body.is_empty() {
            return Ok(Answer::default());
        }
        if kind.starts_with(JSON) {
            return json(body).ok_or("its response is not that of an OTLP receiver".into());
        }
        if !kind.starts_with(PROTOBUF) {
            let kind = shown(kind);
            return Err(format!(
                "its response ({kind:?}) is not that of an OTLP receiver"
            ));
        }
        let response = ExportProfilesServiceResponse::decode(body).map(Answer::from);
        response.map_err(|why| format!("its response cannot be decoded ({why})"))
    }

    fn refused(&self, head: &Response<()>, body: &[u8]) -> Failure {
        let endpoint = self.connector.endpoint().to_string();
        let status = head.status();
        let reason = reason(head, body);
        let again = match status {
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => {
                let after = head.headers().get(RETRY_AFTER);
                let after = after.and_then(|it| delay(it.to_str().ok()?, SystemTime::now()));
                after.map_or(Again::Later, Again::After)
            }
            _ => Again::Never,
        };
        let error = match status {
            _ if again != Again::Never => Error::Unavailable { endpoint, reason },
            StatusCode::NOT_FOUND
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::NOT_IMPLEMENTED => Error::NoProfiles { endpoint, reason },
            _ => Error::Refused { endpoint, reason },
        };
        Failure {
            error,
            again,
            is_unread: false,
        }
    }
}

fn content_type(head: &Response<()>) -> &str {
    let kind = head.headers().get(CONTENT_TYPE);
    kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default()
}

/// The status, and the rest of the error message.
fn reason(head: &Response<()>, body: &[u8]) -> String {
    let status = head.status();
    let said = if status.is_redirection() {
        let location = head.headers().get(LOCATION).map(HeaderValue::as_bytes);
        location.map(|to| format!("it redirects to {}", String::from_utf8_lossy(to)))
    } else if content_type(head).starts_with(PROTOBUF) {
        Status::decode(body).ok().map(|status| status.message)
    } else {
        Some(String::from_utf8_lossy(body).into_owned())
    };
    match shown(&said.unwrap_or_default()) {
        said if said.is_empty() => format!("HTTP status {status}"),
        said => format!("HTTP status {status}: {said}"),
    }
}

/// The delay that `Retry-After` asks for at the time `now`: in seconds, or until a date (RFC 9110, section 10.2.3).
fn delay(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let seconds = value.parse().ok().map(Duration::from_secs);
    seconds.or_else(|| {
        let date = UNIX_EPOCH + Duration::from_secs(date(value)?);
        // A date that has passed asks for no delay.
        Some(date.duration_since(now).unwrap_or_default())
    })
}

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// The seconds from 1970 to a date such as `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, section 5.6.7: senders use no other
/// form).
fn date(text: &str) -> Option<u64> {
    let (_, behind) = text.strip_suffix(" GMT")?.split_once(", ")?;
    let mut fields = behind.split([' ', ':']);
    let day: u64 = fields.next()?.parse().ok()?;
    let month = fields.next()?;
    let month = MONTHS.iter().position(|it| *it == month)? as u64;
    let mut number = || fields.next()?.parse::<u64>().ok();
    let (year, hour, minute, second) = (number()?, number()?, number()?, number()?);
    let is_possible = (1970..=9999).contains(&year)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !is_possible {
        return None;
    }
    // A year starts in March, so that a leap day is its last one.
    let (year, month) = if month < 2 {
        (year - 1, month + 10)
    } else {
        (year, month - 2)
    };
    let days_before_month = (153 * month + 2) / 5;
    let days = 365 * year + year / 4 - year / 100 + year / 400 + days_before_month + day;
    // The number for 1970-01-01.
    let days = days.checked_sub(719_469)?;
    Some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

/// A response in JSON, which some receivers also send in reply to protobuf.
fn json(body: &[u8]) -> Option<Answer> {
    let value: serde_json::Value = serde_json::from_slice(body).ok()?;
    let partial = value.as_object()?.get("partialSuccess");
    let field = |name| partial.and_then(|partial| partial.get(name));
    // In JSON, a 64-bit number is a string.
    let rejected = field("rejectedProfiles").and_then(|number| match number {
        serde_json::Value::String(digits) => digits.parse().ok(),
        number => number.as_i64(),
    });
    let message = field("errorMessage").and_then(serde_json::Value::as_str);
    Some(Answer {
        rejected: rejected.unwrap_or(0).max(0),
        message: shown(message.unwrap_or_default()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_in_seconds_or_until_a_date() {
        let now = UNIX_EPOCH + Duration::from_secs(784_111_777);
        for (value, seconds) in [
            ("0", Some(0)),
            (" 120 ", Some(120)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(0)),
            ("Sun, 06 Nov 1994 08:50:07 GMT", Some(30)),
            ("Sun, 06 Nov 1994 07:00:00 GMT", Some(0)),
            ("Tue, 08 Nov 1994 08:49:37 GMT", Some(2 * 86_400)),
            ("-1", None),
            ("soon", None),
            ("Sunday, 06-Nov-94 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 25:49:37 GMT", None),
            ("Sun, 06 Nox 1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 99999 08:49:37 GMT", None),
            ("Sun, 06 Jan 0 08:49:37 GMT", None),
            ("Sun, 06 Nov 18446744073709551615 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 18446744073709551615:49:37 GMT", None),
        ] {
            assert_eq!(
                delay(value, now),
                seconds.map(Duration::from_secs),
                "{value}"
            );
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (text, seconds) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
            ("Mon, 28 Feb 2000 00:00:00 GMT", 951_696_000),
            ("Tue, 29 Feb 2000 00:00:00 GMT", 951_782_400),
            ("Wed, 01 Mar 2000 00:00:00 GMT", 951_868_800),
            ("Thu, 31 Dec 2026 23:59:59 GMT", 1_798_761_599),
            ("Sun, 29 Feb 2032 12:00:00 GMT", 1_961_668_800),
        ] {
            assert_eq!(date(text), Some(seconds), "{text}");
        }
    }
}
