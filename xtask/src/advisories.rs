//! `cargo xtask advisories`: no dependency has a known advisory.
//!
//! `.ci/advisories.tsv` is the RustSec database cut down to what a check needs, so that it works
//! without a network. `--refresh CHECKOUT` regenerates it from a checkout of that database.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use fs_err as fs;
use semver::{Version, VersionReq};

use crate::files::{entries, table};
use crate::report::{Done, Words, command, output, passed};
use crate::workspace::{MANIFESTS, packages, root};

/// RustSec's database, below the checkout's root.
const SNAPSHOT: &str = ".ci/advisories.tsv";

/// Checks the lock files of all workspaces, or with `--refresh` replaces the snapshot first.
pub(crate) fn run(arguments: &[String]) -> Done {
    match arguments {
        [] => {}
        [flag, checkout] if flag == "--refresh" => refresh(Path::new(checkout))?,
        _ => bail!("advisories takes no argument, or --refresh CHECKOUT"),
    }
    let text = fs::read_to_string(root().join(SNAPSHOT))?;
    let first = text.lines().next().unwrap_or_default();
    let date = first.rsplit(' ').next().unwrap_or_default();
    let ignored = ignored()?;
    let packages = registry_packages()?;
    let mut found = Vec::new();
    for [id, package, kind, safe] in table(&text).context(SNAPSHOT)? {
        for (name, version) in packages.iter().filter(|(name, _)| name == package) {
            if affects(safe, version).with_context(|| format!("{SNAPSHOT}: {id}"))? {
                let line = format!("{name} {version}: {id} ({kind})");
                if fails(kind) && !ignored.contains(id) {
                    found.push(line);
                } else {
                    println!("excused: {line}");
                }
            }
        }
    }
    ensure!(found.is_empty(), "{}", found.join(", "));
    let count = packages.len();
    passed(format!("{count} packages against RustSec as of {date}"))
}

/// Whether an advisory affects a version: none of the requirements of RustSec's `patched` and `unaffected` matches.
fn affects(safe: &str, version: &Version) -> Result<bool> {
    for requirement in safe.split(';').filter(|it| !it.is_empty()) {
        if requirement.parse::<VersionReq>()?.matches(version) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether an advisory of a kind fails the check: `vulnerability`, or one of RustSec's informational kinds. An unmaintained
/// crate is reported and fails nothing.
fn fails(kind: &str) -> bool {
    matches!(kind, "vulnerability" | "unsound")
}

/// Every package of the workspaces that comes from a registry.
fn registry_packages() -> Result<BTreeSet<(String, Version)>> {
    let mut found = BTreeSet::new();
    for manifest in MANIFESTS {
        let packages = packages(manifest)?.into_iter();
        for package in packages.filter(|it| it["source"].is_string()) {
            let [name, version] = ["name", "version"].map(|it| package[it].as_str());
            let name = name.context("a package without a name")?.to_owned();
            found.insert((name, version.context("one without a version")?.parse()?));
        }
    }
    Ok(found)
}

/// Ids in `deny.toml` under `advisories.ignore`, each with its reason there.
fn ignored() -> Result<BTreeSet<String>> {
    let deny: toml::Table = fs::read_to_string(root().join("deny.toml"))?.parse()?;
    let list = deny.get("advisories").and_then(|table| table.get("ignore"));
    let list = list.and_then(|list| list.as_array()).into_iter().flatten();
    let ids = list.filter_map(|entry| entry.get("id")?.as_str());
    Ok(ids.map(str::to_owned).collect())
}

/// Writes the snapshot from `CHECKOUT/crates/*/RUSTSEC-*.md`.
fn refresh(checkout: &Path) -> Result<()> {
    let mut lines = Vec::new();
    for folder in entries(&checkout.join("crates"))? {
        for file in entries(&folder)? {
            let line = line_of(&fs::read_to_string(&file)?);
            lines.extend(line.with_context(|| file.display().to_string())?);
        }
    }
    lines.sort();
    let mut git = command("git -C");
    git.arg(checkout).words("log -1").arg("--format=%H of %cs");
    let text = format!(
        "# RustSec advisory database (CC0-1.0; imported ones CC-BY-4.0), commit {}\n\
         # id, package, kind, versions that are not affected (any of)\n{}\n",
        output(&mut git)?.trim_end(),
        lines.join("\n")
    );
    Ok(fs::write(root().join(SNAPSHOT), text)?)
}

/// The snapshot's line for one advisory; none for a withdrawn one.
fn line_of(text: &str) -> Result<Option<String>> {
    let front = text.strip_prefix("```toml").context("no toml in front")?;
    let front: toml::Table = front.split("```").next().unwrap_or_default().parse()?;
    let advisory = front.get("advisory").context("no advisory")?;
    if advisory.get("withdrawn").is_some() {
        return Ok(None);
    }
    let field = |name| advisory.get(name).and_then(toml::Value::as_str);
    let id = field("id").context("no id")?;
    let package = field("package").context("no package")?;
    let kind = field("informational").unwrap_or("vulnerability");
    let versions = |name| front.get("versions")?.get(name)?.as_array();
    let safe = ["patched", "unaffected"].into_iter().filter_map(versions);
    let safe = safe.flatten();
    let safe: Vec<_> = safe.filter_map(toml::Value::as_str).collect();
    let safe = safe.join(";");
    affects(&safe, &Version::new(0, 0, 0)).context("a version requirement")?;
    Ok(Some(format!("{id}\t{package}\t{kind}\t{safe}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADVISORY: &str = "```toml\n[advisory]\nid = \"RUSTSEC-2024-0401\"\n\
        package = \"zlib-rs\"\n[versions]\npatched = [\">= 0.4.0\"]\n\
        unaffected = [\"< 0.1.0\"]\n```\n# Title\n";

    #[test]
    fn versions_outside_patched_and_unaffected_are_affected() {
        let line = line_of(ADVISORY).unwrap().unwrap();
        assert_eq!(
            line,
            "RUSTSEC-2024-0401\tzlib-rs\tvulnerability\t>= 0.4.0;< 0.1.0"
        );
        let [[.., kind, safe]] = table::<4>(&line).unwrap()[..] else {
            panic!("one row")
        };
        assert!(fails(kind));
        for (version, affected) in [("0.0.9", false), ("0.1.0", true), ("0.4.0", false)] {
            let version = version.parse().unwrap();
            assert_eq!(affects(safe, &version).unwrap(), affected, "{version}");
        }
    }

    #[test]
    fn withdrawn_advisories_are_skipped() {
        let withdrawn = ADVISORY.replace("[versions]", "withdrawn = \"2025-01-01\"\n[versions]");
        assert_eq!(line_of(&withdrawn).unwrap(), None);
    }

    #[test]
    fn without_a_fix_every_version_is_affected() {
        assert!(affects("", &"9.9.9".parse().unwrap()).unwrap());
        assert!(!fails("unmaintained"));
    }
}
