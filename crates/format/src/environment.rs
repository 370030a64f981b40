//! The environment variables by which a user describes a service
//! (OpenTelemetry specification, "Resource SDK" and "General SDK Configuration").

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::process_context::Attributes;

/// Names the service; wins over a `service.name` in [`RESOURCE_ATTRIBUTES`].
pub const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";
/// `key=value` pairs, separated by commas; bytes may be percent-encoded.
pub const RESOURCE_ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";
/// The most pairs that [`RESOURCE_ATTRIBUTES`] may hold; more would hardly fit into what can be
/// published. A reader takes the variable from processes that it does not trust, and each name is
/// compared with the others: the 200,000 that an environment has room for would take it a minute.
pub const MAX_PAIRS: usize = 4096;

/// The resource that the two variables' values describe: each name once, `service.name` first
/// when there is one. An empty value counts as none.
///
/// # Errors
/// When `resource_attributes` is malformed; it is then left out as a whole, as the specification
/// demands, and the attributes in the error come from `service_name` alone.
pub fn resource(
    service_name: Option<&str>,
    resource_attributes: Option<&str>,
) -> Result<Attributes, MalformedVariable> {
    let name = service_name.filter(|name| !name.is_empty());
    let mut resource = Attributes::new();
    if let Some(name) = name {
        resource.push(("service.name".into(), name.into()));
    }
    let mut pairs = resource_attributes.unwrap_or_default();
    let mut pairs_left = MAX_PAIRS;
    while !pairs.is_empty() {
        let (pair, rest) = split(pairs, b',').unwrap_or((pairs, ""));
        pairs = rest;
        let pair = pair.trim_ascii();
        if pair.is_empty() {
            continue;
        }
        let Some((key, value)) = parse(pair).filter(|_| pairs_left > 0) else {
            resource.truncate(usize::from(name.is_some()));
            return Err(MalformedVariable { resource });
        };
        pairs_left -= 1;
        let known = resource.iter_mut().find(|(known, _)| *known == key);
        let is_name = key == "service.name";
        match known {
            // Of repeated names the last counts, as in the SDKs; OTEL_SERVICE_NAME stays.
            Some(_) if is_name && name.is_some() => {}
            Some((_, known)) => *known = value.into(),
            None => {
                let at = if is_name { 0 } else { resource.len() };
                resource.insert(at, (key, value.into()));
            }
        }
    }
    Ok(resource)
}

/// A value of [`RESOURCE_ATTRIBUTES`] that is no list of at most [`MAX_PAIRS`] times `key=value`.
#[derive(Clone, Debug, PartialEq)]
pub struct MalformedVariable {
    /// What the other variable gives.
    pub resource: Attributes,
}

impl fmt::Display for MalformedVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{RESOURCE_ATTRIBUTES} is ignored: it is no list of at most {MAX_PAIRS} key=value pairs \
             separated by commas"
        )
    }
}

impl core::error::Error for MalformedVariable {}

/// What is before and behind the first such byte, an ASCII character. Loops rather than chains of iterators, here as
/// below: programs that publish carry this code, and loops are smaller.
fn split(text: &str, separator: u8) -> Option<(&str, &str)> {
    let at = text.bytes().position(|byte| byte == separator)?;
    Some((&text[..at], &text[at + 1..]))
}

fn parse(pair: &str) -> Option<(String, String)> {
    let (key, value) = split(pair, b'=')?;
    let key = percent_decode(key.trim_ascii())?;
    if key.is_empty() {
        return None;
    }
    Some((key, percent_decode(value.trim_ascii())?))
}

/// Replaces each `%` and two hexadecimal digits by their byte; `None` unless UTF-8 results.
fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, tail @ ..] = rest else {
            return None;
        };
        let digit = |c: u8| (c as char).to_digit(16);
        bytes.push((digit(*high)? * 16 + digit(*low)?) as u8);
        rest = tail;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_context::Value;
    use alloc::format;

    fn owned<const N: usize>(pairs: [(&str, &str); N]) -> [(String, String); N] {
        pairs.map(|(key, value)| (key.into(), value.into()))
    }

    fn pairs(resource: &Attributes) -> Vec<(String, String)> {
        let pair = |(key, value)| match value {
            Value::String(text) => (key, text),
            other => panic!("{key} is {other:?}"),
        };
        resource.clone().into_iter().map(pair).collect()
    }

    #[test]
    fn pairs_are_split_trimmed_and_decoded() {
        let resource = resource(None, Some(" a=1, b = x%2Cy%20z ,,c=p=q")).unwrap();
        assert_eq!(
            pairs(&resource),
            owned([("a", "1"), ("b", "x,y z"), ("c", "p=q")])
        );
    }

    #[test]
    fn the_service_name_variable_wins() {
        let both = resource(Some("shop"), Some("a=1,service.name=other")).unwrap();
        assert_eq!(pairs(&both), owned([("service.name", "shop"), ("a", "1")]));
        let one = resource(Some(""), Some("a=1,service.name=other,a=2")).unwrap();
        assert_eq!(pairs(&one), owned([("service.name", "other"), ("a", "2")]));
        assert_eq!(resource(None, None).unwrap(), []);
    }

    #[test]
    fn more_pairs_than_anybody_needs_are_malformed() {
        let list = |count| {
            (0..count)
                .map(|n| format!("{n:x}={n},"))
                .collect::<String>()
        };
        let most = resource(None, Some(&list(MAX_PAIRS))).unwrap();
        assert_eq!(most.len(), MAX_PAIRS);
        assert_eq!(most[MAX_PAIRS - 1], ("fff".into(), "4095".into()));
        for count in [MAX_PAIRS + 1, 1_000_000] {
            let error = resource(None, Some(&list(count))).unwrap_err();
            assert_eq!(error.resource, []);
        }
    }

    #[test]
    fn a_malformed_list_is_left_out_whole() {
        for text in ["a", "a=1,b", "=1", "a=%4", "a=%zz", "a=%ff"] {
            let error = resource(Some("shop"), Some(text)).unwrap_err();
            assert_eq!(
                pairs(&error.resource),
                owned([("service.name", "shop")]),
                "{text}"
            );
        }
    }
}
