//! The address of the project's repository, and links into it from what is published.
//!
//! READMEs link to other files of the checkout by relative paths, which registries do not resolve: each package is made with
//! links to the repository at the version's tag.

use std::path::Path;

use anyhow::{Context, Result};
use fs_err as fs;

use crate::workspace::{VERSION, root};

/// In place of the address in what a dry run makes. The domain `invalid` never exists (RFC 2606).
pub(crate) const PLACEHOLDER: &str = "https://repository.invalid";

/// `[workspace.package] repository` of `Cargo.toml`, if the project has one.
pub(crate) fn address() -> Result<Option<String>> {
    let manifest: toml::Table = fs::read_to_string(root().join("Cargo.toml"))?.parse()?;
    let package = &manifest["workspace"]["package"];
    let address = package.get("repository").and_then(toml::Value::as_str);
    Ok(address.map(|it| it.trim_end_matches('/').to_owned()))
}

/// The address, or [`PLACEHOLDER`].
pub(crate) fn address_or_placeholder() -> Result<String> {
    Ok(address()?.unwrap_or_else(|| PLACEHOLDER.into()))
}

/// The README of a folder of the checkout, as registries show it.
pub(crate) fn readme(folder: &str) -> Result<String> {
    let text = fs::read_to_string(root().join(folder).join("README.md"))?;
    resolve(&text, folder, &address_or_placeholder()?)
}

/// Replaces relative targets of Markdown's links and pictures.
fn resolve(text: &str, folder: &str, address: &str) -> Result<String> {
    let mut resolved = String::new();
    let mut rest = text;
    while let Some(begin) = rest.find("](") {
        let (before, after) = rest.split_at(begin + 2);
        let end = after.find(')').unwrap_or(0);
        let (target, after) = after.split_at(end);
        resolved += before;
        rest = after;
        if target.contains("://") || target.starts_with('#') {
            resolved += target;
            continue;
        }
        let (file, fragment) = target.split_at(target.find('#').unwrap_or(target.len()));
        let file = root().join(folder).join(file).canonicalize();
        let file = file.with_context(|| format!("{folder}/README.md links to {target}"))?;
        let path = file.strip_prefix(root()).unwrap_or(&file).display();
        let bracket = before.rfind('[').unwrap_or(0);
        let is_picture = before[..bracket].ends_with('!');
        let view = if is_picture { "raw" } else { "blob" };
        resolved += &format!("{address}/{view}/v{VERSION}/{path}{fragment}");
    }
    Ok(resolved + rest)
}

/// Adds the address, and the README's resolved links, to a crate in a copy of the checkout.
pub(crate) fn add_to_crate(copy: &Path, folder: &str) -> Result<()> {
    let manifest = copy.join(folder).join("Cargo.toml");
    let text = fs::read_to_string(&manifest)?;
    let line = format!("[package]\nrepository = {:?}\n", address_or_placeholder()?);
    fs::write(&manifest, text.replacen("[package]\n", &line, 1))?;
    let path = manifest.with_file_name("README.md");
    Ok(fs::write(path, readme(folder)?)?)
}

#[cfg(test)]
mod tests {
    use super::{VERSION, resolve};

    #[test]
    fn links_lead_to_the_tag_of_the_version() {
        let text = "[a](../../docs/c.md#x), ![b](../../LICENSE), [c](https://c/d), [e](#f), [g]";
        let resolved = resolve(text, "publish/c", "https://a.invalid").unwrap();
        let expected = format!(
            "[a](https://a.invalid/blob/v{VERSION}/docs/c.md#x), \
             ![b](https://a.invalid/raw/v{VERSION}/LICENSE), [c](https://c/d), [e](#f), [g]"
        );
        assert_eq!(resolved, expected);
    }

    #[test]
    fn a_link_to_no_file_is_an_error() {
        let error = resolve("[a](nothing.md)", "publish/c", "https://a.invalid").unwrap_err();
        let error = format!("{error:#}");
        assert!(
            error.starts_with("publish/c/README.md links to nothing.md: "),
            "{error}"
        );
    }
}
