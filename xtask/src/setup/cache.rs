//! Folders of `target/setup` that take minutes to make, kept for the user's other checkouts in
//! `$XDG_CACHE_HOME/otelctx/setup`, as links to the same files.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use fs_err as fs;

use crate::report::{command, output};
use crate::workspace::setup_dir;
use crate::{collector, debian};

/// The folders, each with its version where setup asks for one. Each is the same wherever the checkout is, and nothing
/// changes its files.
fn folders() -> impl Iterator<Item = (String, &'static str)> {
    let python = |(series, _)| format!("guest-cpython-{series}-arm64");
    let others = "debian-rust debian-rust-current guest-bookworm-amd64 guest-bookworm-arm64 \
        guest-bullseye-amd64 guest-sid-amd64 guest-trixie-amd64 libraries-amd64 libraries-arm64 \
        opentelemetry-cpp-1.19 opentelemetry-cpp-newest";
    let folders = [debian::FREE_THREADED_FOLDER].into_iter();
    let folders = folders.chain(others.split_whitespace()).map(str::to_owned);
    let folders = folders.chain(debian::GUEST_PYTHONS.into_iter().map(python));
    let folders = folders.map(|folder| (folder, ""));
    folders.chain([("otelcol".to_owned(), collector::VERSION)])
}

/// Takes what another checkout has made.
pub(super) fn restore(is_all: bool) {
    each(is_all, |cached, own| (cached, own));
}

/// Keeps what this checkout has made.
pub(super) fn save() {
    each(true, |cached, own| (own, cached));
}

/// Copies each folder that is there, and not at its destination yet. What cannot be copied is made again.
fn each(is_all: bool, from_to: impl Fn(PathBuf, PathBuf) -> (PathBuf, PathBuf)) {
    let Some(cache) = directory() else { return };
    let is_wanted = |name: &str| is_all || name.starts_with("opentelemetry-cpp");
    for (name, version) in folders().filter(|(name, _)| is_wanted(name)) {
        let cached = cache.join(format!("{name}{version}"));
        let (from, to) = from_to(cached, setup_dir().join(name));
        if from.is_dir() && !to.exists() {
            match copy(&from, &to) {
                Ok(()) => println!("copied {} to {}", from.display(), to.display()),
                Err(error) => println!("not copied: {error:#}"),
            }
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
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("it is the root folder")?)?;
    let partial = to.with_extension(format!("partial-{}", std::process::id()));
    let copy = |how| {
        let _ = fs::remove_dir_all(&partial);
        output(command(how).arg(from).arg(&partial)).map(drop)
    };
    let copied = copy("cp -al").or_else(|_| copy("cp -a"));
    let renamed = copied.and_then(|()| fs::rename(&partial, to).map_err(|it| anyhow!(it)));
    if renamed.is_err() {
        let _ = fs::remove_dir_all(&partial);
    }
    renamed
}
