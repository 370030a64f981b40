//! The line that `otelctx record` shows on a terminal while it records.

use std::fs::File;
use std::io::Read;
use std::process::Stdio;

use nix::pty::{Winsize, openpty};

use crate::run::{Scratch, command, given_time, otelctx};
use crate::target::Target;

const ROWS: u16 = 24;
const COLUMNS: u16 = 120;
const LINE: &str = "recording: ";

/// Returns what the terminal showed in turn, and at the end. Standard output is a pipe.
fn on_terminal(columns: u16, arguments: &[&str]) -> (Vec<String>, String) {
    let size = Winsize {
        ws_row: ROWS,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let pty = openpty(&size, None).unwrap();
    let mut command = command(arguments);
    command.stdout(Stdio::null()).stderr(pty.slave);
    let mut child = command.spawn().unwrap();
    // The child's end is now the only one: reading ends when it does.
    drop(command);
    let mut screen = vt100::Parser::new(ROWS, columns, 0);
    let mut shown = Vec::new();
    let mut bytes = [0; 4096];
    let mut terminal = File::from(pty.master);
    // The end shows as EIO. A line may come in pieces: what counts is what stands there before the next
    // one is begun.
    while let Ok(read @ 1..) = terminal.read(&mut bytes) {
        for byte in &bytes[..read] {
            if *byte == b'\r' {
                shown.push(screen.screen().contents());
            }
            screen.process(&[*byte]);
        }
    }
    assert!(child.wait().unwrap().success());
    (shown, screen.screen().contents())
}

/// The samples that a line tells of.
fn samples(line: &str) -> Option<usize> {
    let (_, rest) = line.split_once(LINE)?.1.split_once(" · ")?;
    let number = rest.split_once(" samples, ")?.0.replace(',', "");
    Some(number.parse().unwrap())
}

#[test]
fn a_line_on_the_terminal_counts_and_goes() {
    let target = Target::start("busy");
    let pid = target.pid().to_string();
    let scratch = Scratch::new("progress");
    let path = scratch.path("a.otlp");
    given_time(|seconds| {
        let (shown, last) =
            on_terminal(COLUMNS, &["record", "-p", &pid, "-d", seconds, "-o", &path]);
        assert!(!last.contains(LINE), "{last}");
        let counted: Vec<usize> = shown.iter().filter_map(|text| samples(text)).collect();
        assert!(counted.is_sorted(), "{shown:#?}");
        match (counted.first(), counted.last()) {
            (Some(first), Some(last)) if first < last => Ok(()),
            _ => Err(shown),
        }
    });
    // What is said otherwise stays.
    let (_, last) = on_terminal(
        COLUMNS,
        &["record", "-p", &pid, "-d", "0.3", "-o", &path, "--ptrace"],
    );
    assert!(last.contains("stops threads briefly"), "{last}");
    assert!(!last.contains(LINE), "{last}");
}

/// A line that the terminal wrapped was left behind each time that it changed.
#[test]
fn a_narrow_terminal_shows_one_line_too() {
    let target = Target::start("busy");
    let pid = target.pid().to_string();
    let scratch = Scratch::new("progress-narrow");
    let path = scratch.path("a.otlp");
    let arguments = ["record", "-p", &pid, "-d", "1.2", "-o", &path];
    let (shown, last) = on_terminal(30, &arguments);
    let lines = |text: &String| text.matches(LINE).count();
    assert!(shown.iter().any(|text| lines(text) == 1), "{shown:#?}");
    assert!(shown.iter().all(|text| lines(text) < 2), "{shown:#?}");
    assert!(!last.contains(LINE), "{last}");
}

#[test]
fn no_line_goes_elsewhere_than_to_a_terminal() {
    let target = Target::start("busy");
    let pid = target.pid().to_string();
    let scratch = Scratch::new("progress-pipe");
    let path = scratch.path("a.otlp");
    let answer = otelctx(&["record", "-p", &pid, "-d", "0.6", "-o", &path]).expect(0);
    assert!(!answer.stderr.contains(LINE), "{answer:?}");
    assert!(!answer.stderr.contains(['\r', '\x1b']), "{answer:?}");
}
