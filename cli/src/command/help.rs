//! Headings of the options in `--help`.

/// Which processes are sampled.
pub(super) const PROCESSES: &str = "Select processes";
/// Which samples, and what of them, are kept or shown.
pub(super) const SAMPLES: &str = "Select samples";
/// How samples are taken.
pub(super) const SAMPLING: &str = "Sampling";
/// How the selected samples are grouped and shown.
pub(super) const VIEW: &str = "View";
/// Where to and in which form results are written.
pub(super) const OUTPUT: &str = "Output";
/// Where function names come from.
pub(super) const NAMES: &str = "Function names";
