//! A collector's response. It is untrusted: bounded, and without characters that affect a terminal.

use std::time::Duration;

use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceResponse;
use prost::Message;

use crate::error::Error;

/// Maximum number of bytes that are read of a response. No valid response needs more.
pub(crate) const ANSWER_SIZE: usize = 64 << 10;
/// Maximum number of characters shown of a message.
const SHOWN: usize = 300;

/// A collector's response to a message that it accepted.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) rejected: i64,
    pub(crate) message: String,
}

impl From<ExportProfilesServiceResponse> for Answer {
    fn from(response: ExportProfilesServiceResponse) -> Self {
        let partial = response.partial_success.unwrap_or_default();
        Self {
            rejected: partial.rejected_profiles.max(0),
            message: shown(&partial.error_message),
        }
    }
}

/// A message that was not accepted.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    pub(crate) again: Again,
    /// No receiver of OTLP has read the message: another attempt makes sense once the endpoint has changed.
    pub(crate) is_unread: bool,
}

/// The time of the next attempt, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    Never,
    Later,
    After(Duration),
}

impl Failure {
    pub(crate) fn for_good(error: Error) -> Self {
        Self {
            error,
            again: Again::Never,
            is_unread: false,
        }
    }

    /// Something else than a receiver of OTLP is at the endpoint, or is there now.
    pub(crate) fn unread(error: Error) -> Self {
        Self {
            is_unread: true,
            ..Self::for_good(error)
        }
    }

    pub(crate) fn for_now(error: Error) -> Self {
        Self {
            error,
            again: Again::Later,
            is_unread: false,
        }
    }

    /// An unreachable server may be reachable soon; a rejected certificate stays rejected.
    pub(crate) fn to_connect(error: Error) -> Self {
        match error {
            Error::Unreachable { .. } | Error::Proxy { .. } => Self::for_now(error),
            error => Self::unread(error),
        }
    }
}

/// `google.rpc.Status`: the body of an unsuccessful HTTP response, and the details of a gRPC one.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Status {
    #[prost(string, tag = "2")]
    pub(crate) message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    delay: Option<ProtoDuration>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, PartialEq, Message)]
struct ProtoDuration {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanoseconds: i32,
}

/// The delay before a retry in the details of a gRPC status, if they have one.
pub(crate) fn retry_info(details: &[u8]) -> Option<Duration> {
    let status = Status::decode(details).ok()?;
    let is_it = |any: &&Any| any.type_url.ends_with("/google.rpc.RetryInfo");
    let found = status.details.iter().find(is_it)?;
    let delay = RetryInfo::decode(&found.value[..]).ok()?.delay?;
    let seconds = u64::try_from(delay.seconds).ok()?;
    let nanoseconds = u32::try_from(delay.nanoseconds).ok()?;
    Duration::from_secs(seconds).checked_add(Duration::from_nanos(nanoseconds.into()))
}

/// Untrusted text, on one line of a terminal.
pub(crate) fn shown(text: &str) -> String {
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut characters = one_line.chars().filter(|it| !is_disguise(*it));
    let mut shown: String = characters.by_ref().take(SHOWN).collect();
    if characters.next().is_some() {
        shown.push('…');
    }
    shown
}

/// Returns true if a character controls a terminal, is invisible, or changes the order of others.
fn is_disguise(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_stays_on_its_line_and_is_short() {
        assert_eq!(shown(" a\r\n\tb \u{1b}[31mred\u{202e}x "), "a b [31mredx");
        let long = shown(&"é".repeat(1000));
        assert_eq!(long.chars().count(), SHOWN + 1);
        assert!(long.ends_with('…'));
    }

    #[test]
    fn retry_info_is_found_among_details_and_nothing_else_is() {
        let with = |type_url: &str, value: Vec<u8>| {
            let any = Any {
                type_url: type_url.into(),
                value,
            };
            let details = vec![Any::default(), any];
            let message = String::new();
            Status { message, details }.encode_to_vec()
        };
        let delay = |seconds, nanoseconds| {
            let delay = Some(ProtoDuration {
                seconds,
                nanoseconds,
            });
            RetryInfo { delay }.encode_to_vec()
        };
        let name = "type.googleapis.com/google.rpc.RetryInfo";
        let half = retry_info(&with(name, delay(1, 500_000_000)));
        assert_eq!(half, Some(Duration::from_millis(1500)));
        assert_eq!(retry_info(&with(name, delay(-1, 0))), None);
        assert_eq!(retry_info(&with(name, delay(i64::MAX, -1))), None);
        assert_eq!(retry_info(&with(name, vec![0xff])), None);
        assert_eq!(retry_info(&with("x/google.rpc.Help", delay(1, 0))), None);
        assert_eq!(retry_info(&[0xff; 9]), None);
    }
}
