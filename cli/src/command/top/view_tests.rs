use otelctx_profile::sample::{Catalog, Counts, ModuleFiles};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::super::names::Names;
use super::super::opened::{LineKind, Open, Source};
use super::super::rows::{By, Key, hide_idle, rows, sort, sum};
use super::super::time::{Kinds, Present};
use super::super::times_by_value;
use super::super::window::tests::{add, add_wait, context, thread};
use super::super::window::{Context, Thread, Window};
use super::*;

const ROUTE: &str = "http.route";

/// Ten seconds of a shop: 99 samples per second, of which 500 met a thread of it.
fn window() -> Window {
    let mut window = Window::new(0, 0);
    let worker = |tid| {
        let mut worker = thread(4711, tid);
        worker.process.name = "shop".into();
        worker.name = format!("worker-{}", tid - 4711);
        worker
    };
    let routes = [("/checkout", 200), ("/cart", 80), ("/checkout", 120)];
    for (number, (route, samples)) in routes.into_iter().enumerate() {
        let mut context = context(0x4b00 + number as u64, route);
        context.trace[0] = 0x4b;
        context.span[0] = 0xf0;
        let worker = worker(4712 + number as i32);
        add(&mut window, worker, Some(context), samples);
    }
    add(&mut window, worker(4712), Some(context(7, "/health")), 50);
    add(&mut window, worker(4715), None, 50);
    window.close(10_000_000_000, Counts::default());
    window
}

fn shown_of(window: &Window, state: &State) -> Shown {
    let mut rows = rows(&window.all(), &state.by, &state.attribute, &mut |_, _| {
        Key::Nothing
    });
    rows.retain(|row| state.takes(row));
    sort(&mut rows, state.sort, state.reversed);
    Shown {
        rows,
        values: times_by_value(&window.all(), &state.attribute),
        share: Share {
            period: 10_000_000,
            wall: window.wall(),
            kinds: Kinds::RUNNING,
        },
        cpus: 2,
        time: sum(&window.all()),
        idle: 0,
        attached: window.samples() * 9 / 10,
        lost: 0,
        not_traceable: 0,
        incomplete: None,
        limits: String::new(),
        opened: None,
    }
}

fn state() -> State {
    State::new(By::Thread, ROUTE.into())
}

/// Returns the lines that a terminal of this size shows.
fn screen(width: u16, height: u16, state: &State, shown: &Shown) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|frame| {
            let area = frame.area();
            draw(frame.buffer_mut(), area, state, shown, true);
        })
        .unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| -> String {
        let mut line = String::new();
        let mut x = 0;
        while x < width {
            let symbol = buffer[(x, y)].symbol();
            line.push_str(symbol);
            x += symbol.width().max(1) as u16;
        }
        line.trim_end().to_owned()
    };
    (0..height).map(line).collect()
}

#[test]
fn threads_are_shown_with_what_they_work_on() {
    let (window, state) = (window(), state());
    let shown = shown_of(&window, &state);
    assert_eq!(
        screen(120, 11, &state, &shown),
        [
            "CPU 50.0 % of 200 % · 90 % of it with a context · 500 samples in 10.0 s",
            "http.route  /checkout 32.0 %  /cart 8.0 %  /health 5.0 %",
            "CPU %               PID   TID  THREAD    SERVICE  http.route  TRACES  TRACE                             SPAN",
            " 25.0  ██████████  4711  4712  worker-1  shop     /checkout        2  4b000000000000000000000000004b00  f000000000004b00",
            " 12.0  ████▉       4711  4714  worker-3  shop     /checkout        1  4b000000000000000000000000004b02  f000000000004b02",
            "  8.0  ███▎        4711  4713  worker-2  shop     /cart            1  4b000000000000000000000000004b01  f000000000004b01",
            "  5.0  ██          4711  4715  worker-4  shop                      0",
            "",
            "",
            "",
            "q quit  g by thread  ? help  / filter  s order: CPU  space pause  Enter open",
        ]
    );
}

/// A second of a shop whose threads wait, of which one is idle.
fn waiting() -> Window {
    use otelctx_profile::sample::OffCpuState::{Asleep, Queued};
    const SECOND: u64 = 1_000_000_000;
    let mut window = Window::new(0, 0);
    let sql = "poll for 127.0.0.1:5432 (postgres)";
    for (tid, route, reason) in [(71, Some("/cart"), sql), (72, None, "futex")] {
        let context = || route.map(|it| context(tid as u64, it));
        add(&mut window, thread(7, tid), context(), 10);
        let mut wait = |state, reason, time| {
            let times = [SECOND, time];
            add_wait(
                &mut window,
                thread(7, tid),
                context(),
                (state, reason),
                times,
            );
        };
        wait(Asleep, reason, 850_000_000);
        wait(Queued, "", 50_000_000);
    }
    window.close(SECOND, Counts::default());
    window
}

/// The same in the view, without the idle waits.
fn waiting_shown(state: &State) -> Shown {
    let window = waiting();
    let mut shown = shown_of(&window, state);
    let mut samples = window.all();
    shown.idle = hide_idle(&mut samples, &state.by);
    shown.time = sum(&samples);
    shown.rows = rows(&samples, &state.by, ROUTE, &mut |_, _| Key::Nothing);
    let wait = shown.rows.iter().find_map(|row| row.wait.clone());
    for row in &mut shown.rows {
        let present = wait.clone().map(|wait| Present {
            wait,
            lasts: Some(4_200_000_000),
        });
        row.present = present.filter(|_| row.thread.tid == 71);
    }
    shown.share = Share {
        kinds: state.kinds,
        ..shown.share
    };
    shown
}

#[test]
fn times_of_threads_and_what_they_wait_for_are_shown() {
    let all = Kinds {
        running: true,
        waits: true,
    };
    let mut state = state().with_kinds(all);
    assert_eq!(
        screen(160, 6, &state, &waiting_shown(&state))[..5],
        [
            "CPU 20.0 % of 200 % · 90 % of it with a context · queued 10.0 % · waiting 170.0 % · 20 samples in 1.0 s",
            "http.route  /cart 10.0 % and 85.0 % waiting",
            "RUN %  QUEUE %  WAIT %  PID  TID  THREAD     SERVICE    http.route  TRACES  TRACE                             WAITING",
            " 10.0      5.0    85.0    7   71  thread-71  service-7  /cart            1  00000000000000000000000000000047  since 4.2 s: poll for 127.0.0.1:5432 (postgres)",
            " 10.0      5.0    85.0    7   72  thread-72  service-7                   0",
        ]
    );
    state.by = By::Attribute(ROUTE.into());
    let shown = waiting_shown(&state);
    assert_eq!(
        screen(150, 8, &state, &shown)[..6],
        [
            "CPU 20.0 % of 200 % · 90 % of it with a context · queued 10.0 % · waiting 85.0 % · 85.0 % idle, hidden (--idle shows it) · 20 samples in 1.0 s",
            "http.route  /cart 10.0 % and 85.0 % waiting",
            "RUN %              QUEUE %  WAIT %  http.route  THREADS  TRACES  SERVICE    TRACE                             WAITING",
            " 10.0  ██████████      5.0    85.0  /cart             1       1  service-7  00000000000000000000000000000047  poll for 127.0.0.1:5432 (postgres)",
            " 10.0  ██████████      5.0     0.0  (none)            1       0  service-7",
            "",
        ]
    );
    // What it waits for is left out last, and cut.
    let lines = screen(80, 8, &state, &shown);
    assert_eq!(
        lines[2..4],
        [
            "RUN %  QUEUE %  WAIT %  http.route  THREADS  TRACES  WAITING",
            " 10.0      5.0    85.0  /cart             1       1  poll for 127.0.0.1:5432 (p…",
        ]
    );
    state.filter = "POSTGRES".into();
    let taken: Vec<bool> = shown.rows.iter().map(|row| state.takes(row)).collect();
    assert_eq!(taken, [true, false]);
    state.filter.clear();
    state.help = true;
    let help = screen(80, 24, &state, &shown).concat();
    assert!(help.contains("asleep, at a disk, or stopped"), "{help}");
    // Without threads that run.
    let waits = Kinds {
        running: false,
        waits: true,
    };
    let state = State::new(By::Attribute(ROUTE.into()), ROUTE.into()).with_kinds(waits);
    let lines = screen(150, 8, &state, &waiting_shown(&state));
    let head = "queued 10.0 % · waiting 85.0 % · 85.0 % idle, hidden (--idle shows it) · in 1.0 s";
    assert_eq!(lines[0], head);
    assert_eq!(lines[1], "http.route  /cart 85.0 % waiting");
    assert!(
        lines[3].starts_with("  85.0  ██████████      5.0  /cart "),
        "{lines:#?}"
    );
    assert!(lines[7].contains("s order: wait"), "{lines:#?}");
    assert!(!lines.concat().contains("RUN"), "{lines:#?}");
}

#[test]
fn an_opened_row_has_its_waits_by_reason_and_its_traces_by_time() {
    let all = Kinds {
        running: true,
        waits: true,
    };
    let mut state = state().with_kinds(all);
    state.by = By::Process;
    let mut shown = waiting_shown(&state);
    let key = shown.rows[0].key.clone();
    state.opened = vec![Open::new(By::Process, key)];
    let window = waiting();
    shown.opened = Some(opened(&window, &state));
    let lines = screen(100, 20, &state, &shown);
    assert_eq!(
        lines[2],
        "service-7: 20.0 % CPU, 20 samples, 10.0 % queued, 170.0 % waiting"
    );
    let rows: Vec<&str> = lines[3..].iter().map(|it| it.trim_end()).collect();
    assert_eq!(
        rows[..3],
        [
            "    WAIT   SHARE  REASON",
            "  850 ms  50.0 %  futex",
            "  850 ms  50.0 %  poll for 127.0.0.1:5432 (postgres)",
        ]
    );
    let trace = rows.iter().position(|it| it.contains("TRACE")).unwrap();
    assert_eq!(
        rows[trace].split_whitespace().collect::<Vec<_>>(),
        [
            "RUN", "QUEUE", "WAIT", "FIRST", "SEEN", "THREADS", "TRACE", "VALUE"
        ]
    );
    assert!(
        rows[trace + 1].starts_with("  100 ms  50 ms  850 ms  "),
        "{rows:#?}"
    );
    assert!(
        rows[trace + 1].ends_with("  1  00000000000000000000000000000047  /cart"),
        "{rows:#?}"
    );
}

#[test]
fn a_small_terminal_has_what_matters_most() {
    let (window, mut state) = (window(), state());
    let shown = shown_of(&window, &state);
    assert_eq!(
        screen(40, 10, &state, &shown),
        [
            "CPU 50.0 % of 200 % · 90 % of it with a…",
            "http.route  /checkout 32.0 %",
            "CPU %  THREAD    SERVICE  http.route",
            " 25.0  worker-1  shop     /checkout",
            " 12.0  worker-3  shop     /checkout",
            "  8.0  worker-2  shop     /cart",
            "  5.0  worker-4  shop",
            "",
            "",
            "q quit  g by thread  ? help  / filter",
        ]
    );
    // Whatever the size, there is no panic, and something to see.
    for (width, height) in [(1, 1), (3, 2), (7, 3), (20, 4), (300, 80)] {
        for help in [false, true] {
            state.help = help;
            let lines = screen(width, height, &state, &shown);
            assert!(!lines[0].is_empty(), "{width}x{height}");
        }
    }
}

#[test]
fn a_wide_terminal_has_everything_whole() {
    let (window, state) = (window(), state());
    let lines = screen(300, 80, &state, &shown_of(&window, &state));
    assert_eq!(
        lines[3],
        " 25.0  ██████████  4711  4712  worker-1  shop     /checkout        2  \
         4b000000000000000000000000004b00  f000000000004b00"
    );
}

#[test]
fn rows_are_added_up_by_route_trace_and_process() {
    let (window, mut state) = (window(), state());
    let mut table = |by: By| {
        state.by = by;
        let lines = screen(80, 8, &state, &shown_of(&window, &state));
        lines[2..7].to_vec()
    };
    assert_eq!(
        table(By::Attribute(ROUTE.into())),
        [
            "CPU %  http.route  THREADS  TRACES  SERVICE  TRACE",
            " 32.0  /checkout         2       2  shop     4b000000000000000000000000004b00",
            "  8.0  /cart             1       1  shop     4b000000000000000000000000004b01",
            "  5.0  (none)            1       0  shop",
            "  5.0  /health           1       1  shop     00000000000000000000000000000007",
        ]
    );
    assert_eq!(
        table(By::Trace)[..3],
        [
            "CPU %  TRACE                             http.route  THREADS  SPANS  SERVICE",
            " 20.0  4b000000000000000000000000004b00  /checkout         1      1  shop",
            " 12.0  4b000000000000000000000000004b02  /checkout         1      1  shop",
        ]
    );
    assert_eq!(
        table(By::Process)[..2],
        [
            "CPU %   PID  SERVICE  THREADS  TRACES  http.route  TRACE",
            " 50.0  4711  shop           4       4  /checkout   4b00000000000000000000000000…",
        ]
    );
}

/// Opens the selected row, or the first one, with these lines.
fn open(state: &mut State, shown: &mut Shown, lines: Vec<Line>) {
    let enter = ratatui::crossterm::event::KeyCode::Enter.into();
    state.key(enter, &shown.rows, &[], 5);
    let row = shown.rows.first().cloned();
    shown.opened = Some(Opened { row, lines });
}

fn lines(number: usize) -> Vec<Line> {
    let line = |number| Line {
        text: format!("  line {number}"),
        kind: if number == 0 {
            LineKind::Heading
        } else {
            LineKind::Function
        },
    };
    (0..number).map(line).collect()
}

#[test]
fn an_opened_row_takes_the_place_of_the_table_and_is_scrolled() {
    let (window, mut state) = (window(), state());
    let mut shown = shown_of(&window, &state);
    open(&mut state, &mut shown, lines(10));
    let screen_of = |state: &State, shown: &Shown| screen(80, 8, state, shown)[2..].to_vec();
    let keys = "Esc back  ? help  / search  ↑↓ move  Enter opens a trace  space pause";
    assert_eq!(
        screen_of(&state, &shown),
        [
            "worker-1: 25.0 % CPU, 250 samples",
            "  line 0",
            "  line 1",
            "  line 2",
            "  line 3",
            keys,
        ]
    );
    let page = page(Rect::new(0, 0, 80, 8), &shown);
    assert_eq!(page, 4);
    use ratatui::crossterm::event::KeyCode;
    let press = |state: &mut State, code: KeyCode| {
        state.key(code.into(), &shown.rows, shown.lines(), page);
        state.scroll(page, shown.rows.len(), shown.lines().len());
    };
    press(&mut state, KeyCode::PageDown);
    press(&mut state, KeyCode::Down);
    assert_eq!(state.opened[0].at, 5);
    assert_eq!(
        screen_of(&state, &shown)[1..5],
        lines(6)[2..]
            .iter()
            .map(|it| it.text.clone())
            .collect::<Vec<_>>()
    );
    press(&mut state, KeyCode::End);
    assert_eq!(screen_of(&state, &shown)[4], "  line 9");
    press(&mut state, KeyCode::Home);
    assert_eq!(screen_of(&state, &shown)[1], "  line 0");
    // There is no such trace as a function.
    press(&mut state, KeyCode::Enter);
    assert_eq!(state.opened.len(), 1);
    press(&mut state, KeyCode::Char('/'));
    press(&mut state, KeyCode::Char('x'));
    press(&mut state, KeyCode::Enter);
    assert_eq!((&state.search[..], &state.filter[..]), ("x", ""));
    assert!(screen_of(&state, &shown)[5].contains("  / search: x  "));
    press(&mut state, KeyCode::Esc);
    assert_eq!((&state.search[..], state.opened.len()), ("", 1));
    press(&mut state, KeyCode::Esc);
    assert!(state.opened.is_empty());
}

#[test]
fn a_trace_of_an_opened_row_is_opened_and_the_way_back_is_kept() {
    use ratatui::crossterm::event::KeyCode;
    let (window, mut state) = (window(), state());
    let mut shown = shown_of(&window, &state);
    let id = [7; 16];
    let mut lines = lines(2);
    lines[1].kind = LineKind::Trace(id);
    open(&mut state, &mut shown, lines);
    let press = |state: &mut State, code: KeyCode| {
        state.key(code.into(), &shown.rows, shown.lines(), 5);
    };
    press(&mut state, KeyCode::Down);
    press(&mut state, KeyCode::Enter);
    let path: Vec<_> = state
        .opened
        .iter()
        .map(|it| (it.by.clone(), it.key.clone()))
        .collect();
    let thread = shown.rows[0].key.clone();
    assert_eq!(path, [(By::Thread, thread), (By::Trace, Key::Trace(id))]);
    // The same trace is not opened in itself.
    press(&mut state, KeyCode::Down);
    press(&mut state, KeyCode::Enter);
    assert_eq!(state.opened.len(), 2);
    press(&mut state, KeyCode::Esc);
    assert_eq!((state.opened.len(), state.opened[0].at), (1, 1));
    press(&mut state, KeyCode::Char('g'));
    assert!(state.opened.is_empty());
}

#[test]
fn what_is_lost_or_incomplete_and_why_threads_are_stopped_is_said() {
    let (window, mut state) = (window(), state());
    let mut shown = shown_of(&window, &state);
    (shown.lost, shown.not_traceable) = (1234, 56);
    shown.incomplete = Some("2.0 % of stacks incomplete (most: no unwind tables)".into());
    shown.limits = "sampling with ptrace: eBPF is not permitted\x1b[2J".into();
    state.paused = true;
    let lines = screen(190, 10, &state, &shown);
    let paused = "PAUSED · CPU 50.0 % of 200 % · 1,234 lost · ";
    assert!(lines[0].starts_with(paused), "{lines:#?}");
    let end = " s · 56 not traceable · 2.0 % of stacks incomplete (most: no unwind tables)";
    assert!(lines[0].ends_with(end), "{lines:#?}");
    assert_eq!(
        lines[8],
        "sampling with ptrace: eBPF is not permitted\\u{1b}[2J"
    );
}

#[test]
fn names_from_targets_can_not_drive_the_terminal() {
    let mut window = Window::new(0, 0);
    let nasty = "\x1b]0;owned\x07\r\n\u{9b}2J\u{202e}日本語";
    let hostile = Thread {
        name: nasty.into(),
        ..thread(1, 2)
    };
    let context = Context {
        attributes: vec![
            (ROUTE.into(), nasty.to_owned() + &"x".repeat(1 << 16)),
            (nasty.into(), nasty.into()),
        ],
        ..context(1, "")
    };
    add(&mut window, hostile, Some(context), 1);
    window.close(1_000_000_000, Counts::default());
    let mut state = state();
    state.at = Some(0);
    for by in [
        By::Thread,
        By::Attribute(ROUTE.into()),
        By::Attribute(nasty.into()),
        By::Process,
    ] {
        if let By::Attribute(key) = &by {
            state.attribute.clone_from(key);
        }
        state.by = by;
        state.filter = "service".into();
        let mut shown = shown_of(&window, &state);
        are_clean(&state, &shown);
        let key = shown.rows[0].key.clone();
        state.opened = vec![Open::new(state.by.clone(), key)];
        shown.opened = Some(opened(&window, &state));
        are_clean(&state, &shown);
        state.opened.clear();
    }
}

/// Returns what is opened.
fn opened(window: &Window, state: &State) -> Opened {
    let source = Source {
        window,
        catalog: &Catalog::new(),
        samples: &window.all(),
        attribute: &state.attribute,
        functions: &[],
        period: 10_000_000,
        kinds: state.kinds,
    };
    let mut names = Names::new(ModuleFiles::default(), &[]);
    let opened = super::super::opened::Opened::of(&source, &state.opened, &mut names);
    Opened {
        lines: opened.lines(""),
        row: opened.row,
    }
}

/// Holds that screens show hostile names, escaped and within their width.
fn are_clean(state: &State, shown: &Shown) {
    for width in [40, 80, 300] {
        let lines = screen(width, 24, state, shown);
        let text = lines.join("");
        assert!(
            !text.contains(crate::output::terminal::is_control),
            "{text:?}"
        );
        assert!(text.contains("\\u{1b}]0;"), "{text:?}");
        for line in &lines {
            assert!(line.width() <= usize::from(width), "{line:?}");
        }
    }
}

#[test]
fn nothing_to_see_is_said() {
    let mut state = state();
    let mut window = Window::new(0, 0);
    let lines = screen(60, 8, &state, &shown_of(&window, &state));
    assert_eq!(lines[3], "sampling …");
    window.close(1_000_000_000, Counts::default());
    let lines = screen(60, 8, &state, &shown_of(&window, &state));
    assert_eq!(lines[3], "nothing ran in this window");
    state.filter = "x".into();
    let lines = screen(60, 8, &state, &shown_of(&window, &state));
    assert_eq!(lines[3], "no row matches the filter");
    add(&mut window, thread(1, 2), None, 1);
    window.close(2_000_000_000, Counts::default());
    let mut shown = shown_of(&window, &state);
    (shown.attached, shown.values) = (0, Vec::new());
    let own = own_name();
    assert_eq!(
        screen(80 + own.len() as u16, 8, &state, &shown)[1],
        format!("no context was attached: `{own} ps` lists processes that publish")
    );
}
