//! `service.instance.id`: random for each process.

use std::str;

use super::system_error;
use crate::arch::hex;
use crate::process_context::{ProcessContext, PublishError};

pub(super) const INSTANCE_ID: &str = "service.instance.id";

/// Placeholder for an ID, of the same length.
pub(super) const PLACEHOLDER: &str = "________-____-____-____-____________";

/// Sets the instance ID, if the context asks for one: the previous one, or a random one.
pub(super) fn identify(
    context: &mut ProcessContext,
    before: Option<&str>,
) -> Result<Option<String>, PublishError> {
    if !context.random_instance_id {
        return Ok(None);
    }
    let id = match before {
        Some(id) => id.to_owned(),
        None => str::from_utf8(&random()?).unwrap_or_default().to_owned(),
    };
    // The program may have set its own ID.
    let payload = &mut context.payload;
    if payload.resource_attribute(INSTANCE_ID).is_none() {
        payload
            .resource
            .push((INSTANCE_ID.into(), id.as_str().into()));
    }
    Ok(Some(id))
}

/// Returns a random UUID (RFC 9562, version 4) in ASCII. Does not allocate: forked children call
/// it.
pub(super) fn random() -> Result<[u8; PLACEHOLDER.len()], PublishError> {
    let mut bytes = [0_u8; 16];
    // SAFETY: the buffer is 16 bytes, which the kernel always fills completely. Called directly
    // because glibc before 2.25 has no function for it.
    let read = unsafe { libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0) };
    if read != 16 {
        return Err(system_error("getrandom"));
    }
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let [a, b, c, d, e, f, g, h, rest @ ..] = bytes;
    let digits = [hex([a, b, c, d, e, f, g, h]), hex(rest)];
    let mut digits = digits.iter().flatten();
    let mut id = [0; PLACEHOLDER.len()];
    id.copy_from_slice(PLACEHOLDER.as_bytes());
    for place in id.iter_mut().filter(|place| **place == b'_') {
        if let Some(digit) = digits.next() {
            *place = *digit;
        }
    }
    Ok(id)
}
