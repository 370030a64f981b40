//! Versions of CPython.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    pub(crate) major: u8,
    pub(crate) minor: u8,
    pub(crate) micro: u8,
    /// The low byte of `PY_VERSION_HEX`: the release level, `0xa` to `0xc` for alpha, beta and
    /// release candidate, `0xf` for final, and a serial number.
    release: u8,
}

/// The release level and the serial number of a final version.
const FINAL: u8 = 0xf0;

impl Version {
    pub(crate) const fn new(major: u8, minor: u8, micro: u8) -> Self {
        Self {
            major,
            minor,
            micro,
            release: FINAL,
        }
    }

    /// The version in a `PY_VERSION_HEX`.
    pub(crate) fn of_hex(hex: u64) -> Option<Self> {
        let [release, micro, minor, major] = u32::try_from(hex).ok()?.to_le_bytes();
        Some(Self {
            major,
            minor,
            micro,
            release,
        })
    }

    /// Parses the version at the start of a text, such as `3.10.13 (main, …`. A pre-release counts
    /// as its final version.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let mut numbers = text.splitn(3, |byte| *byte == b'.');
        let major = number(numbers.next()?)?;
        let minor = number(numbers.next()?)?;
        let micro = numbers.next()?;
        let digits = micro.iter().take_while(|byte| byte.is_ascii_digit());
        let micro = number(&micro[..digits.count()])?;
        Some(Self::new(major, minor, micro))
    }

    /// Major and minor number, which decide how structures are read.
    pub(crate) const fn series(self) -> (u8, u8) {
        (self.major, self.minor)
    }
}

fn number(digits: &[u8]) -> Option<u8> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.micro)?;
        let serial = self.release & 0xf;
        match self.release >> 4 {
            0xa => write!(f, "a{serial}"),
            0xb => write!(f, "b{serial}"),
            0xc => write!(f, "rc{serial}"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_texts_are_the_same_versions() {
        let of_hex = |hex| Version::of_hex(hex).unwrap().to_string();
        assert_eq!(of_hex(0x030c_01f0), "3.12.1");
        assert_eq!(of_hex(0x030f_00b2), "3.15.0b2");
        assert_eq!(Version::of_hex(1 << 32), None);
        let parse = |text: &str| Version::parse(text.as_bytes()).map(|it| it.to_string());
        assert_eq!(parse("3.10.13 (main, Oct"), Some("3.10.13".into()));
        assert_eq!(parse("2.7.18"), Some("2.7.18".into()));
        assert_eq!(parse("3.9.0+ (heads"), Some("3.9.0".into()));
        for other in ["", "3", "3.9", "3.9.", "3.9.x", "300.1.1", "%.80s (%.80s)"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
