//! The page's own sources: what the project demands of them, and what joining them relies on.

use std::collections::BTreeMap;

use super::*;

const SOURCES: [(&str, &str); 15] = [
    ("index.html", TEMPLATE),
    ("style.css", STYLE),
    ("state.js", MODULES[0]),
    ("columns.js", MODULES[1]),
    ("tree.js", MODULES[2]),
    ("selection.js", MODULES[3]),
    ("text.js", MODULES[4]),
    ("colours.js", MODULES[5]),
    ("icicle.js", MODULES[6]),
    ("timeline.js", MODULES[7]),
    ("tables.js", MODULES[8]),
    ("trace.js", MODULES[9]),
    ("graph.js", MODULES[10]),
    ("address.js", MODULES[11]),
    ("app.js", MODULES[12]),
];

/// The name that a top-level declaration of a module gives.
fn declared(line: &str) -> Vec<&str> {
    let line = line.strip_prefix("export ").unwrap_or(line);
    let line = line.strip_prefix("async ").unwrap_or(line);
    let Some((keyword, rest)) = line.split_once(' ') else {
        return Vec::new();
    };
    if !["const", "let", "function", "class"].contains(&keyword) {
        return Vec::new();
    }
    let names = rest.split(['=', '(', '{', ';']).next().unwrap_or_default();
    names
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect()
}

#[test]
fn modules_declare_different_names_as_they_become_one_script() {
    let mut known: BTreeMap<&str, &str> = BTreeMap::new();
    for (file, text) in &SOURCES[2..] {
        for name in text.lines().flat_map(declared) {
            let earlier = known.insert(name, file);
            assert_eq!(earlier, None, "{name} of {file} is declared before");
        }
    }
    assert_eq!(known.get("unpack"), Some(&"columns.js"));
    assert_eq!(known.get("selector"), Some(&"app.js"));
}

#[test]
fn modules_import_names_that_earlier_modules_export() {
    let mut exported: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (file, text) in &SOURCES[2..] {
        for line in text.lines().filter(|line| line.starts_with("import ")) {
            let (names, from) = line.split_once("} from './").unwrap();
            let known = &exported[from.trim_end_matches("';")];
            for name in names.trim_start_matches("import {").split(',') {
                assert!(
                    known.contains(&name.trim()),
                    "{file} imports {name} from {from}"
                );
            }
        }
        let exports = text
            .lines()
            .filter(|line| line.starts_with("export "))
            .flat_map(declared);
        exported.insert((*file).to_owned(), exports.collect());
    }
}

#[test]
fn the_joined_script_has_no_imports_and_no_exports() {
    let script = script();
    let is_left = |line: &&str| line.starts_with("import ") || line.starts_with("export ");
    assert_eq!(script.lines().find(is_left), None);
    assert!(script.starts_with("'use strict';\n(() => {\n"));
    assert!(script.ends_with("\nstart();\n})();\n"));
    // It would end the element that the script is in.
    assert!(!script.contains("</script"));
}

#[test]
fn sources_are_short_readable_and_build_no_markup() {
    let mut lines = 0;
    for (file, text) in SOURCES {
        for (index, line) in text.lines().enumerate() {
            lines += 1;
            assert!(line.chars().count() <= 100, "{file}:{}", index + 1);
            for forbidden in [
                "innerHTML",
                "outerHTML",
                "insertAdjacent",
                "document.write",
                "eval(",
                "style=\"",
            ] {
                assert!(
                    !line.contains(forbidden),
                    "{file}:{}: {forbidden}",
                    index + 1
                );
            }
        }
    }
    assert!(lines <= 2500, "{lines} lines");
}

#[test]
fn numbers_have_commas_between_thousands() {
    let numbers = [0, 7, 999, 1000, 12_345, 1_000_000, u64::MAX];
    let expected = [
        "0",
        "7",
        "999",
        "1,000",
        "12,345",
        "1,000,000",
        "18,446,744,073,709,551,615",
    ];
    assert_eq!(numbers.map(grouped), expected);
}
