//! Names and values that a process chose in order to harm a terminal.

use crate::run::{Answer, otelctx};
use crate::target::{EVIL, SPAN, TRACE, Target};

/// The same as the command shows it.
const TAMED: &str = "a\\u{1b}]0;x\\u{7}\\u{9b}31m\\r\\n\\u{7f}\\u{202e}b";

fn assert_harmless(answer: &Answer) {
    for text in [&answer.stdout, &answer.stderr] {
        let harmful = text
            .chars()
            .find(|it| *it != '\n' && (it.is_control() || *it == '\u{202e}'));
        assert_eq!(harmful, None, "{text:?}");
    }
}

#[test]
fn no_control_character_reaches_a_terminal() {
    let target = Target::start("hostile");
    let pid = target.pid().to_string();

    let dump = otelctx(&["dump", &pid]).expect(0);
    assert_harmless(&dump);
    assert!(
        dump.stdout
            .starts_with(&format!("{TAMED}  pid {pid}  {TAMED}\n")),
        "{dump:?}"
    );
    assert!(
        dump.stdout.contains(&format!("  {TAMED}=[{TAMED}]\n")),
        "{dump:?}"
    );
    assert!(
        dump.stdout
            .contains(&format!("{TRACE}  {SPAN}  {TAMED}={TAMED}\n")),
        "{dump:?}"
    );

    let ps = otelctx(&["ps"]).expect(0);
    assert_harmless(&ps);
    assert!(
        ps.stdout.contains(&format!("  {TAMED}  {TAMED}  ")),
        "{ps:?}"
    );

    assert_harmless(&otelctx(&["check", &pid]).expect(0));
    let file = otelctx(&["check", &format!("/nowhere/{EVIL}")]).expect(2);
    assert_harmless(&file);
    assert!(file.stderr.contains(TAMED), "{file:?}");
}

#[test]
fn json_is_harmless_and_tells_the_values_as_they_are() {
    let target = Target::start("hostile");
    let pid = target.pid().to_string();
    let dump = otelctx(&["dump", &pid, "--json"]).expect(0);
    assert_harmless(&dump);
    let answer = dump.json();
    let resource = &answer["process_context"]["resource"];
    assert_eq!(resource["service.name"], EVIL);
    assert_eq!(resource[EVIL][0], EVIL);
    let threads = answer["threads"].as_array().unwrap();
    let worker = threads
        .iter()
        .find(|it| it["name"] == "e\x1b[31m\n\u{9b}")
        .unwrap();
    assert_eq!(worker["context"]["attributes"][EVIL], EVIL);

    let ps = otelctx(&["ps", "--json"]).expect(0);
    assert_harmless(&ps);
    assert!(
        ps.json()["processes"]
            .as_array()
            .unwrap()
            .iter()
            .any(|row| row["service"] == EVIL)
    );
}
