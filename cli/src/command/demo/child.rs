//! The service in a separate process.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::service::READY;
use crate::error::Error;

/// The running service. It is terminated when this is dropped, and when this process ends for any
/// reason.
#[derive(Debug)]
pub(super) struct Service(Child);

impl Service {
    /// Starts it, and waits until its context is published. The service ends with the calling
    /// thread (prctl(2), `PR_SET_PDEATHSIG`).
    pub(super) fn start() -> Result<Self, Error> {
        let mut service = Command::new("/proc/self/exe")
            .arg("demo-service")
            .arg(format!("--parent={}", std::process::id()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map(Self)
            .map_err(Error::Start)?;
        let mut line = String::new();
        if let Some(stdout) = service.0.stdout.take() {
            BufReader::new(stdout)
                .read_line(&mut line)
                .map_err(Error::Start)?;
        }
        if line.trim_end() == READY {
            Ok(service)
        } else {
            // It has printed the reason to standard error.
            Err(Error::ServiceEnded)
        }
    }

    pub(super) fn pid(&self) -> i32 {
        // Process IDs on Linux are positive and fit.
        self.0.id() as i32
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Fails only if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
