//! One word for one thing, the same in every command and in JSON (docs/json.md).

use otelctx_reader::remote::{Access, Storage};

/// How the code reaches the variable.
pub(crate) fn access(access: Access) -> &'static str {
    match access {
        Access::Tlsdesc => "tlsdesc",
        Access::GeneralDynamic => "general-dynamic",
        Access::LocalDynamic => "local-dynamic",
        Access::InitialExec => "initial-exec",
        Access::LocalExec => "local-exec",
    }
}

/// Where each thread keeps the variable.
pub(crate) fn storage(storage: Storage) -> &'static str {
    match storage {
        Storage::Static => "static",
        Storage::Dynamic => "dynamic",
    }
}

/// `1 key`, `2 keys`.
pub(crate) fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}
