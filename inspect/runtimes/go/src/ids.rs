//! Which labels carry a trace and a span. That is convention: no specification of Go has it.

use std::str::FromStr;

use otelctx_reader::format::record::DecodedContext;
use otelctx_reader::format::{SpanId, TraceId};

/// Names of labels with a trace ID of 32 hexadecimal digits, in the order of precedence.
const TRACE: [&str; 4] = ["trace_id", "trace id", "otel.traceid", "traceID"];
/// Names of labels with a span ID of 16 hexadecimal digits, in the order of precedence.
const SPAN: [&str; 4] = ["span_id", "span id", "otel.spanid", "spanID"];
/// The label with which Datadog's tracer writes decimal span IDs; others' have hexadecimal digits there.
const DATADOG_SPAN: &str = "span id";
/// Further labels of that tracer, the second one up to dd-trace-go 2.10. Neither need be there.
const OF_DATADOG: [&str; 2] = ["trace endpoint", "local root span id"];

/// The names of the labels that carry a trace and a span, if they are not those in use ([`Go`](crate::Go)): read from
/// `trace_id=NAME,span_id=NAME`, either of which may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LabelNames {
    /// The label with the trace ID.
    pub trace_id: Option<String>,
    /// The label with the span ID.
    pub span_id: Option<String>,
}

impl FromStr for LabelNames {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut names = Self::default();
        for part in text.split(',') {
            let place = match part.split_once('=') {
                Some(("trace_id", name)) => Some((&mut names.trace_id, name)),
                Some(("span_id", name)) => Some((&mut names.span_id, name)),
                _ => None,
            };
            match place.filter(|(place, name)| place.is_none() && !name.is_empty()) {
                Some((place, name)) => *place = Some(name.to_owned()),
                None => return Err(format!("{part:?} is not trace_id=NAME or span_id=NAME")),
            }
        }
        Ok(names)
    }
}

/// The labels as a context: all of them are its attributes.
pub(crate) fn context(labels: Vec<(String, String)>, names: &LabelNames) -> DecodedContext {
    let (trace_name, span_name) = (names.trace_id.as_deref(), names.span_id.as_deref());
    let trace_names = trace_name.as_ref().map_or(&TRACE[..], std::slice::from_ref);
    let span_names = span_name.as_ref().map_or(&SPAN[..], std::slice::from_ref);
    let value = |name: &str| {
        let found = labels.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    };
    let mut context = DecodedContext::default();
    let is_datadogs = OF_DATADOG.iter().any(|name| value(name).is_some());
    let trace = trace_names
        .iter()
        .find_map(|name| value(name)?.parse().ok());
    let span = |name: &&str| {
        let value = value(name)?;
        let hexadecimal = value.parse().ok();
        if *name != DATADOG_SPAN {
            return hexadecimal;
        }
        match (hexadecimal, decimal(value)) {
            (_, decimal) if is_datadogs => decimal,
            // Sixteen decimal digits can be either.
            (Some(_), Some(_)) => None,
            (hexadecimal, decimal) => hexadecimal.or(decimal),
        }
    };
    context.trace_id = trace.unwrap_or(TraceId::ZERO);
    context.span_id = span_names.iter().find_map(span).unwrap_or(SpanId::ZERO);
    context.attributes = labels;
    context
}

fn decimal(text: &str) -> Option<SpanId> {
    let is_number = !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    let number: u64 = is_number.then(|| text.parse().ok())??;
    Some(SpanId::from_bytes(number.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The IDs of a context with these labels.
    fn ids(labels: &[(&str, &str)]) -> (String, String) {
        let owned = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
        let labels: Vec<_> = labels.iter().map(owned).collect();
        let context = context(labels.clone(), &LabelNames::default());
        assert_eq!(context.attributes, labels);
        (context.trace_id.to_string(), context.span_id.to_string())
    }

    #[test]
    fn ids_are_found_by_the_names_in_use() {
        const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
        const SPAN: &str = "00f067aa0ba902b7";
        let zero = ("0".repeat(32), "0".repeat(16));
        for [trace, span] in [
            ["trace_id", "span_id"],
            ["trace id", "span id"],
            ["otel.traceid", "otel.spanid"],
        ] {
            let found = ids(&[(trace, TRACE), (span, SPAN)]);
            assert_eq!(found, (TRACE.to_owned(), SPAN.to_owned()), "{trace}");
        }
        for other in ["local root span id", "trace endpoint"] {
            let datadog = |value| ids(&[(other, "7"), ("span id", value)]).1;
            assert_eq!(datadog("67667974448284343"), SPAN);
            assert_eq!(datadog("1000000000000000"), "00038d7ea4c68000");
            assert_eq!(datadog("18446744073709551616"), zero.1);
            assert_eq!(datadog("+7"), zero.1);
        }
        // The only label of dd-trace-go 2.12 without its profiler's endpoints.
        assert_eq!(ids(&[("span id", "67667974448284343")]).1, SPAN);
        assert_eq!(ids(&[("span id", "1000000000000000")]), zero);
        // Others' values under these names are no IDs.
        assert_eq!(ids(&[("trace_id", "none"), ("span_id", "12")]), zero);
        assert_eq!(ids(&[]), zero);
    }

    #[test]
    fn names_that_are_chosen_replace_those_in_use() {
        let names = LabelNames::from_str("trace_id=t,span_id=s").unwrap();
        let [trace, span] = ["4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"];
        let labels = [("t", trace), ("s", span), ("span_id", "1112131415161718")];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let context = super::context(labels.into(), &names);
        assert_eq!(context.trace_id.to_string(), trace);
        assert_eq!(context.span_id.to_string(), span);
        // One of them alone.
        let names = LabelNames::from_str("span_id=a b").unwrap();
        assert_eq!(
            (names.trace_id, names.span_id.as_deref()),
            (None, Some("a b"))
        );
        for text in [
            "",
            "trace_id",
            "trace_id=",
            "other=a",
            "span_id=a,span_id=b",
            "span_id=a,",
        ] {
            assert!(LabelNames::from_str(text).is_err(), "{text}");
        }
    }
}
