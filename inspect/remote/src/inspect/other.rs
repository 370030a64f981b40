//! Files that are not ELF.

/// Number of bytes at a file's start that identify its type.
pub(super) const START: usize = 64;

/// The type of a file that is not ELF.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Other {
    /// The file is empty.
    Empty,
    /// A script for this interpreter.
    Script(String),
    /// A linker script in place of a library.
    LinkerScript,
    /// An object file of LLVM's link-time optimizer.
    Bitcode,
    /// Anything else.
    Unknown,
}

impl Other {
    pub(super) fn of(start: &[u8]) -> Self {
        if start.is_empty() {
            return Self::Empty;
        }
        if let Some(line) = start.strip_prefix(b"#!") {
            let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
            let line = String::from_utf8_lossy(line);
            return Self::Script(line.trim().to_owned());
        }
        let linker_script: [&[u8]; 4] = [b"/* GNU ld script", b"INPUT", b"GROUP", b"OUTPUT_FORMAT"];
        if linker_script.iter().any(|words| start.starts_with(words)) {
            return Self::LinkerScript;
        }
        // LLVM, "Bitcode Magic Numbers" and "Bitcode Wrapper Format".
        if start.starts_with(b"BC\xc0\xde") || start.starts_with(b"\xde\xc0\x17\x0b") {
            return Self::Bitcode;
        }
        Self::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::Other;

    #[test]
    fn the_first_bytes_tell() {
        let script = Other::Script("/usr/bin/env python3".into());
        for (start, expected) in [
            (&b""[..], Other::Empty),
            (b"#! /usr/bin/env python3\nimport", script),
            (b"#!", Other::Script(String::new())),
            (b"/* GNU ld script\n", Other::LinkerScript),
            (b"INPUT(libx.so.1)", Other::LinkerScript),
            (b"BC\xc0\xde", Other::Bitcode),
            (b"\x7fEL", Other::Unknown),
        ] {
            assert_eq!(Other::of(start), expected);
        }
    }
}
