//! States of a global interpreter lock.

/// The state of a thread with regard to a global interpreter lock, such as CPython's: only the thread that
/// holds it executes the interpreter's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum GilState {
    /// The thread held it.
    Held,
    /// The thread waited for it.
    Waiting,
    /// The thread had released it, for example while C code computes or sleeps.
    Released,
}

impl GilState {
    /// All states.
    pub const ALL: [Self; 3] = [Self::Held, Self::Waiting, Self::Released];

    /// The function that stands in stacks for taking the lock, in samples that wait for it.
    pub const WAITING_FRAME: &str = "[waiting for the GIL]";

    /// Its name in JSON, and as the value of an attribute.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Waiting => "waiting",
            Self::Released => "released",
        }
    }
}
