//! What the id that was given stands for.

use otelctx_reader::remote::Process;

use crate::error::Error;

/// The process that `id` names, by itself or by one of its threads.
pub(super) fn process_of(id: i32) -> Result<i32, Error> {
    // The kernel shows a thread's directory under its id, and in it the whole process.
    let status = Process::open(id)?.status()?;
    if status.kernel_thread {
        return Err(Error::KernelThread(id));
    }
    Ok(if status.process > 0 {
        status.process
    } else {
        id
    })
}

/// Takes the id of a process from the command line.
pub(super) fn pid(text: &str) -> Result<i32, String> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(id) if id > 0 => Ok(id),
        _ if digits && !text.is_empty() => Err(format!("process IDs are from 1 to {}", i32::MAX)),
        _ => Err("a process ID is a number".into()),
    }
}
