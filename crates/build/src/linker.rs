//! Which linker rustc will use.

/// The linkers, by what a static-pie executable may export with them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Linker {
    /// GNU ld; also when nothing is known.
    Gnu,
    /// lld, rustc's own included, or mold.
    LldOrMold,
}

impl Linker {
    /// What rustc 1.`minor_version` uses for a target unless told otherwise: its own lld on x86-64
    /// since 1.90.
    pub(crate) fn default_of(target: &str, minor_version: u32) -> Self {
        match target {
            "x86_64-unknown-linux-gnu" if minor_version >= 90 => Self::LldOrMold,
            _ => Self::Gnu,
        }
    }

    /// The linker that these flags (`CARGO_ENCODED_RUSTFLAGS`) and this `RUSTC_LINKER` choose. The
    /// last flag wins, as in rustc.
    pub(crate) fn of(flags: &str, linker: &str, default: Self) -> Self {
        let chosen = options(flags)
            .filter_map(|option| {
                let (name, value) = option.split_once('=')?;
                match name {
                    "linker" => Some(value),
                    "link-arg" | "link-args" => value.split_once("-fuse-ld=").map(|(_, ld)| ld),
                    "linker-features" => Some(match value {
                        "-lld" => "ld.bfd",
                        "+lld" => "lld",
                        _ => return None,
                    }),
                    _ => None,
                }
            })
            .last();
        let named = |name: &str| ["lld", "mold"].iter().any(|known| name.contains(known));
        match chosen {
            Some(name) if named(name) => Self::LldOrMold,
            // `-C linker=clang` does not say which linker clang runs.
            Some(_) => Self::Gnu,
            None if named(linker) => Self::LldOrMold,
            None if linker.is_empty() => default,
            None => Self::Gnu,
        }
    }
}

/// The `-C` options among rustc's flags, as `name` or `name=value`.
pub(crate) fn options(flags: &str) -> impl Iterator<Item = &str> {
    let mut after_c = false;
    flags.split('\x1f').filter_map(move |flag| {
        if std::mem::take(&mut after_c) {
            return Some(flag);
        }
        after_c = matches!(flag, "-C" | "--codegen");
        flag.strip_prefix("-C")
            .or_else(|| flag.strip_prefix("--codegen="))
            .filter(|option| !option.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use Linker::{Gnu, LldOrMold};

    #[test]
    fn the_default_is_that_of_target_and_rustc() {
        assert_eq!(
            Linker::default_of("x86_64-unknown-linux-gnu", 95),
            LldOrMold
        );
        assert_eq!(Linker::default_of("x86_64-unknown-linux-gnu", 89), Gnu);
        assert_eq!(Linker::default_of("aarch64-unknown-linux-gnu", 95), Gnu);
        assert_eq!(Linker::of("", "", LldOrMold), LldOrMold);
        assert_eq!(Linker::of("", "x86_64-linux-gnu-gcc", LldOrMold), Gnu);
    }

    #[test]
    fn the_last_flag_wins() {
        let flags = "-C\x1flink-arg=-fuse-ld=bfd\x1f-Clink-arg=-fuse-ld=mold";
        assert_eq!(Linker::of(flags, "", Gnu), LldOrMold);
        assert_eq!(Linker::of("-Clink-arg=-fuse-ld=bfd", "", LldOrMold), Gnu);
        assert_eq!(Linker::of("-Clinker-features=-lld", "", LldOrMold), Gnu);
        assert_eq!(
            Linker::of("--codegen=linker=/usr/bin/mold", "", Gnu),
            LldOrMold
        );
    }

    #[test]
    fn options_are_found_in_each_way_of_writing_them() {
        let flags = "-C\x1fa=1\x1f-Cb\x1f--cfg\x1fc\x1f--codegen=d=2\x1f--codegen\x1fe";
        assert_eq!(options(flags).collect::<Vec<_>>(), ["a=1", "b", "d=2", "e"]);
    }
}
