//! `cargo xtask circles`: groups of files of one crate that use each other in a circle.
//!
//! A file uses another one if a path in its code leads there, also through `use` declarations of other
//! modules. A module and its own ancestors and descendants may use each other. Tests do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use fs_err as fs;
use proc_macro2::{TokenStream, TokenTree};

use crate::files::entries;
use crate::report::{Done, passed};
use crate::workspace::root;

/// The folders of the product's crates.
const FOLDERS: [&str; 5] = ["publish", "inspect", "inspect/runtimes", "profile", "."];
/// The document with a row for each allowed group: its crate, its modules, and the reason.
const DOCUMENT: &str = "ARCHITECTURE.md";

/// The most groups that there may be, however good their reasons.
const MAX_GROUPS: usize = 6;

/// The path of a module below the crate's root, or one in code, with `crate`, `self` and `super`.
type ModulePath = Vec<String>;

/// The modules of a crate.
#[derive(Default)]
struct Modules {
    /// Each module, with the one that its file is named for: itself, or the one around it.
    files: BTreeMap<ModulePath, ModulePath>,
    /// Paths in the code of a module, with the names that `use` declarations give them.
    paths: Vec<(ModulePath, ModulePath, String)>,
}

/// Prints the groups, and fails unless the document has a row for each, and a group for each row.
pub(crate) fn run() -> Done {
    let mut groups = BTreeSet::new();
    for folder in FOLDERS {
        for library in entries(&root().join(folder))? {
            let source = library.join("src");
            if source.join("lib.rs").is_file() {
                let mut modules = Modules::default();
                modules.read(&[], &source)?;
                let library = library.strip_prefix(root())?.display().to_string();
                let found = circles(&modules.uses()).into_iter();
                groups.extend(found.map(|group| row(&library, &group)));
            }
        }
    }
    let document = fs::read_to_string(root().join(DOCUMENT))?;
    let rows = rows(&document);
    for group in &groups {
        println!("{group}");
    }
    let lines = |group: &String| format!("\n{group}");
    let new: String = groups.difference(&rows).map(lines).collect();
    ensure!(new.is_empty(), "{DOCUMENT} does not list:{new}");
    let stale: String = rows.difference(&groups).map(lines).collect();
    ensure!(stale.is_empty(), "{DOCUMENT} lists no group:{stale}");
    let count = groups.len();
    ensure!(count <= MAX_GROUPS, "{count} groups, over {MAX_GROUPS}");
    passed(format!("{count} groups"))
}

/// The first two columns of the document's row for a group.
fn row(library: &str, group: &[String]) -> String {
    format!("| `{library}` | `{}`", group.join("`, `"))
}

/// The first two columns of the rows for groups in the document.
fn rows(document: &str) -> BTreeSet<String> {
    let mut sections = document.split("\n## ");
    let section = sections.find(|section| section.starts_with("Circles\n"));
    let lines = section.unwrap_or_default().lines();
    let rows = lines.filter(|line| line.starts_with("| `"));
    let columns = rows.filter_map(|row| Some(row.rsplit_once(" | ")?.0.to_owned()));
    columns.collect()
}

/// The groups of names that reach each other.
fn circles(uses: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<Vec<String>> {
    let reached = |from: &String| {
        let (mut reached, mut rest) = (BTreeSet::new(), vec![from]);
        while let Some(name) = rest.pop() {
            let used = uses.get(name).into_iter().flatten();
            rest.extend(used.filter(|it| reached.insert((*it).clone())));
        }
        reached
    };
    let circle = |from: &String| {
        let names = reached(from).into_iter();
        names.filter(|it| reached(it).contains(from)).collect()
    };
    let groups = uses.keys().map(circle);
    groups.filter(|it: &Vec<_>| it.len() > 1).collect()
}

impl Modules {
    /// Reads a module's file, and those of its children, which are in `directory`.
    fn read(&mut self, module: &[String], directory: &Path) -> Result<()> {
        let files = [
            directory.with_extension("rs"),
            directory.join("mod.rs"),
            directory.join("lib.rs"),
        ];
        let file = files.iter().find(|file| file.is_file());
        let file = file.with_context(|| format!("{} has no file", directory.display()))?;
        let code: Result<TokenStream, _> = fs::read_to_string(file)?.parse();
        let code = code.map_err(|error| anyhow!("{}: {error}", file.display()))?;
        self.files.insert(module.to_vec(), module.to_vec());
        self.scan(module, directory, code)
    }

    fn scan(&mut self, module: &[String], directory: &Path, code: TokenStream) -> Result<()> {
        let tokens: Vec<TokenTree> = code.into_iter().collect();
        let texts: Vec<String> = tokens.iter().map(ToString::to_string).collect();
        let (mut at, mut renamed) = (0, None);
        while at < texts.len() {
            let end = |ends: [&str; 2]| {
                let is_end = |it: &String| ends.iter().any(|end| it.starts_with(end));
                let end = texts[at..].iter().position(is_end);
                end.map_or(texts.len(), |end| at + end)
            };
            let next = [1, 2].map(|next| texts.get(at + next).map_or("", |it| it));
            match (&texts[at][..], next) {
                ("#", [cfg, _]) if cfg.starts_with("[cfg") && cfg.contains("test") => {
                    at = end(["{", ";"])
                }
                ("#", [attribute, _]) if attribute.starts_with("[path") => {
                    let path = attribute.split('"').nth(1).unwrap_or_default();
                    let path = path.strip_suffix(".rs").unwrap_or(path);
                    renamed = Some(path.strip_suffix("/mod").unwrap_or(path).to_owned());
                }
                ("mod", [name, _]) => {
                    let child = [module, &[name.to_owned()]].concat();
                    let below = directory.join(renamed.take().as_deref().unwrap_or(name));
                    if let Some(TokenTree::Group(inside)) = tokens.get(at + 2) {
                        self.files.insert(child.clone(), self.files[module].clone());
                        self.scan(&child, &below, inside.stream())?;
                    } else {
                        self.read(&child, &below)?;
                    }
                    at += 2;
                }
                ("use", _) => {
                    let end = end([";", ";"]);
                    self.import(module, &tokens[at + 1..end], &[]);
                    at = end;
                }
                ("crate" | "super" | "self", [":", ":"]) => {
                    let mut path = vec![texts[at].clone()];
                    while texts[at + 1..].starts_with(&[":".into(), ":".into()]) {
                        path.extend(texts.get(at + 3).cloned());
                        at += 3;
                    }
                    self.paths.push((module.to_vec(), path, String::new()));
                }
                _ => {
                    if let TokenTree::Group(group) = &tokens[at] {
                        self.scan(module, directory, group.stream())?;
                    }
                }
            }
            at += 1;
        }
        Ok(())
    }

    /// Adds what a `use` declaration, or the part of one after `prefix`, imports.
    fn import(&mut self, module: &[String], tokens: &[TokenTree], prefix: &[String]) {
        for tree in tokens.split(|it| it.to_string() == ",") {
            let mut path = prefix.to_vec();
            for token in tree {
                if let TokenTree::Group(group) = token {
                    let inside: Vec<TokenTree> = group.stream().into_iter().collect();
                    self.import(module, &inside, &path);
                } else if let TokenTree::Ident(name) = token {
                    path.push(name.to_string());
                }
            }
            path.pop_if(|it| it == "self");
            let name = path.last().cloned().unwrap_or_default();
            if let Some(renamed) = path.iter().position(|it| it == "as") {
                path.truncate(renamed);
            }
            self.paths.push((module.to_vec(), path, name));
        }
    }

    /// The module that a path of a module leads to, if it is in this crate.
    fn resolve(&self, from: &[String], path: &[String], depth: u8) -> Option<ModulePath> {
        let mut at = from.to_vec();
        for (position, name) in path.iter().enumerate() {
            match &name[..] {
                "crate" => at.clear(),
                "self" => {}
                "super" => drop(at.pop()),
                _ => at.push(name.clone()),
            }
            if !self.files.contains_key(&at) {
                at.pop();
                let is_it = |(module, it, alias): &&(ModulePath, ModulePath, String)| {
                    *module == at && alias == name && it != path && depth < 8
                };
                return match self.paths.iter().find(is_it) {
                    Some((_, path, _)) => self.resolve(&at, path, depth + 1),
                    None => (position > 0).then_some(at),
                };
            }
        }
        Some(at)
    }

    /// The files that each file uses, by the modules that they are named for.
    fn uses(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (module, path, _) in &self.paths {
            if let Some(used) = self.resolve(module, path, 0) {
                let (user, used) = (&self.files[module], &self.files[&used]);
                if !user.starts_with(used) && !used.starts_with(user) {
                    let all = uses.entry(user.join("::")).or_default();
                    all.insert(used.join("::"));
                }
            }
        }
        uses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_use_what_their_paths_lead_to() {
        let code = "mod a { pub(crate) use super::b::{self as other, X}; fn f(self: X) {} }
            mod b { fn g() -> crate::c::Y { super::a::f() } mod own { use super::super::a; } }
            mod c { use std::fs; pub use crate::a::X as Y; #[cfg(test)] mod tests { use crate::b; } }
            use a::X; mod d { use crate::X; use crate::b::own; }";
        let mut modules = Modules::default();
        modules.files.insert(Vec::new(), Vec::new());
        let scanned = modules.scan(&[], Path::new(""), code.parse().unwrap());
        scanned.unwrap();
        // As if each was in a file of its own.
        for (module, file) in &mut modules.files {
            file.clone_from(module);
        }
        let set = |names: &[&str]| BTreeSet::from_iter(names.iter().map(|it| (*it).to_owned()));
        let uses = [
            ("a", &["b"][..]),
            ("b", &["a"]),
            ("b::own", &["a"]),
            ("c", &["b"]),
            ("d", &["b", "b::own"]),
        ];
        let expected = uses.map(|(from, to)| (from.to_owned(), set(to)));
        assert_eq!(modules.uses(), BTreeMap::from(expected));
        assert_eq!(
            circles(&modules.uses()),
            BTreeSet::from([vec!["a".to_owned(), "b".to_owned()]])
        );
    }
}
