//! Roles of the bench program in child processes: `otelctx-bench child ROLE …`.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::Instant;

use otelctx::{Context, Key, ProcessContext, SpanId, TraceId};
use otelctx_reader::{ContextState, FileCache, Options, Process};

/// A child process of this program in one of its roles. It is killed on drop.
#[derive(Debug)]
pub(crate) struct Role {
    child: Child,
    /// The lines that it printed before `ready`.
    pub(crate) lines: Vec<String>,
}

impl Role {
    /// Starts it and waits until it is ready.
    pub(crate) fn start(arguments: &[&str]) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("child {arguments:?}: {error}");
        let mut child = command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let stdout = child.stdout.take().expect("standard output is a pipe");
        let mut role = Self {
            child,
            lines: Vec::new(),
        };
        for line in BufReader::new(stdout).lines() {
            let line = line.map_err(failed)?;
            if line == "ready" {
                return Ok(role);
            }
            role.lines.push(line);
        }
        Err(format!("child {arguments:?} ended before it was ready"))
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// The number that it printed after `word`.
    pub(crate) fn number(&self, word: &str) -> Result<f64, String> {
        let found = self
            .lines
            .iter()
            .find_map(|line| line.strip_prefix(word)?.trim().parse().ok());
        found.ok_or(format!("the child did not print {word}"))
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This program in a role.
pub(crate) fn command(arguments: &[&str]) -> Command {
    // The link stays valid if the file is replaced by a newer build.
    let mut command = Command::new("/proc/self/exe");
    command.arg("child").args(arguments);
    command
}

/// Plays a role.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["publisher", mappings] => publisher(mappings.parse().unwrap_or(0)),
        ["workers"] => workers(),
        ["recorder"] => crate::group::sampler::record(),
        ["keys"] => keys(),
        ["python-list", pid, count] => {
            let lists =
                crate::group::python::lists(pid.parse().unwrap_or(0), count.parse().unwrap_or(0));
            lists.expect("the process is there");
        }
        ["otlp"] => crate::group::profile::write_otlp(),
        ["replay", seconds, path, otelctx] => {
            crate::group::replay::replay(seconds.parse().unwrap_or(1), path, otelctx);
        }
        ["symbolize", program, stacks] => {
            crate::group::symbolize::name_functions(program, stacks);
        }
        ["threads", count] => threads(count.parse().unwrap_or(0)),
        ["read", pid, way] => read(pid.parse().unwrap_or(0), way == "text"),
        ["list", ref pids @ ..] => list(pids),
        ["peak", program, ref arguments @ ..] => peak(program, arguments),
        ["poll", pid, count] => poll(pid.parse().unwrap_or(0), count.parse().unwrap_or(0)),
        _ => {
            eprintln!("no such role: {arguments:?}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

/// Reports that this process is ready, and waits until standard input is closed.
pub(crate) fn wait() {
    println!("ready");
    // Whether it ends or fails, the parent is gone.
    let _ = std::io::stdin().read(&mut [0]);
}

/// Allows any process to read this one, if Yama restricts that to ancestors.
fn allow_readers() {
    // SAFETY: the call takes no pointer. It fails if there is no such restriction.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
}

/// A small process that publishes a process context and has `mappings` mappings, or more if it
/// starts with more.
fn publisher(mappings: usize) {
    allow_readers();
    let _published = ProcessContext::detect()
        .with_service_name("shop")
        .with_attribute("service.version", "1.2.3")
        .with_attribute("deployment.environment.name", "prod")
        .publish()
        .expect("a process context can be published here");
    let key = Key::new("http.route");
    key.register().expect("there is room for a key");
    let count = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        maps.lines().count()
    };
    println!("mappings {}", count());
    // The kernel merges neighbours with equal protection.
    while count() < mappings {
        let protection = [libc::PROT_NONE, libc::PROT_READ][count() % 2];
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: asks for new memory wherever there is room.
        unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) };
    }
    println!("all {}", count());
    wait();
}

/// Waits in a system call that ends with EINTR whenever its thread is stopped.
fn wait_for_events() {
    // SAFETY: takes a number.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    loop {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: there is room for the one event that is asked for.
        unsafe { libc::epoll_wait(epoll, &raw mut event, 1, -1) };
    }
}

/// A process with a thread of each kind that `dump` stops, each with a record of two attributes.
fn workers() {
    allow_readers();
    let _published = ProcessContext::new()
        .with_service_name("shop")
        .publish()
        .expect("a process context can be published here");
    static ROUTE: Key = Key::new("http.route");
    static USER: Key = Key::new("user.id");
    let kinds: [(&str, fn()); 3] = [
        ("sleeping", std::thread::park),
        ("polling", wait_for_events),
        ("busy", std::hint::spin_loop),
    ];
    for (name, pass_time) in kinds {
        let (ready, is_ready) = mpsc::channel();
        std::thread::spawn(move || {
            let mut record = Context::new(TraceId::from_bytes([7; 16]), SpanId::from_bytes([8; 8]))
                .unwrap()
                .with_attribute(&ROUTE, "/api/v1/cart")
                .with_attribute(&USER, "4711");
            let _attached = record.attach();
            // SAFETY: gettid takes nothing and cannot fail.
            println!("{name} {}", unsafe { libc::gettid() });
            ready.send(()).expect("the main thread waits for this");
            loop {
                pass_time();
            }
        });
        is_ready
            .recv()
            .expect("the thread reports that it is ready");
    }
    wait();
}

/// Times the first use of the 1st and of the 256th key, in nanoseconds.
fn keys() {
    allow_readers();
    let _published = ProcessContext::detect()
        .with_service_name("shop")
        .publish()
        .expect("a process context can be published here");
    // Outside the measurement: this thread's first record, and its first read of the clock.
    drop(Context::new([1; 16], [2; 8]).unwrap().attach());
    let _ = Instant::now().elapsed();
    for number in 1..=256 {
        let name = format!("benchmark.attribute.{number}");
        let key = Key::new(Box::leak(name.into_boxed_str()));
        let record = Context::new([1; 16], [2; 8]).unwrap().with_capacity(32);
        let start = Instant::now();
        record.append(&key, "value");
        let elapsed = start.elapsed();
        assert!(!record.is_truncated(), "key {number} could not be used");
        if number == 1 || number == 256 {
            println!("key-{number} {}", elapsed.as_nanos());
        }
    }
    wait();
}

/// Reads the process context once, and polls it `count` times.
fn poll(pid: i32, count: u32) {
    let mut process = Process::open(pid).expect("the process is there");
    for _ in 0..=count {
        std::hint::black_box(process.context().expect("its context is readable"));
    }
}

/// A process with `count` threads, each with a record.
fn threads(count: usize) {
    allow_readers();
    let _published = ProcessContext::new()
        .with_service_name("shop")
        .publish()
        .expect("a process context can be published here");
    static ROUTE: Key = Key::new("http.route");
    for _ in 0..count {
        let (ready, is_ready) = mpsc::channel();
        let thread = std::thread::Builder::new().stack_size(64 * 1024);
        thread
            .spawn(move || {
                let mut record = Context::new([7; 16], [8; 8])
                    .unwrap()
                    .with_attribute(&ROUTE, "/api/v1/cart");
                let _attached = record.attach();
                ready.send(()).expect("the main thread waits for this");
                loop {
                    std::thread::park();
                }
            })
            .expect("another thread can be started");
        is_ready
            .recv()
            .expect("the thread reports that it is ready");
    }
    wait();
}

/// Reads the process context once, and prints this process's peak memory.
fn read(pid: i32, text: bool) {
    let mut options = Options::default();
    options.maps_as_text = text;
    let mut process = Process::with_options(pid, options).expect("the process is there");
    let context = process.context().expect("its mappings are readable");
    assert!(matches!(context, ContextState::Published(_)), "{context:?}");
    println!("{}", peak_memory());
}

/// Reads what `otelctx ps` reads of these processes, and prints this process's peak memory.
fn list(pids: &[&str]) {
    let modules = FileCache::default();
    for pid in pids {
        let pid = pid.parse().expect("a process id");
        read_for_ps(pid, &modules).expect("the process is there");
    }
    println!("{}", peak_memory());
}

/// Reads what `otelctx ps` reads of one process. Returns whether it publishes.
pub(crate) fn read_for_ps(pid: i32, modules: &FileCache) -> Result<bool, otelctx_reader::Error> {
    let mut process = Process::with_files(pid, Options::default(), modules.clone())?;
    if process.context()? == ContextState::Absent {
        return Ok(false);
    }
    process.thread_support()?;
    process.comm()?;
    process.running()?.thread_ids()?;
    Ok(true)
}

/// Runs a program to its end, and prints its peak memory. That counts the memory of the child before
/// exec too, which is this process's and small.
fn peak(program: &str, arguments: &[&str]) {
    let mut command = Command::new(program);
    let quiet = command
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let status = quiet.status().expect("the program can be started");
    assert!(status.success(), "{status}");
    // SAFETY: a zeroed one is valid, and outlives the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    println!("{}", usage.ru_maxrss);
}

/// Peak memory of this process, in KiB.
pub(crate) fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
    number.expect("/proc/self/status has VmHWM")
}
