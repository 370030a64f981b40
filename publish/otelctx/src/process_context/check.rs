//! Checks for what a strict reader would reject.
//!
//! They inspect the values, so that publishing programs need not contain a decoder.

use otelctx_format::process_context::{Attributes, Value, MAX_DEPTH, MAX_VALUES};
use otelctx_format::MAX_KEYS;

use super::PublishError;

/// Checks the attributes of a context. Names are not repeated: setting an attribute replaces it.
pub(super) fn check(resource: &Attributes, attributes: &Attributes) -> Result<(), PublishError> {
    // Without the schema and a full key map.
    let mut values_left = MAX_VALUES - MAX_KEYS as u32 - 2;
    for (key, value) in resource.iter().chain(attributes) {
        if key.is_empty() {
            return Err(PublishError::EmptyKey);
        }
        check_value(value, MAX_DEPTH, &mut values_left)?;
    }
    Ok(())
}

fn check_value(value: &Value, depth_left: u32, values_left: &mut u32) -> Result<(), PublishError> {
    *values_left = values_left
        .checked_sub(1)
        .ok_or(PublishError::TooManyValues)?;
    let (items, pairs): (&[Value], &[(String, Value)]) = match value {
        Value::Array(items) => (items, &[]),
        Value::Map(pairs) => (&[], pairs),
        _ => return Ok(()),
    };
    let depth_left = depth_left.checked_sub(1).ok_or(PublishError::TooDeep)?;
    for item in items.iter().chain(pairs.iter().map(|(_, item)| item)) {
        check_value(item, depth_left, values_left)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use otelctx_format::process_context::Payload;

    fn nested(depth: u32) -> Attributes {
        let wrap = |value, depth| match depth % 2 {
            0 => Value::Array(vec![value]),
            _ => Value::Map(vec![("inner".into(), value)]),
        };
        vec![("deep".into(), (0..depth).fold(Value::Bool(true), wrap))]
    }

    #[test]
    fn depth_is_bounded_as_readers_bound_it() {
        for (depth, expected) in [
            (MAX_DEPTH, Ok(())),
            (MAX_DEPTH + 1, Err(PublishError::TooDeep)),
        ] {
            let resource = nested(depth);
            assert_eq!(check(&resource, &vec![]), expected);
            let payload = Payload {
                resource,
                attributes: vec![],
            };
            assert_eq!(Payload::decode(&payload.encode()).is_ok(), expected.is_ok());
        }
    }

    #[test]
    fn the_number_of_values_is_bounded() {
        let list = |count| {
            vec![(
                "list".to_owned(),
                Value::Array(vec![Value::Bool(true); count]),
            )]
        };
        let most = MAX_VALUES as usize - MAX_KEYS - 3;
        assert_eq!(check(&list(most), &vec![]), Ok(()));
        assert_eq!(
            check(&list(most + 1), &vec![]),
            Err(PublishError::TooManyValues)
        );
    }
}
