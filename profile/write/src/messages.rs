//! The messages in an OTLP file.

/// The messages in a file: a single one, or several, each preceded by its size (four bytes, big
/// endian), as the OpenTelemetry Collector's file exporter writes them.
#[derive(Clone)]
pub(crate) struct Messages<'f> {
    rest: &'f [u8],
    have_sizes: bool,
}

impl<'f> Messages<'f> {
    pub(crate) fn new(file: &'f [u8]) -> Self {
        // A message starts with a field number, at least 1, shifted by three bits
        // (https://protobuf.dev/programming-guides/encoding); a size below 128 MiB with less.
        let have_sizes = file.first().is_some_and(|first| *first < 1 << 3);
        Self {
            rest: file,
            have_sizes,
        }
    }

    /// Returns true if each message has its size before it.
    pub(crate) fn have_sizes(&self) -> bool {
        self.have_sizes
    }
}

impl<'f> Iterator for Messages<'f> {
    /// An error is the last item: a sentence that names the defect.
    type Item = Result<&'f [u8], String>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = std::mem::take(&mut self.rest);
        if rest.is_empty() || !self.have_sizes {
            return (!rest.is_empty()).then_some(Ok(rest));
        }
        let message = rest.split_first_chunk().and_then(|(size, behind)| {
            let size = usize::try_from(u32::from_be_bytes(*size)).ok()?;
            behind.split_at_checked(size)
        });
        let (message, behind) = match message {
            Some(([], _)) => return Some(Err("one of its messages is empty".to_owned())),
            Some(found) => found,
            None => return Some(Err("its last message is truncated".to_owned())),
        };
        self.rest = behind;
        Some(Ok(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(file: &[u8]) -> Vec<Result<&[u8], String>> {
        Messages::new(file).collect()
    }

    #[test]
    fn messages_have_their_sizes_before_them_or_are_alone() {
        let message = &[0x0a, 0][..];
        assert_eq!(of(message), [Ok(message)]);
        assert_eq!(of(&[]), []);
        let two = [0, 0, 0, 2, 0x0a, 0, 0, 0, 0, 1, 0x12];
        assert_eq!(of(&two), [Ok(message), Ok(&[0x12][..])]);
        let short = "its last message is truncated";
        for cut in 1..two.len() {
            let expected = match cut {
                6 => vec![Ok(message)],
                1..6 => vec![Err(short.to_owned())],
                _ => vec![Ok(message), Err(short.to_owned())],
            };
            assert_eq!(of(&two[..cut]), expected, "{cut}");
        }
        let empty = Err("one of its messages is empty".to_owned());
        assert_eq!(of(&[0; 64]), [empty]);
    }
}
