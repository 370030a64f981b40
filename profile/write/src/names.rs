//! Shortens names of functions.

/// Number of parts of a path that are kept.
const PARTS: usize = 2;
/// Longest name that is shortened, in bytes: brackets may be nested.
const MAX_NAME: usize = 1024;

/// Returns the end of a path without type arguments: `Range::next` for
/// `<core::ops::range::Range<T> as core::iter::Iterator>::next`. Other names are returned whole, as
/// are names that are no path, and operators of C++.
#[must_use]
pub fn short_name(name: &str) -> String {
    let is_path = name.contains("::") || name.contains("}<");
    if !is_path || name.len() > MAX_NAME || name.contains("operator") {
        return name.to_owned();
    }
    let parts = parts(name);
    let Some(parts) = parts.filter(|parts| !parts.is_empty()) else {
        return name.to_owned();
    };
    // What a closure is in says more than the closure.
    let closures = parts.iter().rev().take_while(|part| part.starts_with('{'));
    let kept = (closures.count() + 1).max(PARTS);
    parts[parts.len().saturating_sub(kept)..].join("::")
}

/// Splits a path into its parts without type arguments; `None` if brackets do not match.
fn parts(name: &str) -> Option<Vec<String>> {
    let (mut parts, mut part) = (Vec::new(), String::new());
    let mut rest = name;
    while let Some(next) = rest.chars().next() {
        if let Some(behind) = rest.strip_prefix("::") {
            if !part.is_empty() {
                parts.push(std::mem::take(&mut part));
            }
            rest = behind;
        } else if next == '<' {
            let (inside, behind) = bracketed(rest)?;
            // A type stands at the start of a path, or for `impl Trait for Type`.
            if part.is_empty() {
                parts.extend(type_of(inside)?.pop());
            }
            rest = behind;
        } else if next == '(' && part.is_empty() {
            // `(anonymous namespace)` of C++.
            let (_, behind) = rest.split_once(')')?;
            rest = behind;
        } else if next == '(' {
            // Parameters of C++.
            break;
        } else {
            part.push(next);
            rest = &rest[next.len_utf8()..];
        }
    }
    if !part.is_empty() {
        parts.push(part);
    }
    Some(parts)
}

/// Returns the parts of the type of `Type as Trait`, or `impl Trait for Type`.
fn type_of(inside: &str) -> Option<Vec<String>> {
    let type_name = match inside.strip_prefix("impl ") {
        Some(both) => both.rsplit_once(" for ").map_or(both, |(_, it)| it),
        None => outer_split(inside, " as ").unwrap_or(inside),
    };
    let type_name = type_name.trim_start_matches(['&', '*']);
    let type_name = type_name
        .trim_start_matches("mut ")
        .trim_start_matches("dyn ");
    parts(type_name)
}

/// Returns what stands before `separator`, outside of brackets.
fn outer_split<'t>(text: &'t str, separator: &str) -> Option<&'t str> {
    let mut depth = 0;
    for (index, next) in text.char_indices() {
        match next {
            '<' => depth += 1,
            '>' if !text[..index].ends_with('-') => depth -= 1,
            _ if depth == 0 && text[index..].starts_with(separator) => return Some(&text[..index]),
            _ => {}
        }
    }
    None
}

/// Splits a text that starts with a bracket into what is inside, and what is behind it.
fn bracketed(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0;
    for (index, next) in text.char_indices() {
        match next {
            '<' => depth += 1,
            // Not the arrow of a function's type.
            '>' if !text[..index].ends_with('-') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some((&text[1..index], &text[index + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_end() {
        for (name, expected) in [
            ("main", "main"),
            ("Shop.checkout", "Shop.checkout"),
            ("total.<locals>.<genexpr>", "total.<locals>.<genexpr>"),
            ("<module>", "<module>"),
            ("core::hint::black_box", "hint::black_box"),
            (
                "core::option::Option<T>::is_some_and",
                "Option::is_some_and",
            ),
            (
                "<core::ops::range::Range<T> as core::iter::range::RangeIteratorImpl>::spec_next",
                "Range::spec_next",
            ),
            (
                "core::iter::range::<impl core::iter::Iterator for core::ops::range::Range<A>>::next",
                "Range::next",
            ),
            ("<i32 as core::iter::range::Step>::forward", "i32::forward"),
            ("shop::start::{{closure}}", "start::{{closure}}"),
            (
                "shop::start::{closure#1}::{closure#0}",
                "start::{closure#1}::{closure#0}",
            ),
            ("{closure#1}<shop::start<fn() -> u8>, ()>", "{closure#1}"),
            (
                "<&mut F as core::ops::FnOnce<A>>::call_once",
                "F::call_once",
            ),
            (
                "v8::internal::(anonymous namespace)::Invoke(int, char)",
                "internal::Invoke",
            ),
            (
                "std::vector<int, std::allocator<int> >::push_back(int&&)",
                "vector::push_back",
            ),
            ("a::operator<<(b)", "a::operator<<(b)"),
            (
                &format!("x::{}f", "<".repeat(30_000)),
                &format!("x::{}f", "<".repeat(30_000)),
            ),
            // Damaged.
            ("a::b<c", "a::b<c"),
            ("::", "::"),
            ("<>::", "<>::"),
        ] {
            assert_eq!(short_name(name), expected, "{name}");
        }
    }
}
