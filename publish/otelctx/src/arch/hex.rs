//! Formats eight bytes as 16 lower-case hexadecimal digits, without branches or tables.

/// Returns the digits, with the vector instructions that every x86-64 has.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub(crate) fn hex(bytes: [u8; 8]) -> [u8; 16] {
    use std::arch::x86_64::{
        _mm_add_epi8, _mm_and_si128, _mm_cmpgt_epi8, _mm_cvtsi64_si128, _mm_set1_epi8,
        _mm_srli_epi16, _mm_storeu_si128, _mm_unpacklo_epi8,
    };
    let mut digits = [0; 16];
    // SAFETY: SSE2 is part of x86-64; the store is 16 bytes, unaligned.
    unsafe {
        let bytes = _mm_cvtsi64_si128(i64::from_ne_bytes(bytes));
        let nibble = _mm_set1_epi8(0x0f);
        let high = _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble);
        let low = _mm_and_si128(bytes, nibble);
        let nibbles = _mm_unpacklo_epi8(high, low);
        let letters = _mm_cmpgt_epi8(nibbles, _mm_set1_epi8(9));
        let decimal = _mm_add_epi8(nibbles, _mm_set1_epi8(b'0' as i8));
        let letter = _mm_and_si128(letters, _mm_set1_epi8((b'a' - b'0' - 10) as i8));
        _mm_storeu_si128(digits.as_mut_ptr().cast(), _mm_add_epi8(decimal, letter));
    }
    digits
}

/// The digits, eight at a time: spreads the nibbles over the bytes of a word, then adds the
/// difference between each nibble and its character.
#[cfg(any(not(target_arch = "x86_64"), miri, test))]
#[cfg_attr(all(test, target_arch = "x86_64", not(miri)), allow(dead_code))]
mod portable {
    #[inline]
    pub(crate) fn hex(bytes: [u8; 8]) -> [u8; 16] {
        let [a, b, c, d, e, f, g, h] = bytes;
        let mut digits = [0; 16];
        digits[..8].copy_from_slice(&half(u32::from_be_bytes([a, b, c, d])));
        digits[8..].copy_from_slice(&half(u32::from_be_bytes([e, f, g, h])));
        digits
    }

    #[inline]
    fn half(value: u32) -> [u8; 8] {
        let mut word = u64::from(value);
        word = (word << 16 | word) & 0x0000_ffff_0000_ffff;
        word = (word << 8 | word) & 0x00ff_00ff_00ff_00ff;
        word = (word << 4 | word) & 0x0f0f_0f0f_0f0f_0f0f;
        let letters = (word + 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101;
        let to_letter = u64::from(b'a' - b'0' - 10);
        (word + 0x3030_3030_3030_3030 + letters * to_letter).to_be_bytes()
    }
}
#[cfg(any(not(target_arch = "x86_64"), miri))]
pub(crate) use portable::hex;

#[cfg(test)]
mod tests {
    #[test]
    fn digits_are_those_of_the_standard_library() {
        for bytes in [
            [0; 8],
            [0xff; 8],
            [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef],
        ] {
            let expected = format!("{:016x}", u64::from_be_bytes(bytes));
            assert_eq!(super::hex(bytes), *expected.as_bytes());
            assert_eq!(super::portable::hex(bytes), *expected.as_bytes());
        }
    }
}
