//! What there is to say of the thread-local variable, of a file or in a process.

use otelctx_reader::SYMBOL;
use otelctx_reader::remote::Access;
use otelctx_reader::remote::module::Module;

use super::finding::Finding;
use crate::output::words;

/// The size of the variable: a pointer of a 64-bit process.
const SIZE: u64 = 8;

/// What defines the variable: it decides what makes the linker export it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A program that the dynamic linker starts.
    Program,
    /// A program without a dynamic symbol table.
    StaticProgram,
    /// A shared library.
    Library,
}

impl Owner {
    pub(super) fn of(module: &Module) -> Self {
        match (module.executable, module.dynamic) {
            (true, true) => Self::Program,
            (true, false) => Self::StaticProgram,
            (false, _) => Self::Library,
        }
    }
}

/// Defined, and only known to `.symtab`.
pub(super) fn not_exported(place: &str, owner: Owner) -> Finding {
    if owner == Owner::StaticProgram {
        return static_program();
    }
    let finding = Finding::problem(
        "not-exported",
        format!("{SYMBOL} is defined{place} but not exported: readers can't find it"),
    );
    match owner {
        // A linker exports what a library defines unless it was told not to; its option for
        // single symbols does not overrule that.
        Owner::Library => finding
            .mend("It is hidden, or a version script of the linker keeps it local. For the one:")
            .mend(format!(
                "__attribute__((visibility(\"default\"))) __thread void *{SYMBOL};"
            ))
            .mend(format!(
                "for the other, in the version script:  global: {SYMBOL};"
            )),
        _ => finding
            .mend(
                "The linker kept it local. Add to Cargo's build script:  otelctx_build::export();",
            )
            .mend(format!(
                "or for gcc and clang:  -Wl,--export-dynamic-symbol={SYMBOL}"
            )),
    }
}

/// In the program's own block, with no dynamic symbol table to say so.
fn static_program() -> Finding {
    Finding::problem(
        "static",
        format!(
            "this program is static: nothing exports {SYMBOL}, so that only readers which look \
             into .symtab find it, and none once it is stripped"
        ),
    )
    .mend("Link it dynamically, or as static-pie with lld or mold and")
    .mend(format!("-Wl,--export-dynamic-symbol={SYMBOL}"))
}

/// Nothing of that name.
pub(super) fn absent(text: String) -> Finding {
    Finding::problem("absent", text)
        .mend("A Rust program gets it from the crate otelctx, others from a publisher for their language.")
        .mend("Stripping removes one that is not exported: check the file from before that.")
}

/// A definition that is not one pointer.
pub(super) fn wrong_size(place: &str, size: u64) -> Option<Finding> {
    (size != SIZE).then(|| {
        Finding::problem(
            "wrong-size",
            format!("{SYMBOL}{place} has {size} bytes instead of {SIZE}: readers ignore it"),
        )
        .mend(format!(
            "Declare it as one pointer:  __thread void *{SYMBOL};"
        ))
    })
}

/// How the code reaches the variable. `executable` says that the program itself has it.
pub(super) fn access(access: Access, executable: bool) -> Finding {
    let name = words::access(access);
    match access {
        Access::LocalExec | Access::InitialExec if executable => Finding::ok(
            "access",
            format!("access is {name} after relaxation (fastest; every reader supports it)"),
        ),
        Access::LocalExec => Finding::ok("access", format!("access is {name}")),
        Access::InitialExec => Finding::note(
            "access",
            format!(
                "access is {name}: readers support it, but dlopen may refuse a library with it"
            ),
        )
        .mend("For libraries that are loaded late, compile with  -mtls-dialect=gnu2 -fPIC"),
        Access::Tlsdesc => Finding::ok(
            "access",
            format!("access is {name} (what OTEP 4947 asks for; every reader supports it)"),
        ),
        Access::GeneralDynamic => Finding::note(
            "access",
            format!("access is {name}: not every reader supports it"),
        )
        .mend("TLSDESC is what OTEP 4947 asks for, and quicker. For gcc on x86-64:")
        .mend("-mtls-dialect=gnu2"),
        Access::LocalDynamic => Finding::note(
            "access",
            format!("access is {name}, which OTEP 4947 does not know: other readers may fail"),
        )
        .mend("Export the variable, and compile with  -mtls-dialect=gnu2  (gcc on x86-64)"),
    }
}
