//! `cargo xtask api [--write]`: compares the public items of the library crates, and of the Go modules, with `docs/api/`.
//!
//! The lists come from the sources, as rustfmt writes them: `pub` items and fields, variants, members of traits,
//! implementations and re-exports, by file. That takes 0.05 s; rustdoc's JSON, which `cargo-public-api` reads, needs
//! nightly Rust and a build of all dependencies. An item that is `pub` in a private module and not exported is listed, too.

mod go;

use anyhow::{Result, bail};
use fs_err as fs;

use crate::report::{self, Done};
use crate::workspace::{git, root};

/// The folders of the library crates.
const CRATES: &str = "publish/format publish/otelctx publish/build publish/tracing \
    publish/opentelemetry inspect/remote inspect/reader inspect/track inspect/unwind inspect/waits profile/model \
    profile/sampler profile/symbolize profile/write profile/page profile/export profile/agent profile/worker \
    inspect/runtimes/cpython inspect/runtimes/go inspect/runtimes/hotspot inspect/runtimes/nodejs \
    inspect/runtimes/v8 cli";

/// Compares the lists, or writes them.
pub(crate) fn run(writes: bool) -> Done {
    for folder in CRATES.split_whitespace() {
        let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml"))?;
        let name = manifest.split('"').nth(1).unwrap_or_default();
        let is_source = |file: &&str| file.ends_with(".rs") && !file.ends_with("/tests.rs");
        compare(
            name,
            &list(&format!("{folder}/src"), is_source, items)?,
            writes,
        )?;
    }
    // Other modules cannot import what is in a folder `internal`.
    let is_source = |file: &&str| {
        let is_code = file.ends_with(".go") && !file.ends_with("_test.go");
        is_code && !file.contains("/internal/")
    };
    compare("go", &list("publish/go", is_source, go::items)?, writes)?;
    report::passed("docs/api has the public items of the library crates and the Go modules")
}

/// Compares a list with the committed one, or writes it.
fn compare(name: &str, found: &str, writes: bool) -> Result<()> {
    let path = root().join(format!("docs/api/{name}.txt"));
    if writes {
        return Ok(fs::write(&path, found)?);
    }
    let committed = fs::read_to_string(&path)?;
    if found != committed {
        let is_new = |line: &&str| !committed.lines().any(|it| it == *line);
        let new = found.lines().find(is_new).unwrap_or("an item is gone");
        bail!("{name}: {new}; if intended: cargo xtask api --write");
    }
    Ok(())
}

fn list(
    source: &str,
    is_source: impl Fn(&&str) -> bool,
    items: impl Fn(&str) -> Vec<String>,
) -> Result<String> {
    let files = report::output(git("ls-files -co --exclude-standard").arg(source))?;
    let mut files: Vec<&str> = files.lines().filter(is_source).collect();
    files.sort_unstable();
    let mut list = String::new();
    for file in files {
        let items = items(&fs::read_to_string(root().join(file))?);
        if !items.is_empty() {
            list += &format!("# {file}\n{}\n", items.join("\n"));
        }
    }
    Ok(list)
}

/// Returns the public items of a file up to its tests, each in one line.
fn items(text: &str) -> Vec<String> {
    let mut items: Vec<String> = Vec::new();
    // The implementation that has no public item yet, the attributes of the next item, and the indentation of the
    // public enum or trait that a line is in.
    let (mut implementation, mut notes, mut body) = (None, Vec::new(), None::<usize>);
    let mut lines = text.lines().take_while(|line| *line != "mod tests {");
    while let Some(line) = lines.next() {
        let (code, indent) = (line.trim(), line.len() - line.trim_start().len());
        body = body.filter(|start| indent > *start || code.is_empty());
        let is_member = body.is_some_and(|start| indent == start + 4)
            && !code.starts_with(['}', ')', '#', '/']);
        let is_note = code.starts_with("#[derive") || code.starts_with("#[non_exhaustive");
        let is_implementation = indent == 0 && code.starts_with("impl");
        if !(is_member || is_note || is_implementation || code.starts_with("pub ")) {
            notes.retain(|_| code.starts_with('#') || code.starts_with("//"));
            continue;
        }
        let mut item = format!("{:indent$}{code}", "");
        let has_end = |item: &str| {
            let ends = item.ends_with([';', ']'])
                || (item.ends_with(['{', ',', '}']) && !code.starts_with("pub use "));
            ends && item.matches('(').count() == item.matches(')').count()
        };
        while !has_end(&item) {
            let Some(next) = lines.next() else { break };
            item = format!("{item} {}", next.trim());
        }
        if code.starts_with("pub enum") || code.starts_with("pub trait") {
            body = item.ends_with('{').then_some(indent);
        }
        if code.starts_with("pub const") || code.starts_with("pub static") {
            item.truncate(item.find(" = ").unwrap_or(item.len()));
        }
        let item = item.trim_end_matches(['{', ',', ';', ' ']).to_owned();
        if is_note {
            notes.push(item);
        } else if is_implementation && !item.contains(" for ") {
            implementation = Some(item);
        } else {
            items.extend(implementation.take().filter(|_| indent > 0));
            items.append(&mut notes);
            items.push(item);
        }
    }
    items
}
