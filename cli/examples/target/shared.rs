//! Constants that the target and the tests that inspect it share.

/// The trace of every record with ids.
pub(crate) const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
/// The span of a thread whose number is not the span.
pub(crate) const SPAN: &str = "00f067aa0ba902b7";

/// Text that could drive a terminal: escape sequences in 7 and 8 bits, line breaks, DEL, and text that
/// changes direction.
pub(crate) const EVIL: &str = "a\x1b]0;x\x07\u{9b}31m\r\n\x7f\u{202e}b";

/// Threads of the scenario `all_stuck` that cannot be stopped. A reader waits half a second for each.
pub(crate) const STUCK: usize = 8;
