//! Encodings of text in headers and URLs.

/// Decodes `%XX` (RFC 3986, section 2.1). What is no such triplet stays as it is.
pub(crate) fn percent_decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        if let (b'%', [high, low, behind @ ..]) = (first, behind)
            && let (Some(high), Some(low)) = (digit(*high), digit(*low))
        {
            bytes.push((high << 4 | low) as u8);
            rest = behind;
        } else {
            bytes.push(*first);
            rest = behind;
        }
    }
    bytes
}

/// Encodes bytes by RFC 4648, section 4.
pub(crate) fn base64(bytes: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut three = [0; 3];
        three[..chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
        for digit in 0..4 {
            text.push(match digit > chunk.len() {
                true => b'=',
                false => DIGITS[(bits >> (18 - 6 * digit) & 63) as usize],
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_encoded_with_padding() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v")] {
            assert_eq!(base64(bytes.as_bytes()), text.as_bytes());
        }
    }
}
