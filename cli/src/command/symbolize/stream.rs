//! Names functions of messages as they come, beside a Collector that gets addresses alone.

use std::io::{self, Read, Write as _};
use std::path::Path;

use otelctx_profile::RecordedFile;

use super::Naming;
use crate::Status;
use crate::command::debug_files::DebugFiles;
use crate::error::Error;
use crate::output::terminal;
use crate::output::text::{count, grouped};

/// Maximum size of a message, in bytes. Collectors accept 4 MiB by default.
const MAX_MESSAGE: u32 = 64 << 20;
/// What errors name the input.
const NAME: &str = "standard input";

/// Reads messages, each with its length in four bytes before it, most significant byte first, until the input ends. A message
/// that cannot be named, such as another program's, is written as it was.
pub(super) fn run(debug_files: &DebugFiles) -> Result<Status, Error> {
    let mut naming = Naming::new(debug_files)?;
    let unreadable = |source| otelctx_profile::Error::Read {
        path: NAME.into(),
        source,
    };
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let (mut messages, mut unnamed) = (0_usize, 0_usize);
    while let Some(message) = next(&mut input).map_err(unreadable)? {
        let recorded = RecordedFile::of(message.clone(), Path::new(NAME));
        let named = naming.names(&recorded);
        let named = named.and_then(|functions| Ok(recorded.named(&functions)?));
        let bytes = named.unwrap_or_else(|error| {
            if unnamed == 0 {
                terminal::complain(&format!("message {}: {error}", messages + 1), None);
            }
            unnamed += 1;
            message
        });
        messages += 1;
        // The input may never end, and nothing of these is said.
        naming.answer.missing.clear();
        naming.answer.without_names.clear();
        let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes();
        let written = output.write_all(&size);
        let written = written.and_then(|()| output.write_all(&bytes));
        written
            .and_then(|()| output.flush())
            .map_err(Error::Output)?;
    }
    let answer = &naming.answer;
    let mut line = format!(
        "named {} of {} in {}",
        grouped(answer.named),
        count(answer.addresses, "address", "addresses"),
        count(messages, "message", "messages"),
    );
    if unnamed > 0 {
        line += &format!("; {} left as before", grouped(unnamed));
    }
    terminal::complain(&line, None);
    Ok(Status::Done)
}

/// Reads the next message; `None` at the end.
fn next(input: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut size = [0; 4];
    let mut read = 0;
    while read < size.len() {
        match input.read(&mut size[read..]) {
            Ok(0) if read == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let size = u32::from_be_bytes(size);
    if size > MAX_MESSAGE {
        let message =
            format!("a message has {size} bytes: is it `format: proto`, without compression?");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    // As much memory as there is input, whatever the length says.
    let mut message = Vec::new();
    input.take(size.into()).read_to_end(&mut message)?;
    if message.len() < size as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_their_length_before_them() {
        let mut input = &b"\0\0\0\x02ab\0\0\0\0\0\0\0\x01c"[..];
        for expected in [&b"ab"[..], b"", b"c"] {
            assert_eq!(next(&mut input).unwrap().as_deref(), Some(expected));
        }
        assert_eq!(next(&mut input).unwrap(), None);
        for broken in [&b"\0"[..], b"\0\0\0", b"\0\0\0\x02a", b"\x04\0\0\x01"] {
            let mut input = broken;
            assert!(next(&mut input).is_err(), "{broken:?}");
        }
    }
}
