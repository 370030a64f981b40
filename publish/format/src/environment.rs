//! The environment variables that describe a service (OpenTelemetry specification, "Resource SDK"
//! and "General SDK Configuration").

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::process_context::Attributes;

/// The service's name. Takes precedence over `service.name` in [`RESOURCE_ATTRIBUTES`].
pub const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";
/// `key=value` pairs, separated by commas; bytes may be percent-encoded.
pub const RESOURCE_ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";
/// Maximum number of pairs in [`RESOURCE_ATTRIBUTES`]; more would hardly fit into a published
/// context. A reader decodes the variable of untrusted processes and compares each name with all
/// others: an environment has room for 200,000 pairs, which would take a minute.
pub const MAX_PAIRS: usize = 4096;

/// Returns the resource described by the values of the two variables: each name once, with
/// `service.name` first if it is set. An empty value counts as unset.
///
/// # Errors
/// If `resource_attributes` is malformed. As the specification requires, it is then ignored as
/// a whole, and the resource in the error comes from `service_name` alone.
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
            // The last of several pairs with the same name counts, as in the SDKs.
            // OTEL_SERVICE_NAME takes precedence over all of them.
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

/// A [`RESOURCE_ATTRIBUTES`] that is not a list of at most [`MAX_PAIRS`] `key=value` pairs.
#[derive(Clone, Debug, PartialEq)]
pub struct MalformedVariable {
    /// The resource from the other variable.
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

/// Splits at the first `separator`, an ASCII character. This and the functions below use loops,
/// which compile to less code in publishing programs.
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

/// Decodes percent-encoding; `None` if it is malformed or the result is not UTF-8.
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
    fn too_many_pairs_are_malformed() {
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
    fn a_malformed_list_is_skipped_entirely() {
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
