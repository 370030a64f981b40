//! `cargo xtask words`: checks the vocabulary of ARCHITECTURE.md's glossary.
//!
//! Finds words that the project does not use in tracked files and in their names. Identifiers are
//! split into their words, so that `LookedAt` and `looked_at` are found like "looked at".

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::report::{self, Outcome};
use crate::workspace::root;

/// Words that follow one another, where `|` separates forms of one, and what to write instead.
type Rule = (&'static [&'static str], &'static str);

const RULES: [Rule; 21] = [
    (
        &["mend|mends|mended|mending"],
        "fix, hint (a sentence) or fixed",
    ),
    (
        &["look|looks|looked|looking", "at"],
        "sample, inspect or scan",
    ),
    (&["look|looks|looked|looking", "again"], "poll or retry"),
    (&["look|looks|looked|looking", "for"], "search"),
    (&["looks|look", "a", "second"], "samples per second, Hz"),
    (&["whoever"], "name the subject"),
    (&["so", "many"], "the number, or what it counts"),
    (&["those", "that"], "name what is meant"),
    (&["dear"], "slow, expensive, or a named threshold"),
    (&["patience"], "deadline or timeout"),
    (&["time", "out|outs"], "timeout"),
    (&["for", "ever"], "forever"),
    (&["told|heard"], "report, print, configure or distinguish"),
    (&["somebody|anybody|everybody"], "the subject"),
    (&["anew"], "again"),
    (&["one", "'", "s", "own"], "its own, or the owner"),
    (&["go|goes|gone", "through"], "scan, visit or search"),
    (&["let|lets|letting", "go"], "resume or release"),
    (&["what", "stays", "your"], "what it does not do"),
    (&["stand|stands", "still"], "stop, stay stopped or pause"),
    (&["chore|chores"], "task"),
];

/// Names of files and directories, without extension, that do not describe their content.
const NAMES: [&str; 10] = [
    "apart", "choice", "looked", "mend", "mends", "nothing", "patience", "spoken", "told", "seen",
];

/// Exceptions: a path prefix, the words, and the reason.
const ALLOWED: [(&str, &str, &str); 1] = [(
    "xtask/src/words.rs",
    "",
    "the rules themselves, and their tests",
)];

/// Paths that are not the project's own text.
const UNCHECKED: [&str; 5] = [
    "Cargo.lock",
    "LICENSE",
    "publish/python/python3.13t/Cargo.lock",
    "testing/fuzz/Cargo.lock",
    "testing/fuzz/corpus/",
];

/// Checks every tracked file.
pub(crate) fn run() -> Outcome {
    check().into()
}

fn check() -> Result<Outcome, String> {
    let listed = report::output(
        Command::new("git")
            .current_dir(root())
            .args(["ls-files", "-z"]),
    )?;
    let paths = listed.split('\0').filter(|path| {
        let is_unchecked = |start: &&str| path.starts_with(*start);
        !path.is_empty() && !UNCHECKED.iter().any(is_unchecked)
    });
    let mut findings = Vec::new();
    let mut files = 0;
    for path in paths {
        // A file that was removed and not committed, or that is not text.
        let Ok(text) = fs::read_to_string(root().join(path)) else {
            continue;
        };
        files += 1;
        findings.extend(in_name(path));
        for (index, line) in text.lines().enumerate() {
            let found = in_text(line).filter(|(found, _)| !is_allowed(path, found));
            findings.extend(found.map(|(found, instead)| {
                format!("{path}:{}: \"{found}\": write {instead}", index + 1)
            }));
        }
    }
    if findings.is_empty() {
        return Ok(Outcome::Passed(format!("{files} files")));
    }
    for finding in &findings {
        println!("{finding}");
    }
    Err(format!("{} to rewrite, see above", findings.len()))
}

fn is_allowed(path: &str, found: &str) -> bool {
    let allows = |(start, words, _): &(&str, &str, &str)| {
        path.starts_with(start) && (words.is_empty() || *words == found)
    };
    ALLOWED.iter().any(allows)
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

/// The forbidden words in a line, and their replacements.
fn in_text(line: &str) -> impl Iterator<Item = (String, &'static str)> {
    let words = words(line);
    let found = |(rule, instead): &Rule| {
        let all = words.windows(rule.len());
        let matching = all.filter(|window| {
            let mut pairs = rule.iter().zip(*window);
            pairs.all(|(forms, word)| forms.split('|').any(|form| form == word))
        });
        matching
            .map(|window| (window.join(" "), *instead))
            .collect::<Vec<_>>()
    };
    RULES.iter().flat_map(found).collect::<Vec<_>>().into_iter()
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
        in_text(line).map(|(found, _)| found).collect()
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
