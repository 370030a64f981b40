//! The version of Go that built a program: `debug/buildinfo` describes what Go's linker writes.

use otelctx_reader::remote::elf::{Elf, ElfError};

/// The section's name.
pub(crate) const SECTION: &str = ".go.buildinfo";
/// The first bytes of the section.
pub(crate) const MAGIC: &[u8] = b"\xff Go buildinf:";
/// The offset of the byte with flags, and the flag for texts that follow the header, as Go 1.18 and later write them.
const FLAGS: usize = 15;
const INLINE: u8 = 2;
/// The header's size: the version's length and text follow.
const HEADER: usize = 32;
/// Maximum length of a version that is read, in bytes. Those of development builds, with a commit and a date, are the
/// longest: `devel go1.27-c0ffee1234 Mon Nov 2 10:00:00 2026 +0000 X:nogreenteagc`.
const MAX_VERSION: usize = 100;

/// A version of Go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    /// As Go writes it: `go1.26.8`.
    pub(crate) text: String,
    /// The number after `go1.`.
    pub(crate) minor: u32,
}

impl Version {
    /// The version in a module whose section has this address. `None` if there is none, or in another form.
    pub(crate) fn read(elf: &Elf<'_>, section: u64) -> Result<Option<Self>, ElfError> {
        // The section has one more byte for each of the lengths, and what was built.
        let mut bytes = [0; HEADER + 1 + MAX_VERSION];
        elf.read_at(section, &mut bytes)?;
        Ok(Self::of_section(&bytes))
    }

    /// The version in the beginning of the section.
    fn of_section(bytes: &[u8]) -> Option<Self> {
        if !bytes.starts_with(MAGIC) || bytes.get(FLAGS)? & INLINE == 0 {
            return None;
        }
        // All lengths that are accepted fit into the first byte of the number.
        let (length, text) = bytes.get(HEADER..)?.split_first()?;
        let text = text.get(..usize::from(*length))?;
        let text = text.get(..text.len().min(MAX_VERSION))?;
        Self::parse(std::str::from_utf8(text).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        const START: &str = "go1.";
        let number = &text[text.find(START)? + START.len()..];
        let end = number.find(|it: char| !it.is_ascii_digit());
        let minor = number[..end.unwrap_or(number.len())].parse().ok()?;
        let is_plain = |it: char| it.is_ascii_graphic() || it == ' ';
        text.chars().all(is_plain).then(|| Self {
            text: text.to_owned(),
            minor,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_releases_and_development_builds_are_recognized() {
        let minor = |text| Version::parse(text).map(|it| it.minor);
        assert_eq!(minor("go1.26.8"), Some(26));
        assert_eq!(minor("go1.21"), Some(21));
        assert_eq!(minor("go1.27rc1"), Some(27));
        assert_eq!(minor("go1.25.1 X:nogreenteagc"), Some(25));
        assert_eq!(
            minor("devel go1.28-c0ffee Mon Nov 2 10:00:00 2026"),
            Some(28)
        );
        for text in [
            "",
            "go1.",
            "go2.1",
            "go1.x",
            "gccgo 12",
            "go1.99999999999",
            "go1.26\n",
        ] {
            assert_eq!(minor(text), None, "{text}");
        }
    }

    #[test]
    fn a_section_that_is_cut_or_announces_more_has_no_version() {
        let mut section = [MAGIC, &[8, INLINE], &[0; 16], &[8], b"go1.26.8"].concat();
        assert_eq!(Version::of_section(&section).unwrap().text, "go1.26.8");
        for length in 0..section.len() {
            assert_eq!(Version::of_section(&section[..length]), None, "{length}");
        }
        section[HEADER] = 9;
        assert_eq!(Version::of_section(&section), None);
        section[HEADER] = 8;
        section[FLAGS] = 0;
        assert_eq!(Version::of_section(&section), None);
    }
}
