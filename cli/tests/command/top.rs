//! `otelctx top`, on a terminal and without one.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::libc;
use nix::pty::{Winsize, grantpt, openpty, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{Termios, tcgetattr};
use nix::unistd::Pid;
use serde_json::Value;

use crate::run::{Answer, Scratch, command, otelctx, with_default_signals};
use crate::target::{EVIL, SPAN, TRACE, Target};

/// A program on a terminal of its own.
pub(crate) struct Session {
    child: Child,
    keyboard: File,
    slave: OwnedFd,
    /// Modes of the terminal before the program was started.
    before: Termios,
    screen: Arc<Mutex<vt100::Parser>>,
    /// Everything that was written to it.
    written: Arc<Mutex<Vec<u8>>>,
}

fn size(columns: u16, rows: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

impl Session {
    pub(crate) fn start(mut command: Command, columns: u16, rows: u16) -> Self {
        let pty = openpty(&size(columns, rows), None).unwrap();
        let before = tcgetattr(&pty.slave).unwrap();
        let slave = || Stdio::from(pty.slave.try_clone().unwrap());
        command.stdin(slave()).stdout(slave()).stderr(slave());
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
        with_default_signals(&mut command);
        // SAFETY: between fork and exec only setsid(2) and ioctl(2) are called.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        drop(command);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let (mut output, for_thread) =
            (File::from(pty.master.try_clone().unwrap()), screen.clone());
        let written = Arc::new(Mutex::new(Vec::new()));
        let all = written.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The end shows as EIO.
            while let Ok(read @ 1..) = output.read(&mut bytes) {
                for_thread.lock().unwrap().process(&bytes[..read]);
                all.lock().unwrap().extend(&bytes[..read]);
            }
        });
        Self {
            child,
            keyboard: pty.master.into(),
            slave: pty.slave,
            before,
            screen,
            written,
        }
    }

    pub(crate) fn top(target: &Target, arguments: &[&str], columns: u16, rows: u16) -> Self {
        let pid = target.pid().to_string();
        let all = [&["top", "-p", &pid, "--interval", "0.2"], arguments].concat();
        Self::start(command(&all), columns, rows)
    }

    pub(crate) fn shows(&self) -> Vec<String> {
        let parser = self.screen.lock().unwrap();
        let width = parser.screen().size().1;
        parser.screen().rows(0, width).collect()
    }

    /// Waits until `found` accepts the screen.
    pub(crate) fn wait(&self, what: &str, found: impl Fn(&[String]) -> bool) -> Vec<String> {
        let end = Instant::now() + otelctx_fixtures::HANG_TIMEOUT;
        loop {
            let shown = self.shows();
            if found(&shown) {
                return shown;
            }
            assert!(Instant::now() < end, "{what}: {shown:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn wait_for(&self, text: &str) -> Vec<String> {
        self.wait(text, |lines| lines.iter().any(|line| line.contains(text)))
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    fn resize(&self, columns: u16, rows: u16) {
        let size = size(columns, rows);
        self.screen
            .lock()
            .unwrap()
            .screen_mut()
            .set_size(rows, columns);
        // SAFETY: TIOCSWINSZ reads one winsize, and `size` is one.
        let answer =
            unsafe { libc::ioctl(self.keyboard.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
        assert_eq!(answer, 0);
    }

    /// Waits for its end, and holds that the terminal is as it was before.
    pub(crate) fn ends(mut self) {
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{:#?}", self.shows());
        assert_eq!(tcgetattr(&self.slave).unwrap(), self.before);
        self.wait("the screen is given back", |_| {
            let parser = self.screen.lock().unwrap();
            !parser.screen().alternate_screen() && !parser.screen().hide_cursor()
        });
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Samples by eBPF where that is permitted, and by ptrace.
#[test]
fn a_thread_is_shown_with_its_route_and_trace_and_the_terminal_is_given_back() {
    let target = Target::start("busy");
    for method in [None, Some("--ptrace")] {
        let arguments: Vec<&str> = method.into_iter().collect();
        let mut session = Session::top(&target, &arguments, 140, 20);
        let lines = session.wait_for(TRACE);
        let row = lines.iter().find(|line| line.contains(TRACE)).unwrap();
        for part in ["at work", "busy shop", "/cart", SPAN] {
            assert!(row.contains(part), "{part}: {lines:#?}");
        }
        assert_eq!(
            lines
                .iter()
                .any(|line| line.contains("ptrace was requested")),
            method.is_some()
        );
        assert!(lines[1].starts_with("http.route  /cart "), "{lines:#?}");
        // Opened: its functions as a tree, its trace, and what it is.
        session.press("/at work\r\r");
        session.wait("its functions", |lines| {
            let is_own = |line: &String| line.contains("{closure#0}  …/target/main.rs:");
            let is_tree = lines[3].contains("  SELF  FUNCTION") && lines[4..].iter().any(is_own);
            lines[2].starts_with("at work: ") && is_tree
        });
        session.press("/trace");
        session.wait("its trace alone", |lines| {
            let has = |text: &str| lines.iter().any(|line| line.contains(text));
            has(&format!("  trace       {TRACE}")) && !has("main.rs:") && has("search: trace")
        });
        session.press("\x1b\x1b[F");
        session.wait_for("  http.route  /cart");
        session.press("\x1b");
        session.wait("the table", |lines| lines[2].starts_with("CPU %  "));
        session.press("\x1b\x1b");
        session.press("g");
        session.wait_for("g by http.route");
        // On a busy machine a thread may have to wait for longer than the window is.
        session.wait("a row of each", |lines| {
            let rows = lines.iter().skip_while(|it| !it.starts_with("CPU %  "));
            let rows: Vec<&String> = rows.skip(1).collect();
            let has = |text: &str| rows.iter().any(|row| row.contains(text));
            has("/cart") && has("(none)")
        });
        session.press("?");
        session.wait_for("pause the view");
        session.press("x ");
        session.wait_for("PAUSED");
        session.resize(40, 10);
        session.wait("the smaller size", |lines| {
            lines[9].starts_with("q quit") && lines[0].contains('…')
        });
        session.press("q");
        session.ends();
    }
}

#[test]
fn a_signal_ends_it_and_gives_the_terminal_back() {
    let target = Target::start("busy");
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let session = Session::top(&target, &[], 80, 24);
        session.wait_for("at work");
        kill(Pid::from_raw(session.child.id() as i32), signal).unwrap();
        session.ends();
    }
    let mut session = Session::top(&target, &[], 80, 24);
    session.wait_for("at work");
    session.press("\x03");
    session.ends();
}

/// It is a job of a shell, which itself changes nothing about the terminal's modes.
#[test]
fn it_can_be_stopped_and_goes_on() {
    let target = Target::start("busy");
    let script = "set -m; echo before=$(stty -g)=; \"$0\" top -p $1; \
                  echo; echo stopped=$(stty -g)=; read line; fg; echo after=$(stty -g)=; read line";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_otelctx")]);
    shell.arg(target.pid().to_string());
    let mut session = Session::start(shell, 140, 24);
    session.wait_for(TRACE);
    let modes = |lines: &[String], name: &str| {
        let text = lines.concat();
        let start = text.find(name).unwrap_or_else(|| panic!("{name}: {text}")) + name.len();
        text[start..].split('=').next().unwrap().to_owned()
    };
    session.press("\x1a");
    let lines = session.wait_for("stopped=");
    let before = modes(&lines, "before=");
    assert_eq!(modes(&lines, "stopped="), before);
    assert!(before.len() > 20, "{before}");
    session.press("\r");
    session.wait_for(TRACE);
    session.press("q");
    let lines = session.wait_for("after=");
    assert_eq!(modes(&lines, "after="), before);
    session.press("\r");
    session.ends();
}

#[test]
fn names_from_a_target_do_not_reach_the_terminal_as_they_are() {
    let target = Target::start("hostile_busy");
    let mut session = Session::top(&target, &["--by", EVIL], 200, 24);
    let lines = session.wait_for(TRACE);
    // The thread's name, the service, the attribute.
    let row = lines.iter().find(|line| line.contains(TRACE)).unwrap();
    for name in ["e\\u{1b}[31m", "a\\u{1b}]0;x"] {
        assert!(row.contains(name), "{name}: {lines:#?}");
    }
    session.press("\rgg");
    session.wait_for("g by trace");
    session.press("q");
    let written = session.written.clone();
    session.ends();
    let written = String::from_utf8(written.lock().unwrap().clone()).unwrap();
    for raw in ["\x1b]", "\x1b[31m\n", "\u{9b}", "\x07", "\x7f", "\u{202e}"] {
        assert!(!written.contains(raw), "{raw:?}: {written:?}");
    }
}

/// Waits for the end of a process that should come by itself.
fn await_end(child: &mut Child) -> Option<i32> {
    let end = Instant::now() + otelctx_fixtures::HANG_TIMEOUT;
    while Instant::now() < end {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    panic!("it goes on");
}

#[test]
fn it_ends_when_the_terminal_goes_away() {
    let target = Target::start("busy");
    // While it waits, and at any moment of its drawing.
    for interval in ["600"].into_iter().chain(["0.1"; 10]) {
        assert_eq!(end_without_terminal(&target, interval), Some(0));
    }
}

/// Starts the view on a terminal that disappears; returns the exit code.
fn end_without_terminal(target: &Target, interval: &str) -> Option<i32> {
    // openpty(3) lets the children of other tests inherit the terminal, which then does not go away.
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let mut screen = posix_openpt(flags).unwrap();
    grantpt(&screen).unwrap();
    unlockpt(&screen).unwrap();
    let size = size(80, 24);
    // SAFETY: the structure is valid during the call.
    let set = unsafe { libc::ioctl(screen.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    assert_eq!(set, 0);
    let slave = File::options()
        .read(true)
        .write(true)
        .custom_flags(OFlag::O_NOCTTY.bits())
        .open(ptsname_r(&screen).unwrap())
        .unwrap();
    let slave = || Stdio::from(slave.try_clone().unwrap());
    // No session of its own: nobody tells it by a signal.
    let mut child = command(&["top", "-p", &target.pid().to_string(), "-i", interval])
        .env("TERM", "xterm")
        .stdin(slave())
        .stdout(slave())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut shown = Vec::new();
    while !String::from_utf8_lossy(&shown).contains("CPU %") {
        let mut bytes = [0; 4096];
        let read = screen.read(&mut bytes).unwrap();
        shown.extend(&bytes[..read]);
    }
    drop(screen);
    await_end(&mut child)
}

#[test]
fn a_command_is_sampled_from_its_start_and_terminated_with_the_view() {
    let scratch = Scratch::new("top-command");
    let ready = scratch.path("ready");
    let program = format!(
        "trap 'echo ended > {ready}; exit 9' TERM; \
         echo written; echo complained >&2; while :; do :; done"
    );
    let mut top = command(&["top", "--interval", "0.2", "--", "sh", "-c", &program]);
    top.env_remove("NO_COLOR");
    let mut session = Session::start(top, 100, 20);
    let lines = session.wait("its row", |lines| {
        lines
            .iter()
            .any(|line| line.contains(" sh ") && line.contains(" [sh] "))
    });
    assert!(!lines.concat().contains("written"), "{lines:#?}");
    session.press("q");
    session.ends();
    assert_eq!(std::fs::read_to_string(&ready).unwrap(), "ended\n");
    // What ends by itself: its status, and nothing of what it writes.
    let program = "echo written; echo complained >&2; read line || exit 7";
    let answer = otelctx(&["top", "--json", "--", "sh", "-c", program]).expect(7);
    assert!(!answer.stdout.contains("written"), "{answer:?}");
    assert_eq!(
        answer.stderr.lines().last(),
        Some("otelctx: sh has ended with status 7")
    );
    assert!(!answer.stderr.contains("complained"), "{answer:?}");
    let answer = otelctx(&["top", "--", "/no/such/program"]).expect(2);
    assert!(
        answer.stderr.contains("cannot start /no/such/program: "),
        "{answer:?}"
    );
    let answer = otelctx(&["top", "-p", "1", "--", "true"]).expect(2);
    assert!(answer.stderr.contains("cannot be used with"), "{answer:?}");
}

fn pictures(arguments: &[&str]) -> Vec<Value> {
    let answer = otelctx(&[&["top", "--json"], arguments].concat()).expect(0);
    let value = |line: &str| serde_json::from_str(line).unwrap();
    answer.stdout.lines().map(value).collect()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// The rows of all tables until there are some.
fn rows_of(arguments: &[&str]) -> Vec<Value> {
    let mut all = (0..60).map(|_| {
        let pictures = pictures(&[&["--iterations", "1", "-i", "0.5"], arguments].concat());
        pictures[0]["rows"].as_array().unwrap().clone()
    });
    all.find(|rows| !rows.is_empty())
        .expect("something has run")
}

#[test]
fn rows_are_selected_by_function_and_grouped_by_levels() {
    let target = Target::start("busy");
    let pid = target.pid().to_string();
    let rows = rows_of(&[
        "-p",
        &pid,
        "--by",
        "service,http.route",
        "--function",
        "BUSY",
    ]);
    let cart = rows.iter().find(|row| row["values"][1] == "/cart");
    let cart = cart.unwrap_or(&rows[0]);
    assert_eq!(cart["values"][0], "busy shop", "{rows:#?}");
    assert_eq!(
        cart["name"],
        format!("busy shop  {}", cart["values"][1].as_str().unwrap())
    );
    let rows = rows_of(&["-p", &pid, "--by", "function", "--language", "native"]);
    assert!(
        rows.iter().any(|row| row["name"] == "{closure#0}"),
        "{rows:#?}"
    );
    // Of no such function, no sample is shown.
    let none = [
        "-p",
        &pid,
        "--iterations",
        "1",
        "--function",
        "no such function",
    ];
    let none = pictures(&none);
    assert_eq!(none[0]["samples"], 0);
    assert_eq!(none[0]["rows"], Value::Array(Vec::new()));
}

/// The same as in recordings: a name that the process has not published is in parentheses, and marked in JSON.
#[test]
fn a_service_that_only_the_environment_names_is_marked() {
    let loops = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done";
    let command = ["--", "env", "OTEL_SERVICE_NAME=shop", "sh", "-c", loops];
    let group = ["top", "--group", "process", "-i", "0.2"];
    let table = otelctx(&[&group[..], &command].concat()).expect(0).stdout;
    assert!(table.contains(" (shop) "), "{table}");
    assert!(!table.contains(" shop "), "{table}");
    let all = pictures(&[&group[1..], &command].concat());
    let rows = all.iter().flat_map(|it| it["rows"].as_array().unwrap());
    let named: Vec<&Value> = rows.filter(|row| row["service"] == "shop").collect();
    assert!(!named.is_empty(), "{all:#?}");
    for row in named {
        assert_eq!(row["service_detected"], true, "{row:#}");
        assert_eq!(row["service_is_command"], Value::Null, "{row:#}");
    }
    // Without any service's name, the command's is shown as such.
    let command = ["--", "sh", "-c", loops];
    let table = otelctx(&[&group[..], &command].concat()).expect(0).stdout;
    assert!(table.contains(" [sh] "), "{table}");
    let all = pictures(&[&group[1..], &command].concat());
    let rows = all.iter().flat_map(|it| it["rows"].as_array().unwrap());
    let named: Vec<&Value> = rows.filter(|row| row["service"] == "sh").collect();
    assert!(!named.is_empty(), "{all:#?}");
    for row in named {
        assert_eq!(row["service_is_command"], true, "{row:#}");
        assert_eq!(row["name"], "[sh]", "{row:#}");
    }
}

#[test]
fn without_a_terminal_it_prints_a_picture_each_interval() {
    let target = Target::start("busy");
    let pid = target.pid().to_string();
    let picture = |group: &str| {
        let arguments = [
            "-p",
            &pid,
            "--iterations",
            "2",
            "-i",
            "0.5",
            "--group",
            group,
        ];
        let all = pictures(&arguments);
        assert_eq!(all.len(), 2);
        all.into_iter().nth(1).unwrap()
    };
    for group in ["thread", "attribute", "trace", "process", "function"] {
        let picture = picture(group);
        assert_eq!(picture["by"], group);
        let rows = picture["rows"].as_array().unwrap();
        // Every sample is in one row, and a share is samples × period / time.
        let samples: u64 = rows.iter().map(|row| number(&row["samples"])).sum();
        assert_eq!(samples, number(&picture["samples"]), "{picture:#}");
        for row in rows {
            let busy = number(&row["samples"]) * number(&picture["period_ns"]);
            let share = busy as f64 / number(&picture["wall_ns"]) as f64;
            assert!(
                (row["cpu"].as_f64().unwrap() - share).abs() < 1e-9,
                "{row:#}"
            );
        }
    }
    // On a busy machine a thread may have to wait for longer than an interval.
    let with_both = |group: &str, names: [Value; 2]| {
        let named = |rows: &[Value], name: &Value| rows.iter().any(|row| row["name"] == *name);
        let all_named = |rows: &[Value]| names.iter().all(|name| named(rows, name));
        let mut pictures = (0..60).map(|_| picture(group));
        let found = pictures.find(|picture| all_named(picture["rows"].as_array().unwrap()));
        found.unwrap_or_else(|| panic!("{names:?}"))
    };
    let by_thread = with_both("thread", ["at work".into(), "at leisure".into()]);
    let rows = by_thread["rows"].as_array().unwrap();
    let find = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap();
    let (at_work, at_leisure) = (find("at work"), find("at leisure"));
    assert_eq!(at_work["trace_id"], TRACE);
    assert_eq!(at_work["span_id"], SPAN);
    assert_eq!(at_work["value"], "/cart");
    assert_eq!(at_work["service"], "busy shop");
    assert_eq!(number(&at_work["pid"]), target.pid() as u64);
    assert_eq!(at_leisure["trace_id"], Value::Null);
    let by_route = with_both("attribute", ["/cart".into(), Value::Null]);
    let rows = by_route["rows"].as_array().unwrap();
    assert_eq!(number(&by_route["with_context"]), {
        let cart = rows.iter().find(|row| row["name"] == "/cart").unwrap();
        number(&cart["samples"])
    });
    let none = rows.iter().find(|row| row["name"].is_null()).unwrap();
    assert_eq!(none["why_no_name"], "none");
    // As a table, and with what was chosen alone.
    let table = || {
        let arguments = ["top", "-p", &pid, "--iterations", "1", "--trace", TRACE];
        otelctx(&arguments).expect(0).stdout
    };
    let table = (0..60).map(|_| table()).find(|it| it.lines().count() > 3);
    let table = table.expect("the thread has run");
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[1].starts_with("CPU %"), "{table}");
    assert!(
        lines[2].contains("at work") && lines[2].ends_with(SPAN),
        "{table}"
    );
    assert!(!table.contains("at leisure"), "{table}");
    let filtered = [
        "-p",
        &pid,
        "--iterations",
        "1",
        "--filter",
        "service.name=another",
    ];
    assert_eq!(pictures(&filtered)[0]["samples"], 0);
}

#[test]
fn it_ends_with_its_targets_and_says_what_it_cannot_inspect() {
    let target = Target::start("busy");
    let pid = target.pid().to_string();
    let mut child = command(&["top", "-p", &pid, "-i", "0.2"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut [0]).unwrap();
    drop(target);
    output.read_to_end(&mut Vec::new()).unwrap();
    let answer = Answer::of(child.wait_with_output().unwrap()).expect(0);
    let said = format!("otelctx: process {pid} has ended");
    assert_eq!(answer.stderr.lines().last(), Some(&*said), "{answer:?}");
    let answer = otelctx(&["top", "-p", "2147483647", "--iterations", "1"]).expect(2);
    assert!(answer.stderr.contains("does not exist"), "{answer:?}");
    assert_eq!(answer.stdout, "");
    // kthreadd, and a thread in place of its process.
    let answer = otelctx(&["top", "-p", "2", "--iterations", "1"]).expect(2);
    assert!(answer.stderr.contains("kernel"), "{answer:?}");
    let target = Target::start("busy");
    let pid = target.pid().to_string();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut ids = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
    let tid = ids.find(|tid| *tid != pid).unwrap();
    let answer = otelctx(&["top", "-p", &tid, "--iterations", "1", "-i", "0.1"]).expect(0);
    let said = format!("{tid} is a thread of process {pid}; the whole process is sampled");
    assert!(answer.stderr.contains(&said), "{answer:?}");
    // On a terminal it is said when that has been given back, unless the picture is held.
    let mut session = Session::top(&target, &[], 100, 20);
    session.wait_for("at work");
    session.press(" ");
    session.wait_for("PAUSED");
    drop(target);
    session.press("gG?");
    session.wait_for("pause the view");
    session.press("x ");
    session.wait_for(&format!("process {pid} has ended"));
    session.ends();
    let answer = otelctx(&["top", "-p", "1", "--all"]).expect(2);
    assert!(answer.stderr.contains("cannot be used with"), "{answer:?}");
}
