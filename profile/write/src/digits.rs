//! Hexadecimal digits.

/// Decodes pairs of digits; `None` if there is anything else, such as the sign that a number may have.
pub(crate) fn bytes(digits: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let is_plain = rest.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let byte = |pair: &[u8; 2]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    is_plain.then(|| pairs.iter().map(byte).collect())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_digits_are_decoded() {
        assert_eq!(bytes("00fFa1"), Some(vec![0, 0xff, 0xa1]));
        assert_eq!(bytes(""), Some(Vec::new()));
        for text in ["0", "+f", "0x", " 1", "\u{e9}"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }
}
