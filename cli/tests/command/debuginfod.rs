//! `--debuginfod`: names from a server, and servers that are of no use.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use otelctx_fixtures::kernel::give_way;
use otelctx_fixtures::{Compiler, Target, tier};
use serde_json::{Value, json};

use crate::run::{Answer, Scratch, otelctx};

const ENDLESS: &str = r#"
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.note('asked', self.path)
        self.send_response(200)
        if not self.path.startswith('/endless/'):
            self.send_header('Content-Length', str(10 << 30))
        self.end_headers()
        sent, piece = 0, bytes(1 << 20)
        try:
            while sent < 10 << 30:
                self.wfile.write(piece)
                sent += len(piece)
        except OSError:
            pass
        self.note('sent', sent)
    def note(self, name, what):
        with open(name, 'a') as file:
            file.write(f'{what}\n')
server = http.server.HTTPServer(('127.0.0.1', 0), Handler)
print(f'Serving HTTP (http://127.0.0.1:{server.server_port}/)')
server.serve_forever()
"#;

/// Python's file server, killed when dropped.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    /// `None`, with a line on standard error, if there is no Python.
    fn start(folder: &Path) -> Option<Self> {
        let arguments = ["-u", "-m", "http.server", "0", "--bind", "127.0.0.1"];
        Self::start_python(folder, &arguments)
    }

    /// A server that announces 10 GiB, or below `/endless` nothing, and sends until nobody listens. It writes to
    /// `asked` what it is asked for, and to `sent` how many bytes it has sent for each request.
    fn start_endless(folder: &Path) -> Option<Self> {
        Self::start_python(folder, &["-u", "-c", ENDLESS])
    }

    fn start_python(folder: &Path, arguments: &[&str]) -> Option<Self> {
        let mut command = Command::new("python3");
        command.args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let Ok(mut child) = command.current_dir(folder).spawn() else {
            eprintln!("skipped: python3 is not installed");
            return None;
        };
        let mut line = String::new();
        let output = child.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        // "Serving HTTP on 127.0.0.1 port 40001 (http://127.0.0.1:40001/) ..."
        let url = line.split(['(', ')']).nth(1).unwrap().to_owned();
        Some(Self { child, url })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program without symbols, and where the server has the rest of it.
struct Stripped {
    scratch: Scratch,
    original: PathBuf,
    program: PathBuf,
    served: PathBuf,
}

fn tool(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
    String::from_utf8(output.stdout).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

impl Stripped {
    fn new(name: &str) -> Option<Self> {
        let flags = ["-O2", "-g", "-pthread", "-Wl,--build-id"];
        let original = Compiler::gcc().program(&["known_stacks.c"], &flags)?;
        let scratch = Scratch::new(name);
        let program = scratch.folder().join("program");
        tool("objcopy", &["--strip-all", text(&original), text(&program)]);
        let notes = tool("readelf", &["-n", text(&original)]);
        let mut lines = notes.lines();
        let id = lines.find_map(|line| line.trim().strip_prefix("Build ID: "));
        let served = scratch.folder().join("buildid").join(id.unwrap());
        fs::create_dir_all(&served).unwrap();
        Some(Self {
            scratch,
            original,
            program,
            served,
        })
    }

    fn serve_debug_info(&self) {
        let file = self.served.join("debuginfo");
        tool(
            "objcopy",
            &["--only-keep-debug", text(&self.original), text(&file)],
        );
    }
}

/// The program's own frames of its first thread.
fn own_frames(answer: &Value, program: &Path) -> Vec<Value> {
    let frames = answer["threads"][0]["stack"]["frames"].as_array().unwrap();
    let own = frames.iter().filter(|it| it["module"] == json!(program));
    own.cloned().collect()
}

#[test]
fn functions_of_stripped_programs_come_from_the_server() {
    let Some(stripped) = Stripped::new("debuginfod") else {
        return;
    };
    stripped.serve_debug_info();
    let Some(server) = Server::start(stripped.scratch.folder()) else {
        return;
    };
    let target = Target::spawn(&mut Command::new(&stripped.program));
    let pid = target.pid().to_string();
    let dump = ["dump", &pid, "--stacks", "--json"];
    let answer = otelctx(&dump).expect(0).json();
    let frames = own_frames(&answer, &stripped.program);
    assert!(frames.iter().all(|it| it["function"].is_null()), "{answer}");
    let with_server = [&dump[..], &["--debuginfod", &server.url]].concat();
    let answer = otelctx(&with_server).expect(0);
    assert_eq!(answer.stderr, "");
    let answer = answer.json();
    let frames = own_frames(&answer, &stripped.program);
    let names: Vec<_> = frames.iter().map(|it| &it["function"]).collect();
    let recursion = ["recursion"; 4];
    let expected = [&["reads"][..], &recursion, &["main", "_start"]].concat();
    assert_eq!(names, expected, "{answer}");
    let file = frames[0]["file"].as_str().unwrap();
    assert!(file.ends_with("known_stacks.c"), "{file}");
}

#[test]
fn a_recording_is_named_by_executables_from_the_server() {
    let Some(stripped) = Stripped::new("debuginfod-later") else {
        return;
    };
    stripped.serve_debug_info();
    fs::copy(&stripped.program, stripped.served.join("executable")).unwrap();
    let Some(server) = Server::start(stripped.scratch.folder()) else {
        return;
    };
    let (file, named) = (
        stripped.scratch.path("profile.otlp"),
        stripped.scratch.path("named.otlp"),
    );
    let target = Target::spawn(&mut Command::new(&stripped.program));
    let pid = target.pid().to_string();
    crate::run::given_time(|seconds| {
        let record = [
            "record",
            "-p",
            &pid,
            "-d",
            seconds,
            "--no-symbols",
            "-o",
            &file,
        ];
        otelctx(&record).expect(0);
        let report = otelctx(&["report", &file]).expect(0).stdout;
        let program = text(&stripped.program);
        report.contains(program).then_some(()).ok_or(report)
    });
    drop(target);
    fs::remove_file(&stripped.program).unwrap();
    let answer = otelctx(&[
        "symbolize",
        &file,
        "-o",
        &named,
        "--debuginfod",
        &server.url,
    ]);
    assert!(!answer.expect(0).stdout.contains("/program,"));
    let report = otelctx(&["report", &named]).expect(0).stdout;
    assert!(report.contains("in_loop"), "{report}");
}

#[test]
fn a_server_of_no_use_is_one_line() {
    let Some(stripped) = Stripped::new("debuginfod-hostile") else {
        return;
    };
    let Some(server) = Server::start(stripped.scratch.folder()) else {
        return;
    };
    let target = Target::spawn(&mut Command::new(&stripped.program));
    let pid = target.pid().to_string();
    let dump = |url: &str| {
        let dump = ["dump", &pid, "--stacks", "--json"];
        let answer = otelctx(&[&dump[..], &["--debuginfod", url]].concat()).expect(0);
        let json = answer.json();
        let frames = own_frames(&json, &stripped.program);
        assert!(frames.iter().all(|it| it["function"].is_null()), "{json}");
        assert!(!frames.is_empty(), "{json}");
        answer.stderr
    };
    let other = Compiler::gcc().program(&["inlined.c"], &["-g", "-Wl,--build-id"]);
    let file = stripped.served.join("debuginfo");
    let unusable = format!(
        "otelctx: {}: its debug information from the server is not usable\n",
        text(&stripped.program)
    );
    for content in [
        fs::read(other.unwrap()).unwrap(),
        b"garbage".to_vec(),
        vec![],
    ] {
        fs::write(&file, content).unwrap();
        assert_eq!(dump(&server.url), unusable);
    }
    // Nothing listens there any more.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let said = dump(&url);
    let start = format!("otelctx: debuginfod: cannot connect to {url}");
    assert!(said.starts_with(&start), "{said}");
    assert!(said.ends_with("; it is not asked again\n"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let refused = otelctx(&["dump", &pid, "--stacks", "--debuginfod", "file:///etc"]);
    assert!(refused.expect(2).stderr.contains("--debuginfod: "));
}

/// Takes connections and never answers. Returns its URL, and how many it has taken so far.
fn silent_server() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let count = Arc::new(AtomicUsize::new(0));
    let taken = Arc::clone(&count);
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming() {
            open.push(stream);
            taken.fetch_add(1, Ordering::Relaxed);
        }
    });
    (url, count)
}

#[test]
fn a_server_that_never_answers_is_one_line_and_the_recording_is_written() {
    let Some(stripped) = Stripped::new("debuginfod-silent") else {
        return;
    };
    let (url, count) = silent_server();
    let file = stripped.scratch.path("profile.otlp");
    let mut command = Command::new(&stripped.program);
    give_way(&mut command);
    let target = Target::spawn(&mut command);
    let pid = target.pid().to_string();
    let answer = crate::run::given_time(|seconds| {
        let record = ["record", "-p", &pid, "-d", seconds, "-o", &file];
        let answer = otelctx(&[&record[..], &["--debuginfod", &url]].concat()).expect(0);
        let report = otelctx(&["report", &file]).expect(0).stdout;
        let has_samples = report.contains(text(&stripped.program));
        has_samples.then_some(answer).ok_or(report)
    });
    let line = format!(
        "otelctx: debuginfod: {url}/ sent nothing for 30 s, or its files took more than 600 s together; \
         it is not asked again\n"
    );
    // The others are about eBPF and contexts.
    assert!(answer.stderr.contains(&line), "{answer:?}");
    assert_eq!(answer.stderr.matches(&url).count(), 1, "{answer:?}");
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

/// Tools of elfutils, such as gdb, ask the servers of that variable.
#[test]
fn servers_of_the_environment_are_not_asked() {
    let Some(stripped) = Stripped::new("debuginfod-environment") else {
        return;
    };
    let (url, count) = silent_server();
    let [file, named] = ["profile.otlp", "named.otlp"].map(|it| stripped.scratch.path(it));
    let target = Target::spawn(&mut Command::new(&stripped.program));
    let pid = target.pid().to_string();
    let run = |arguments: &[&str]| {
        let mut command = crate::run::command(arguments);
        let output = command.env("DEBUGINFOD_URLS", &url).output().unwrap();
        Answer::of(output).expect(0)
    };
    crate::run::given_time(|seconds| {
        run(&["record", "-p", &pid, "-d", seconds, "-o", &file]);
        let report = run(&["report", &file]).stdout;
        let has_samples = report.contains(text(&stripped.program));
        has_samples.then_some(()).ok_or(report)
    });
    run(&["symbolize", &file, "-o", &named]);
    run(&["dump", &pid, "--stacks"]);
    assert_eq!(count.load(Ordering::Relaxed), 0);
}

/// The largest file that is downloaded, in bytes.
const LARGEST: u64 = 2 << 30;
/// Bytes that a server can have sent and that were not read: buffers of sockets and of the command.
const IN_BUFFERS: u64 = 64 << 20;

#[test]
fn a_file_of_ten_gibibytes_is_one_line() {
    if tier::left_to_all("a file of 10 GiB") {
        return;
    }
    let Some(stripped) = Stripped::new("debuginfod-large") else {
        return;
    };
    let Some(server) = Server::start_endless(stripped.scratch.folder()) else {
        return;
    };
    let file = stripped.scratch.path("profile.otlp");
    let named = stripped.scratch.path("named.otlp");
    let [asked, sent] = ["asked", "sent"].map(|name| stripped.scratch.path(name));
    let lines = |file: &str| -> Vec<String> {
        let text = fs::read_to_string(file).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    };
    // The server finds out that nobody listens after the command has ended.
    let take_sent = || {
        let begin = Instant::now();
        while lines(&sent).len() < lines(&asked).len() {
            assert!(begin.elapsed() < otelctx_fixtures::HANG_TIMEOUT);
            std::thread::sleep(Duration::from_millis(20));
        }
        let taken = lines(&sent);
        for file in [&asked, &sent] {
            let _ = fs::remove_file(file);
        }
        taken
    };
    let target = Target::spawn(&mut Command::new(&stripped.program));
    let pid = target.pid().to_string();
    let base = server.url.trim_end_matches('/');
    let large = format!("otelctx: debuginfod: {base}/announced has a file of more than 2048 MiB\n");
    let endless = format!(
        "otelctx: debuginfod: {base}/endless has a file of more than 2048 MiB; it is not asked again\n"
    );
    for (path, line) in [("announced", large), ("endless", endless)] {
        let url = format!("{base}/{path}");
        let check = |answer: &Answer| {
            let said: Vec<_> = answer.stderr.split_inclusive('\n').collect();
            let said: Vec<_> = said
                .into_iter()
                .filter(|it| it.contains("debuginfod"))
                .collect();
            assert_eq!(said, [&line], "{answer:?}");
            let all = take_sent();
            let all: Vec<u64> = all.iter().map(|it| it.parse().unwrap()).collect();
            assert!(!all.is_empty());
            match path {
                // As many as there are files.
                "announced" => assert!(all.iter().all(|it| *it <= IN_BUFFERS), "{all:?}"),
                _ => {
                    let [once] = all[..] else { panic!("{all:?}") };
                    assert!((LARGEST..=LARGEST + IN_BUFFERS).contains(&once), "{once}");
                }
            }
        };
        crate::run::given_time(|seconds| {
            let record = ["record", "-p", &pid, "-d", seconds, "-o", &file];
            let record = [&record[..], &["--debuginfod", &url]].concat();
            let answer = otelctx(&record).expect(0);
            let report = otelctx(&["report", &file]).expect(0).stdout;
            let has_samples = report.contains(text(&stripped.program));
            // The server is asked about what was sampled.
            if has_samples {
                check(&answer);
            } else {
                take_sent();
            }
            has_samples.then_some(()).ok_or(report)
        });
        // 2 GiB take seconds.
        if path == "announced" {
            let symbolize = ["symbolize", &file, "-o", &named, "--debuginfod", &url];
            check(&otelctx(&symbolize).expect(0));
        }
    }
}
