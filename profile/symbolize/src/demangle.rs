//! Demangles linker names.

mod d;

/// The name of a function in its program's source, given its linker name.
///
/// Without its prefix, a linker name of C++ is one of C: a function `f` is not a `float`, which it would
/// be if it were the name of a type.
pub(crate) fn demangle(name: &str) -> String {
    if let Ok(demangled) = rustc_demangle::try_demangle(name) {
        // Without the hash.
        return format!("{demangled:#}");
    }
    if name.starts_with("_D")
        && let Some(demangled) = d::demangle(name)
    {
        return demangled;
    }
    // LLVM adds up to three underscores, and compilers suffixes after a dot.
    let is_cpp = name.trim_start_matches('_').starts_with('Z') && name.starts_with('_');
    let demangled = || cpp_demangle::Symbol::new(name).ok()?.demangle().ok();
    let demangled = is_cpp.then(demangled).flatten();
    demangled.unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::demangle;

    #[test]
    fn only_mangled_names_are_demangled() {
        for name in ["f", "i", "main", "Ss", "_start", "Z1fv", "_Z", ""] {
            assert_eq!(demangle(name), name);
        }
        assert_eq!(demangle("_Z4workPKcf"), "work(char const*, float)");
        assert_eq!(
            demangle("_ZN3std2io4read17h0123456789abcdefE"),
            "std::io::read"
        );
        assert_eq!(demangle("_RNvC6_123foo3bar"), "123foo::bar");
    }
}
