//! `cargo xtask licences`: every dependency's licence is one that `deny.toml` allows.
//!
//! `deny.toml` is in cargo-deny's format, so `cargo deny check` reads the same list; this check
//! needs neither that program nor a network.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::report::Outcome;
use crate::workspace::{MANIFESTS, metadata, root};

/// Checks every workspace of the checkout.
pub(crate) fn run() -> Outcome {
    check().into()
}

fn check() -> Result<Outcome, String> {
    let allowed = allowed()?;
    let mut seen = BTreeSet::new();
    let mut refused = BTreeSet::new();
    for manifest in MANIFESTS.map(|name| root().join(name)) {
        if !manifest.is_file() {
            continue;
        }
        let metadata = metadata(&manifest)?;
        for package in metadata["packages"].as_array().into_iter().flatten() {
            let name = format!("{} {}", text(package, "name"), text(package, "version"));
            let licence = text(package, "license");
            if !satisfied(licence, &allowed) {
                refused.insert(format!("{name}: {licence:?}"));
            }
            if let Some(source) = package["source"].as_str()
                && !source.starts_with("registry+")
            {
                refused.insert(format!("{name}: comes from {source}, not from a registry"));
            }
            seen.insert(name);
        }
    }
    if refused.is_empty() {
        return Ok(Outcome::Passed(format!("{} packages", seen.len())));
    }
    let refused: Vec<_> = refused.into_iter().collect();
    Err(format!("not allowed by deny.toml: {}", refused.join(", ")))
}

fn text<'a>(package: &'a Value, field: &str) -> &'a str {
    package[field].as_str().unwrap_or_default()
}

fn allowed() -> Result<BTreeSet<String>, String> {
    let deny = deny_toml(&root().join("deny.toml"))?;
    let list = deny["licenses"]["allow"]
        .as_array()
        .ok_or("deny.toml: no licenses.allow")?;
    Ok(list
        .iter()
        .filter_map(|licence| Some(licence.as_str()?.to_owned()))
        .collect())
}

/// Reads `deny.toml` as plain values.
pub(crate) fn deny_toml(path: &Path) -> Result<toml::Table, String> {
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    text.parse()
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// Whether an SPDX expression can be met with the allowed licences. `AND` binds closer than `OR`;
/// `/` is an old spelling of `OR`. An expression that does not parse is not met.
fn satisfied(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let mut words = spaced.split_whitespace().peekable();
    either(&mut words, allowed).is_some_and(|met| met && words.peek().is_none())
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn either(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> Option<bool> {
    let mut met = both(words, allowed)?;
    while words.next_if_eq(&"OR").is_some() {
        met |= both(words, allowed)?;
    }
    Some(met)
}

fn both(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> Option<bool> {
    let mut met = one(words, allowed)?;
    while words.next_if_eq(&"AND").is_some() {
        met &= one(words, allowed)?;
    }
    Some(met)
}

fn one(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> Option<bool> {
    let word = words.next()?;
    if word == "(" {
        let met = either(words, allowed)?;
        return (words.next()? == ")").then_some(met);
    }
    let mut licence = word.to_owned();
    if words.next_if_eq(&"WITH").is_some() {
        licence = format!("{licence} WITH {}", words.next()?);
    }
    Some(allowed.contains(&licence))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn met(expression: &str) -> bool {
        let allowed = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"];
        satisfied(expression, &allowed.map(str::to_owned).into())
    }

    #[test]
    fn one_allowed_alternative_is_enough() {
        assert!(met("GPL-2.0 OR MIT"));
        assert!(met("MIT/Apache-2.0"));
        assert!(met("Apache-2.0 WITH LLVM-exception OR GPL-2.0"));
        assert!(!met("GPL-2.0 OR AGPL-3.0"));
    }

    #[test]
    fn every_part_of_a_conjunction_must_be_allowed() {
        assert!(met("(MIT OR GPL-2.0) AND Apache-2.0"));
        assert!(!met("MIT AND GPL-2.0"));
        assert!(!met("GPL-2.0 AND GPL-2.0 OR GPL-2.0 AND MIT"));
    }

    #[test]
    fn what_does_not_parse_is_refused() {
        for expression in ["", "MIT MIT", "(MIT", "MIT OR", "MIT)"] {
            assert!(!met(expression), "{expression:?}");
        }
    }
}
