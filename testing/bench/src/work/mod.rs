//! The publishers' operations, once for each side. The cdylibs of `cdylib/` are built from the same
//! files.

pub(crate) mod input;
pub(crate) mod libdd;
pub(crate) mod ours;
pub(crate) mod reference;

/// The functions of `ours::WORKS` and `libdd::WORKS`, in order, and the bounds on their ratio.
pub(crate) const WORKS: [(&str, Option<f64>); 6] = [
    ("attach + detach a prepared record", Some(0.1)),
    ("update in place: ids and flags", Some(0.25)),
    ("update in place: and the local-root attribute", Some(0.4)),
    ("update in place: and 2 attributes", Some(0.6)),
    ("update in place: and local root and 2 attributes", None),
    (
        "build a record with 2 attributes + attach + drop",
        Some(0.5),
    ),
];
