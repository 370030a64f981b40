//! Why threads wait, as JSON.

use otelctx_waits::Reason;
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct WaitJson<'r> {
    call: &'r str,
    text: &'r str,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<PeerJson<'r>>,
    /// The thread that holds the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<i32>,
}

#[derive(Serialize)]
struct PeerJson<'r> {
    pid: i32,
    name: &'r str,
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<&'r str>,
}

impl<'r> WaitJson<'r> {
    pub(super) fn of(reason: &'r Reason) -> Self {
        Self {
            call: &reason.call,
            text: &reason.text,
            peer: reason.peer.as_ref().map(|peer| PeerJson {
                pid: peer.pid,
                name: &peer.name,
                service: peer.service.as_deref(),
            }),
            holder: reason.holder,
        }
    }
}
