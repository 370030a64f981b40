//! Output to pipes and terminals.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use nix::pty::{Winsize, openpty};

use crate::run::{command, otelctx};
use crate::target::Target;

#[test]
fn a_closed_pipe_is_no_error() {
    let target = Target::start("shop");
    for arguments in [
        vec!["ps".to_owned()],
        vec!["dump".into(), target.pid().to_string()],
        vec!["check".into(), target.pid().to_string(), "--json".into()],
    ] {
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        let output = command(&arguments).stdout(write).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(
            !stderr.contains("panicked") && !stderr.contains("written"),
            "{stderr}"
        );
    }
}

#[test]
fn an_answer_that_can_not_be_written_is_an_error() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = command(&["ps", "--json"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("cannot write to standard output"),
        "{stderr}"
    );
}

/// Returns the lines that the command shows on a terminal of 60 columns.
fn on_terminal(arguments: &[&str], no_color: Option<&str>) -> Vec<String> {
    on_terminal_with(command(arguments), no_color)
}

fn on_terminal_with(mut command: Command, no_color: Option<&str>) -> Vec<String> {
    let size = Winsize {
        ws_row: 24,
        ws_col: 60,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let pty = openpty(&size, None).unwrap();
    command.stdout(pty.slave).stderr(Stdio::null());
    command.env("TERM", "xterm").env_remove("NO_COLOR");
    if let Some(value) = no_color {
        command.env("NO_COLOR", value);
    }
    let mut child = command.spawn().unwrap();
    // The child's end is now the only one: reading ends when it does.
    drop(command);
    let mut shown = Vec::new();
    // The end shows as EIO (tty_ioctl(4) does not tell, drivers/tty/pty.c does).
    let _ = File::from(pty.master).read_to_end(&mut shown);
    assert!(child.wait().unwrap().success());
    let shown = String::from_utf8(shown).unwrap();
    shown.split("\r\n").map(str::to_owned).collect()
}

#[test]
fn lines_end_where_the_terminal_does_and_never_in_a_pipe() {
    let target = Target::start("shop");
    let pid = target.pid().to_string();
    let lines = on_terminal(&["dump", &pid], Some("1"));
    assert!(
        lines.iter().all(|line| line.chars().count() <= 60),
        "{lines:#?}"
    );
    // What has no room in its row follows below it.
    let worker = lines
        .iter()
        .position(|line| line.contains("worker-1"))
        .unwrap();
    assert!(lines[worker].ends_with('…'), "{lines:#?}");
    assert_eq!(
        lines[worker + 1].trim_start(),
        "http.route=/cart  http.request.method=GET"
    );
    // The resource flows over several lines, with nothing lost.
    let start = lines
        .iter()
        .position(|line| line.starts_with("  resource  "))
        .unwrap();
    let resource: Vec<&str> = lines[start..]
        .iter()
        .enumerate()
        .take_while(|(index, line)| *index == 0 || line.starts_with("            "))
        .flat_map(|(_, line)| line.trim_start_matches("  resource").split("  "))
        .filter(|item| !item.trim().is_empty())
        .map(str::trim)
        .collect();
    assert_eq!(
        resource,
        [
            "service.name=shop",
            "telemetry.sdk.language=rust",
            "replicas=3",
            "ratio=0.5",
            "canary=true",
            "digest=0xdead",
            "zones=[a, b]",
            "limits={cpu=2}"
        ]
    );
    let piped = otelctx(&["dump", &pid]).expect(0).stdout;
    assert!(!piped.contains('…'));
    assert!(piped.lines().any(|line| line.len() > 60));
}

#[test]
fn findings_are_broken_between_words_and_nothing_is_cut() {
    let target = Target::start("shop");
    let pid = target.pid().to_string();
    let lines = on_terminal(&["check", &pid], Some("1"));
    let findings = otelctx(&["check", &pid]).expect(0).stdout;
    let words = |text: &str| {
        text.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(words(&lines.join("\n")), words(&findings));
    // Only a word that is longer itself goes beyond the terminal's width.
    let fits = |line: &String| line.chars().count() <= 60 || line.split(' ').count() <= 3;
    assert!(lines.iter().all(fits), "{lines:#?}");
    assert!(lines.len() > findings.lines().count(), "{lines:#?}");
}

#[test]
fn colours_are_for_terminals_and_can_be_refused() {
    let target = Target::start("shop");
    let pid = target.pid().to_string();
    let has_colours = |lines: &[String]| lines.iter().any(|line| line.contains('\x1b'));
    assert!(has_colours(&on_terminal(&["check", &pid], None)));
    assert!(has_colours(&on_terminal(&["check", &pid], Some(""))));
    assert!(!has_colours(&on_terminal(&["check", &pid], Some("1"))));
    assert!(!otelctx(&["check", &pid]).expect(0).stdout.contains('\x1b'));
}

/// A terminal of 60 columns whose user says that it has 80.
#[test]
fn a_report_fits_eighty_columns_with_whole_trace_ids() {
    let scratch = crate::run::Scratch::new("eighty");
    crate::questions::write(&scratch.folder().join("profile.otlp"), 200);
    let lines = |arguments: &[&str]| {
        let mut report = command(arguments);
        report
            .current_dir(scratch.folder())
            .env("COLUMNS", "80")
            .env("TZ", "UTC");
        on_terminal_with(report, Some("1"))
    };
    for arguments in [
        &["report"][..],
        &["report", "--traces"],
        &["report", "--tree"],
    ] {
        let lines = lines(arguments);
        let table = lines.iter().filter(|line| line.starts_with("  "));
        let widest = table.map(|line| line.chars().count()).max();
        assert!(widest.is_some_and(|widest| widest <= 80), "{lines:#?}");
        assert!(!lines.iter().any(|line| line.ends_with('…')), "{lines:#?}");
    }
    let lines = lines(&["report", "--traces", "-n", "1"]);
    assert_eq!(
        lines[3],
        "     CPU  FIRST SEEN       FOR  TRACE                             VALUE"
    );
    let row = format!("  100 ms  22:13:20    100.0 ms  {:032x}  /cart", 1);
    assert_eq!(lines[4], row);
}
