//! The expression of a trigger: conditions, of which all must hold.

use std::fmt::{self, Display};
use std::str::FromStr;

use crate::report::{AttributeFilter, Condition};

/// Maximum length of an expression, in bytes.
const MAX_LENGTH: usize = 4096;
/// Maximum number of conditions.
const MAX_CONDITIONS: usize = 32;

/// Units of durations, each with its nanoseconds, the longest first.
const UNITS: [(&str, u64); 5] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
];
/// Maximum duration, in nanoseconds: a day.
const MAX_DURATION: u64 = 86_400_000_000_000;
/// Decimal places of a duration that count: of a second, those of nanoseconds.
const DECIMALS: usize = 9;

/// Conditions on a sample, such as `http.route=/checkout and seen > 500ms`. All must hold.
///
/// A condition is one on an attribute, as in the options of `record`: `KEY=VALUE`, `KEY!=VALUE`, `KEY=PREFIX*`, `KEY`; or
/// on a time: `seen > 500ms`, `wait > 2s`, `lock wait > 100ms`. A key or a value with spaces, or one that is a word of the
/// expression, is in double quotes, in which `\"` and `\\` stand for these characters, and `*` for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    pub(super) conditions: Vec<Term>,
}

/// A condition of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Term {
    Attribute(AttributeFilter),
    /// The measure is longer than these nanoseconds.
    Longer(Measure, u64),
}

/// A time that is known of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    /// The time since the first sample of its trace in its process.
    Seen,
    /// The time for which its thread has been waiting.
    Wait,
    /// The same, if it waits for a lock.
    LockWait,
}

impl Measure {
    const ALL: [Self; 3] = [Self::Seen, Self::Wait, Self::LockWait];

    fn name(self) -> &'static str {
        match self {
            Self::Seen => "seen",
            Self::Wait => "wait",
            Self::LockWait => "lock wait",
        }
    }
}

/// Why a text is no expression, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: {message}{}", mark(.text, *.column))]
#[non_exhaustive]
pub struct ExpressionError {
    /// The position of the character that is wrong, from 1; behind the last one where something is missing.
    pub column: usize,
    /// What is expected there.
    pub message: String,
    text: String,
}

/// Returns the text on a line of its own, and a line that points to the column.
fn mark(text: &str, column: usize) -> String {
    if text.chars().any(char::is_control) {
        return String::new();
    }
    format!("\n    {text}\n    {}^", " ".repeat(column - 1))
}

impl FromStr for Expression {
    type Err = ExpressionError;

    fn from_str(text: &str) -> Result<Self, ExpressionError> {
        let mut parser = Parser { text, at: 0 };
        if text.len() > MAX_LENGTH {
            let boundaries = (0..=MAX_LENGTH).rev();
            let mut boundaries = boundaries.filter(|at| text.is_char_boundary(*at));
            parser.at = boundaries.next().unwrap_or(0);
            return Err(parser.error(format!("an expression has at most {MAX_LENGTH} bytes")));
        }
        let mut conditions = vec![parser.term()?];
        loop {
            parser.skip_spaces();
            if parser.rest().is_empty() {
                return Ok(Self { conditions });
            }
            if parser.word() != "and" {
                return Err(parser.error("expected `and`, or the end".to_owned()));
            }
            if conditions.len() == MAX_CONDITIONS {
                return Err(parser.error(format!("more than {MAX_CONDITIONS} conditions")));
            }
            parser.at += "and".len();
            conditions.push(parser.term()?);
        }
    }
}

struct Parser<'t> {
    text: &'t str,
    /// Position of the next byte.
    at: usize,
}

impl<'t> Parser<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn error(&self, message: String) -> ExpressionError {
        ExpressionError {
            column: self.text[..self.at].chars().count() + 1,
            message,
            text: self.text.to_owned(),
        }
    }

    fn skip_spaces(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// Returns the name, measure or word of the expression that begins here.
    fn word(&self) -> &'t str {
        let rest = self.rest();
        let end = rest.find(|it: char| it.is_whitespace() || "\"=!<>".contains(it));
        &rest[..end.unwrap_or(rest.len())]
    }

    fn take(&mut self, operator: &str) -> bool {
        let found = self.rest().starts_with(operator);
        self.at += if found { operator.len() } else { 0 };
        found
    }

    fn term(&mut self) -> Result<Term, ExpressionError> {
        self.skip_spaces();
        if let Some(measure) = self.measure() {
            return self.longer(measure);
        }
        let what = "an attribute, seen, wait or lock wait";
        let name = if self.rest().starts_with('"') {
            self.quoted()?
        } else {
            let word = self.word();
            if word.is_empty() || word == "and" {
                return Err(self.error(format!("expected {what}")));
            }
            self.at += word.len();
            word.to_owned()
        };
        self.skip_spaces();
        let rest = self.rest();
        if rest.starts_with(['<', '>']) {
            let message = "only seen, wait and lock wait are compared with a time".to_owned();
            return Err(self.error(message));
        }
        let condition = if self.take("!=") {
            match self.value()? {
                (start, true) => Condition::DoesNotStartWith(start),
                (value, false) => Condition::IsNot(value),
            }
        } else if self.take("=") {
            match self.value()? {
                (start, true) => Condition::StartsWith(start),
                (value, false) => Condition::Is(value),
            }
        } else {
            Condition::IsPresent
        };
        Ok(Term::Attribute(AttributeFilter { name, condition }))
    }

    /// Takes the measure that begins here, if one does.
    fn measure(&mut self) -> Option<Measure> {
        let before = self.at;
        let mut name = self.word().to_owned();
        self.at += name.len();
        if name == "lock" {
            self.skip_spaces();
            let second = self.word();
            self.at += second.len();
            name = format!("lock {second}");
        }
        let measure = Measure::ALL.into_iter().find(|it| it.name() == name);
        if measure.is_none() {
            self.at = before;
        }
        measure
    }

    fn longer(&mut self, measure: Measure) -> Result<Term, ExpressionError> {
        self.skip_spaces();
        let name = measure.name();
        let at = self.at;
        if !self.take(">") || self.rest().starts_with('=') {
            self.at = at;
            let message = format!("expected > and a time, such as {name} > 500ms");
            return Err(self.error(message));
        }
        self.skip_spaces();
        let word = self.word();
        let Some(nanoseconds) = duration(word) else {
            return Err(self.error("expected a time, such as 500ms, 2s or 1m".to_owned()));
        };
        if nanoseconds > MAX_DURATION {
            return Err(self.error("a time is at most 24h".to_owned()));
        }
        self.at += word.len();
        Ok(Term::Longer(measure, nanoseconds))
    }

    /// Takes a value. Returns true with the start of one.
    fn value(&mut self) -> Result<(String, bool), ExpressionError> {
        self.skip_spaces();
        let rest = self.rest();
        if rest.starts_with('"') {
            return Ok((self.quoted()?, false));
        }
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let word = &rest[..end];
        if word.is_empty() {
            return Err(self.error("expected a value, such as /checkout or \"\"".to_owned()));
        }
        if let Some(quote) = word.find('"') {
            self.at += quote;
            return Err(self.error("a quoted value begins with its quote".to_owned()));
        }
        self.at += end;
        Ok(match word.strip_suffix('*') {
            Some(start) => (start.to_owned(), true),
            None => (word.to_owned(), false),
        })
    }

    /// Takes a text in quotes.
    fn quoted(&mut self) -> Result<String, ExpressionError> {
        let begin = self.at;
        let mut text = String::new();
        let mut characters = self.rest().char_indices().skip(1);
        while let Some((at, character)) = characters.next() {
            match character {
                '"' => {
                    self.at += at + 1;
                    let next = self.rest().chars().next();
                    if next.is_some_and(|it| !it.is_whitespace() && !"=!<>".contains(it)) {
                        return Err(self.error("expected a space after the quote".to_owned()));
                    }
                    return Ok(text);
                }
                '\\' => match characters.next() {
                    Some((_, escaped @ ('"' | '\\'))) => text.push(escaped),
                    _ => {
                        self.at += at;
                        return Err(self.error("expected \\\" or \\\\".to_owned()));
                    }
                },
                character => text.push(character),
            }
        }
        self.at = begin;
        Err(self.error("this quote is not closed".to_owned()))
    }
}

/// Parses a number with a unit, such as `1.5s`, in nanoseconds. Digits beyond nanoseconds do not count.
fn duration(text: &str) -> Option<u64> {
    let digits = text.find(|it: char| !it.is_ascii_digit() && it != '.')?;
    let (number, unit) = text.split_at(digits);
    let (_, nanoseconds) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let fraction = &fraction[..fraction.len().min(DECIMALS)];
    let is_number = |it: &str| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) {
        return None;
    }
    // More digits than a u64 has are more than a day.
    let whole = whole
        .parse()
        .unwrap_or(u64::MAX)
        .saturating_mul(*nanoseconds);
    let unit = u128::from(*nanoseconds) * fraction.parse::<u128>().ok()?;
    let part = unit / 10_u128.pow(fraction.len() as u32);
    Some(whole.saturating_add(part as u64))
}

/// In a form that parses to the same expression.
impl Display for Expression {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.conditions.iter().enumerate() {
            if index > 0 {
                formatter.write_str(" and ")?;
            }
            match term {
                Term::Longer(measure, time) => {
                    let name = measure.name();
                    let fits = |unit: &&(&str, u64)| time.is_multiple_of(unit.1);
                    match UNITS.iter().find(fits) {
                        Some((unit, length)) => {
                            write!(formatter, "{name} > {}{unit}", time / length)?;
                        }
                        None => write!(formatter, "{name} > {}us", *time as f64 / 1e3)?,
                    }
                }
                Term::Attribute(attribute) => {
                    write!(formatter, "{}", written(&attribute.name, is_plain_name))?;
                    let is_plain = |value: &str| is_plain_value(value) && !value.ends_with('*');
                    match &attribute.condition {
                        Condition::Is(value) => write!(formatter, "={}", written(value, is_plain))?,
                        Condition::IsNot(value) => {
                            write!(formatter, "!={}", written(value, is_plain))?;
                        }
                        Condition::StartsWith(start) => write!(formatter, "={start}*")?,
                        Condition::DoesNotStartWith(start) => write!(formatter, "!={start}*")?,
                        Condition::IsPresent => {}
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns a name or a value, in quotes unless it is plain.
fn written(text: &str, is_plain: impl Fn(&str) -> bool) -> String {
    if is_plain(text) {
        return text.to_owned();
    }
    format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\""))
}

fn is_plain_value(text: &str) -> bool {
    !text.is_empty() && !text.contains(|it: char| it.is_whitespace() || it == '"')
}

fn is_plain_name(text: &str) -> bool {
    let is_word = ["and", "seen", "wait", "lock"].contains(&text);
    is_plain_value(text) && !is_word && !text.contains(['=', '!', '<', '>'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(name: &str, condition: Condition) -> Term {
        Term::Attribute(AttributeFilter {
            name: name.to_owned(),
            condition,
        })
    }

    fn value(text: &str) -> String {
        text.to_owned()
    }

    #[test]
    fn conditions_are_written_like_this() {
        let route = || attribute("http.route", Condition::Is(value("/checkout")));
        let seen = |nanoseconds| Term::Longer(Measure::Seen, nanoseconds);
        let starts = |start: &str| Condition::StartsWith(value(start));
        for (text, expected) in [
            (
                "http.route=/checkout and seen > 500ms",
                vec![route(), seen(500_000_000)],
            ),
            (
                " http.route = /checkout   and seen>1.5s ",
                vec![route(), seen(1_500_000_000)],
            ),
            (
                "wait > 2s",
                vec![Term::Longer(Measure::Wait, 2_000_000_000)],
            ),
            (
                "lock  wait > 100us",
                vec![Term::Longer(Measure::LockWait, 100_000)],
            ),
            ("seen > 1m", vec![seen(60_000_000_000)]),
            ("seen > 24h", vec![seen(86_400_000_000_000)]),
            ("seen > 0.0000000019s", vec![seen(1)]),
            ("a", vec![attribute("a", Condition::IsPresent)]),
            (
                "a and b",
                vec![
                    attribute("a", Condition::IsPresent),
                    attribute("b", Condition::IsPresent),
                ],
            ),
            ("a=b=c", vec![attribute("a", Condition::Is(value("b=c")))]),
            ("a!=b", vec![attribute("a", Condition::IsNot(value("b")))]),
            ("a=/b*", vec![attribute("a", starts("/b"))]),
            ("a=*", vec![attribute("a", starts(""))]),
            (
                "a!=/b*",
                vec![attribute("a", Condition::DoesNotStartWith(value("/b")))],
            ),
            (
                r#"a="x and \"y\" \\ *""#,
                vec![attribute("a", Condition::Is(value(r#"x and "y" \ *"#)))],
            ),
            (r#"a="""#, vec![attribute("a", Condition::Is(value("")))]),
            (
                r#""wait"=1 and "and""#,
                vec![
                    attribute("wait", Condition::Is(value("1"))),
                    attribute("and", Condition::IsPresent),
                ],
            ),
            ("lock=1", vec![attribute("lock", Condition::Is(value("1")))]),
            (
                "android and wait.time=and",
                vec![
                    attribute("android", Condition::IsPresent),
                    attribute("wait.time", Condition::Is(value("and"))),
                ],
            ),
        ] {
            let parsed: Expression = text.parse().unwrap();
            assert_eq!(parsed.conditions, expected, "{text}");
            assert_eq!(parsed.to_string().parse(), Ok(parsed), "{text}");
        }
    }

    #[test]
    fn an_error_points_at_the_column() {
        for (text, column, message) in [
            ("", 1, "expected an attribute, seen, wait or lock wait"),
            ("  and", 3, "expected an attribute, seen, wait or lock wait"),
            (
                "a and ",
                7,
                "expected an attribute, seen, wait or lock wait",
            ),
            ("=b", 1, "expected an attribute, seen, wait or lock wait"),
            ("a=", 3, "expected a value, such as /checkout or \"\""),
            ("a b", 3, "expected `and`, or the end"),
            ("a=b or c=d", 5, "expected `and`, or the end"),
            ("Größe=ä x", 9, "expected `and`, or the end"),
            (
                "a > 5s",
                3,
                "only seen, wait and lock wait are compared with a time",
            ),
            ("seen", 5, "expected > and a time, such as seen > 500ms"),
            ("seen=5s", 5, "expected > and a time, such as seen > 500ms"),
            (
                "seen >= 5s",
                6,
                "expected > and a time, such as seen > 500ms",
            ),
            (
                "lock wait < 5s",
                11,
                "expected > and a time, such as lock wait > 500ms",
            ),
            ("wait > ", 8, "expected a time, such as 500ms, 2s or 1m"),
            ("wait > 5", 8, "expected a time, such as 500ms, 2s or 1m"),
            ("wait > -5s", 8, "expected a time, such as 500ms, 2s or 1m"),
            ("wait > 5 s", 8, "expected a time, such as 500ms, 2s or 1m"),
            (
                "wait > 1..5s",
                8,
                "expected a time, such as 500ms, 2s or 1m",
            ),
            ("wait > .s", 8, "expected a time, such as 500ms, 2s or 1m"),
            ("wait > 5d", 8, "expected a time, such as 500ms, 2s or 1m"),
            ("wait > 25h", 8, "a time is at most 24h"),
            (
                "wait > 99999999999999999999999h",
                8,
                "a time is at most 24h",
            ),
            ("a=\"b", 3, "this quote is not closed"),
            (r#"a="\n""#, 4, "expected \\\" or \\\\"),
            ("a=\"b\"c", 6, "expected a space after the quote"),
            ("a=b\"c\"", 4, "a quoted value begins with its quote"),
        ] {
            let error = text.parse::<Expression>().unwrap_err();
            assert_eq!(
                (error.column, &error.message[..]),
                (column, message),
                "{text}"
            );
        }
        let error = "ä=1 or b".parse::<Expression>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "column 5: expected `and`, or the end\n    ä=1 or b\n        ^"
        );
        let error = "a\n=\x1b[1m".parse::<Expression>();
        assert!(error.is_ok());
        let error = "a\nb\x1b[1m".parse::<Expression>().unwrap_err();
        assert_eq!(error.to_string(), "column 3: expected `and`, or the end");
    }

    #[test]
    fn length_and_number_of_conditions_are_bounded() {
        let long = "ä".repeat(MAX_LENGTH);
        assert_eq!(long.parse::<Expression>().unwrap_err().column, 2049);
        let terms = |number| vec!["a"; number].join(" and ").parse::<Expression>();
        assert_eq!(terms(MAX_CONDITIONS).unwrap().conditions.len(), 32);
        let error = terms(MAX_CONDITIONS + 1).unwrap_err();
        assert_eq!(error.message, "more than 32 conditions");
    }
}
