//! The expression of `record --trigger`.
//!
//! Input: the expression.
#![no_main]

use libfuzzer_sys::fuzz_target;
use otelctx_profile::Expression;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match text.parse::<Expression>() {
        Ok(expression) => assert_eq!(expression.to_string().parse(), Ok(expression)),
        Err(error) => {
            assert!((1..=text.chars().count() + 1).contains(&error.column));
            assert!(error.to_string().len() <= 3 * text.len() + 256);
        }
    }
});
