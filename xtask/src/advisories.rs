//! `cargo xtask advisories`: no dependency has a known advisory.
//!
//! `.ci/advisories.tsv` is the RustSec database cut down to what a check needs, so that it works
//! without a network. `--refresh CHECKOUT` regenerates it from a checkout of that database.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use semver::{Version, VersionReq};

use crate::report::{self, Outcome};
use crate::workspace::{MANIFESTS, metadata, root};

/// Checks both workspaces' lock files, or with `--refresh` replaces the snapshot first.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let refreshed = match arguments {
        [] => Ok(()),
        [flag, checkout] if flag == "--refresh" => refresh(Path::new(checkout)),
        _ => Err("advisories takes no argument, or --refresh CHECKOUT".into()),
    };
    refreshed.and_then(|()| check()).into()
}

fn snapshot() -> PathBuf {
    root().join(".ci/advisories.tsv")
}

/// One line of the snapshot.
struct Advisory<'a> {
    id: &'a str,
    package: &'a str,
    /// `vulnerability`, or RustSec's informational kinds: `unsound`, `unmaintained`, `notice`.
    kind: &'a str,
    /// Version requirements of RustSec's `patched` and `unaffected`.
    safe: Vec<VersionReq>,
}

impl<'a> Advisory<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut columns = line.split('\t');
        let (id, package, kind) = (columns.next()?, columns.next()?, columns.next()?);
        let requirements = columns.next()?.split(';').filter(|text| !text.is_empty());
        let safe = requirements
            .map(|text| text.parse().ok())
            .collect::<Option<_>>()?;
        Some(Self {
            id,
            package,
            kind,
            safe,
        })
    }

    fn affects(&self, version: &Version) -> bool {
        !self
            .safe
            .iter()
            .any(|requirement| requirement.matches(version))
    }

    /// An unmaintained crate is reported and fails nothing.
    fn fails(&self) -> bool {
        matches!(self.kind, "vulnerability" | "unsound")
    }
}

fn check() -> Result<Outcome, String> {
    let path = snapshot();
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let date = text
        .lines()
        .next()
        .and_then(|line| line.rsplit(' ').next())
        .unwrap_or_default();
    let mut advisories = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let bad = || format!("{}: not an advisory: {line}", path.display());
        advisories.push(Advisory::parse(line).ok_or_else(bad)?);
    }
    let ignored = ignored()?;
    let packages = packages()?;
    let mut found = Vec::new();
    for (name, version) in &packages {
        let of_package = advisories
            .iter()
            .filter(|advisory| advisory.package == name);
        for advisory in of_package.filter(|advisory| advisory.affects(version)) {
            let line = format!("{name} {version}: {} ({})", advisory.id, advisory.kind);
            if advisory.fails() && !ignored.contains(advisory.id) {
                found.push(line);
            } else {
                println!("excused: {line}");
            }
        }
    }
    if found.is_empty() {
        let count = packages.len();
        return Ok(Outcome::Passed(format!(
            "{count} packages against RustSec as of {date}"
        )));
    }
    Err(found.join(", "))
}

/// Every package of the workspaces that comes from a registry.
fn packages() -> Result<BTreeSet<(String, Version)>, String> {
    let mut packages = BTreeSet::new();
    for manifest in MANIFESTS.map(|name| root().join(name)) {
        if !manifest.is_file() {
            continue;
        }
        let metadata = metadata(&manifest)?;
        for package in metadata["packages"].as_array().into_iter().flatten() {
            let version = package["version"]
                .as_str()
                .and_then(|text| text.parse().ok());
            if let (Some(name), Some(version), Some(_)) = (
                package["name"].as_str(),
                version,
                package["source"].as_str(),
            ) {
                packages.insert((name.to_owned(), version));
            }
        }
    }
    Ok(packages)
}

/// Ids in `deny.toml` under `advisories.ignore`, each with its reason there.
fn ignored() -> Result<BTreeSet<String>, String> {
    let path = root().join("deny.toml");
    let fail = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = fs::read_to_string(&path).map_err(|error| fail(&error))?;
    let deny: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| fail(&error))?;
    let list = deny.get("advisories").and_then(|table| table.get("ignore"));
    let list = list.and_then(|list| list.as_array()).into_iter().flatten();
    Ok(list
        .filter_map(|entry| Some(entry.get("id")?.as_str()?.to_owned()))
        .collect())
}

/// Writes the snapshot from `CHECKOUT/crates/*/RUSTSEC-*.md`.
fn refresh(checkout: &Path) -> Result<(), String> {
    let mut lines = Vec::new();
    for folder in entries(&checkout.join("crates"))? {
        for file in entries(&folder)? {
            let text = fs::read_to_string(&file)
                .map_err(|error| format!("{}: {error}", file.display()))?;
            lines.extend(line_of(&text).map_err(|error| format!("{}: {error}", file.display()))?);
        }
    }
    lines.sort();
    let mut git = Command::new("git");
    git.arg("-C")
        .arg(checkout)
        .args(["log", "-1", "--format=%H of %cs"]);
    let commit = report::output(&mut git)?;
    let head = format!(
        "# RustSec advisory database (CC0-1.0; imported ones CC-BY-4.0), commit {}",
        commit.trim_end()
    );
    let columns = "# id, package, kind, versions that are not affected (any of)";
    let text = format!("{head}\n{columns}\n{}\n", lines.join("\n"));
    fs::write(snapshot(), text).map_err(|error| format!("{}: {error}", snapshot().display()))
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect())
}

/// The snapshot's line for one advisory; none for a withdrawn one.
fn line_of(text: &str) -> Result<Option<String>, String> {
    let front = text
        .strip_prefix("```toml")
        .and_then(|text| text.split("```").next());
    let front: toml::Table = front
        .ok_or("no toml in front")?
        .parse()
        .map_err(|error| format!("{error}"))?;
    let advisory = front.get("advisory").ok_or("no advisory")?;
    if advisory.get("withdrawn").is_some() {
        return Ok(None);
    }
    let field = |name| advisory.get(name).and_then(toml::Value::as_str);
    let (Some(id), Some(package)) = (field("id"), field("package")) else {
        return Err("no id or package".into());
    };
    let kind = field("informational").unwrap_or("vulnerability");
    let versions = front.get("versions");
    let safe = ["patched", "unaffected"]
        .into_iter()
        .filter_map(|name| versions?.get(name));
    let safe = safe
        .filter_map(toml::Value::as_array)
        .flatten()
        .filter_map(toml::Value::as_str);
    let safe: Vec<_> = safe.collect();
    let line = format!("{id}\t{package}\t{kind}\t{}", safe.join(";"));
    Advisory::parse(&line).ok_or("a version requirement that does not parse")?;
    Ok(Some(line))
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
        let advisory = Advisory::parse(&line).unwrap();
        assert!(advisory.fails());
        for (version, affected) in [("0.0.9", false), ("0.1.0", true), ("0.4.0", false)] {
            assert_eq!(
                advisory.affects(&version.parse().unwrap()),
                affected,
                "{version}"
            );
        }
    }

    #[test]
    fn withdrawn_advisories_are_skipped() {
        let withdrawn = ADVISORY.replace("[versions]", "withdrawn = \"2025-01-01\"\n[versions]");
        assert_eq!(line_of(&withdrawn), Ok(None));
    }

    #[test]
    fn without_a_fix_every_version_is_affected() {
        let advisory = Advisory::parse("RUSTSEC-1\tgone\tunmaintained\t").unwrap();
        assert!(advisory.affects(&"9.9.9".parse().unwrap()));
        assert!(!advisory.fails());
    }
}
