//! Folders of `target/setup` that take minutes to make, kept for the user's other checkouts in
//! `$XDG_CACHE_HOME/otelctx/setup`, as links to the same files.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Tier;
use crate::workspace::setup_dir;
use crate::{collector, debian::FreeThreadedPython, report};

/// The folders, and their versions where setup asks for one. Each is the same wherever the checkout is, and
/// nothing changes its files.
const FOLDERS: [(&str, &str); 16] = [
    (FreeThreadedPython::FOLDER, ""),
    ("debian-rust", ""),
    ("debian-rust-current", ""),
    ("guest-bookworm-amd64", ""),
    ("guest-bookworm-arm64", ""),
    ("guest-bullseye-amd64", ""),
    ("guest-cpython-3.11-arm64", ""),
    ("guest-cpython-3.13-arm64", ""),
    ("guest-cpython-3.14-arm64", ""),
    ("guest-cpython-3.15-arm64", ""),
    ("guest-cpython-3.9-arm64", ""),
    ("guest-sid-amd64", ""),
    ("guest-trixie-amd64", ""),
    ("opentelemetry-cpp-1.19", ""),
    ("opentelemetry-cpp-newest", ""),
    ("otelcol", collector::VERSION),
];

/// Takes what another checkout has made.
pub(super) fn restore(tier: Tier) {
    each(tier, |cached, own| (cached, own));
}

/// Keeps what this checkout has made.
pub(super) fn save() {
    each(Tier::All, |cached, own| (own, cached));
}

/// Copies each folder that is there, and not at its destination yet. What cannot be copied is made again.
fn each(tier: Tier, from_to: impl Fn(PathBuf, PathBuf) -> (PathBuf, PathBuf)) {
    let Some(cache) = directory() else { return };
    let is_for_all = |name: &str| !name.starts_with("opentelemetry-cpp");
    let wanted = FOLDERS
        .iter()
        .filter(|(name, _)| tier == Tier::All || !is_for_all(name));
    for (name, version) in wanted {
        let cached = cache.join(format!("{name}{version}"));
        let (from, to) = from_to(cached, setup_dir().join(name));
        if !from.is_dir() || to.exists() {
            continue;
        }
        match copy(&from, &to) {
            Ok(()) => println!("copied {} to {}", from.display(), to.display()),
            Err(error) => println!("not copied: {error}"),
        }
    }
}

fn directory() -> Option<PathBuf> {
    let cache = match std::env::var_os("XDG_CACHE_HOME") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(&std::env::var_os("HOME")?).join(".cache"),
    };
    cache.is_absolute().then(|| cache.join("otelctx/setup"))
}

/// Links files, or copies them to another file system. The folder has its name only when it is complete.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let fail = |error: std::io::Error| format!("{}: {error}", to.display());
    let partial = to.with_extension(format!("partial-{}", std::process::id()));
    let copied = ["-al", "-a"].into_iter().any(|how| {
        let _ = std::fs::remove_dir_all(&partial);
        to.parent()
            .is_some_and(|folder| std::fs::create_dir_all(folder).is_ok())
            && report::output(Command::new("cp").arg(how).arg(from).arg(&partial)).is_ok()
    });
    let renamed = match copied {
        true => std::fs::rename(&partial, to).map_err(fail),
        false => Err(format!(
            "{}: not copied from {}",
            to.display(),
            from.display()
        )),
    };
    if renamed.is_err() {
        let _ = std::fs::remove_dir_all(&partial);
    }
    renamed
}
