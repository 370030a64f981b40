//! `cargo xtask words`: checks the vocabulary of ARCHITECTURE.md's glossary.
//!
//! Finds words that the project does not use in tracked files and in their names. Identifiers are
//! split into their words, so that `LookedAt` and `looked_at` are found like "looked at".

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::bail;
use fs_err as fs;

use crate::files::table;
use crate::report::{self, Done};
use crate::workspace::{git, root};

/// Words that follow one another, and what to write instead.
const RULES: &str = include_str!("words/rules.tsv");

/// Names of files and directories, without extension, that do not describe their content.
const NAMES: [&str; 10] = [
    "apart", "choice", "looked", "mend", "mends", "nothing", "patience", "spoken", "told", "seen",
];

/// Paths that are not the project's own text, and the rules themselves with their tests.
const UNCHECKED: [&str; 6] = [
    "Cargo.lock",
    "LICENSE",
    "publish/python/python3.13t/Cargo.lock",
    "testing/fuzz/Cargo.lock",
    "testing/fuzz/corpus/",
    "xtask/src/words",
];

/// Checks every tracked file.
pub(crate) fn run() -> Done {
    let rules = rules();
    let listed = report::output(&mut git("ls-files -z"))?;
    let is_checked = |path: &&str| !UNCHECKED.iter().any(|start| path.starts_with(start));
    let paths = listed.split_terminator('\0').filter(is_checked);
    let (mut findings, mut files) = (Vec::new(), 0);
    for path in paths {
        // A file that was removed and not committed, or that is not text.
        let Ok(text) = fs::read_to_string(root().join(path)) else {
            continue;
        };
        files += 1;
        findings.extend(in_name(path));
        for (index, line) in text.lines().enumerate() {
            for (found, instead) in in_text(&rules, line) {
                let line = index + 1;
                findings.push(format!("{path}:{line}: \"{found}\": write {instead}"));
            }
        }
    }
    if !findings.is_empty() {
        println!("{}", findings.join("\n"));
        bail!("{} to rewrite, see above", findings.len());
    }
    report::passed(format!("{files} files"))
}

/// A finding for each part of a path that is not a good name.
fn in_name(path: &str) -> impl Iterator<Item = String> {
    let parts = Path::new(path).components();
    let stems = parts.filter_map(|part| Path::new(part.as_os_str()).file_stem()?.to_str());
    let words: BTreeSet<&str> = stems.flat_map(|stem| stem.split(['_', '-'])).collect();
    NAMES
        .into_iter()
        .filter(move |name| words.contains(name))
        .map(move |name| format!("{path}: \"{name}\" in the name of a file: say what is in it"))
}

/// The forms of each word of a rule, and what to write instead.
type Rule = (Vec<Vec<&'static str>>, &'static str);

fn rules() -> Vec<Rule> {
    let rules = table(RULES).expect("two columns").into_iter();
    let forms = |words: &'static str| words.split(' ').map(|word| word.split('|').collect());
    let rules = rules.map(|[words, instead]| (forms(words).collect(), instead));
    rules.collect()
}

/// The words that rules find in a line, and their replacements.
fn in_text(rules: &[Rule], line: &str) -> Vec<(String, &'static str)> {
    let words = words(line);
    let mut found = Vec::new();
    for (rule, instead) in rules {
        let windows = words.windows(rule.len());
        let is_found = |window: &&[String]| {
            let mut pairs = rule.iter().zip(*window);
            pairs.all(|(forms, word)| forms.contains(&word.as_str()))
        };
        let windows = windows.filter(is_found);
        found.extend(windows.map(|window| (window.join(" "), *instead)));
    }
    found
}

/// The words of a line in lower case, and its punctuation, so that no rule matches across it.
/// Identifiers are split: `looked_at`, `LookedAt`.
fn words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut previous = ' ';
    for character in line.chars() {
        let begins =
            !previous.is_alphanumeric() || character.is_uppercase() && previous.is_lowercase();
        match words.last_mut() {
            _ if character.is_whitespace() || character == '_' || character == '-' => {}
            Some(last) if character.is_alphanumeric() && !begins => {
                last.extend(character.to_lowercase());
            }
            _ => words.push(character.to_lowercase().collect()),
        }
        previous = character;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> Vec<String> {
        in_text(&rules(), line)
            .into_iter()
            .map(|(found, _)| found)
            .collect()
    }

    #[test]
    fn prose_and_identifiers_are_searched_alike() {
        for line in [
            "/// Looked at once.",
            "fn is_looked_at()",
            "struct LookedAt;",
            "const LOOKED_AT: u8",
            "looked-at",
        ] {
            assert_eq!(found(line), ["looked at"], "{line}");
        }
        assert_eq!(found("It mends so many."), ["mends", "so many"]);
        assert_eq!(found("recommend, amended, at: look. At"), [""; 0]);
        assert_eq!(found("look up a name, look into it"), [""; 0]);
    }

    #[test]
    fn names_of_files_are_checked_by_their_words() {
        let names = |path| in_name(path).count();
        assert_eq!(names("cli/src/command/apart.rs"), 1);
        assert_eq!(names("cli/src/command/looked_at.rs"), 1);
        assert_eq!(names("cli/src/command/apartment.rs"), 0);
    }
}
