//! Process IDs from the command line.

use otelctx_reader::remote::Process;

use crate::error::Error;

/// Returns the process whose ID, or the ID of one of whose threads, is `id`.
pub(super) fn process_of(id: i32) -> Result<i32, Error> {
    // The kernel shows the directory of a thread ID as well, with the data of the whole process.
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

pub(super) fn pid(text: &str) -> Result<i32, String> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(id) if id > 0 => Ok(id),
        _ if digits && !text.is_empty() => Err(format!("process IDs are from 1 to {}", i32::MAX)),
        _ => Err("a process ID is a number".into()),
    }
}
