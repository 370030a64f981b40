//! Waits of all kinds, made by `waits.c`: the reason in words and the peer, exactly.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use otelctx_fixtures::{Compiler, HANG_TIMEOUT, Target};
use otelctx_reader::remote::Process;
use otelctx_reader::remote::threads::ThreadFiles;
use otelctx_waits::{Call, Options, Peer, Reason, Resolver, State, Waiting};

/// The program, the directory of its files, and what it has printed.
struct Program {
    path: PathBuf,
    target: Target,
    directory: PathBuf,
    facts: HashMap<String, String>,
    threads: Vec<(i32, String)>,
}

impl Program {
    /// Starts the program, with a command before its own.
    fn start(before: &[&str]) -> Option<Self> {
        let path = Compiler::gcc().program(&["waits.c"], &["-pthread"])?;
        let directory = std::env::temp_dir().join(format!(
            "otelctx-waits-{}-{}",
            std::process::id(),
            before.len()
        ));
        std::fs::create_dir_all(&directory).unwrap();
        let mut words = before
            .iter()
            .copied()
            .map(OsStr::new)
            .chain([path.as_os_str()]);
        let mut command = Command::new(words.next()?);
        let target = Target::spawn(command.args(words).arg(&directory));
        let mut facts = HashMap::new();
        let mut threads = Vec::new();
        for line in &target.lines {
            let words: Vec<&str> = line.splitn(3, ' ').collect();
            match words[..] {
                ["fact", name, value] => drop(facts.insert(name.to_owned(), value.to_owned())),
                ["wait", tid, name] => threads.push((tid.parse().unwrap(), name.to_owned())),
                _ => panic!("{line}"),
            }
        }
        Some(Self {
            path,
            target,
            directory,
            facts,
            threads,
        })
    }

    fn fact(&self, name: &str) -> &str {
        &self.facts[name]
    }

    fn number(&self, name: &str) -> i32 {
        self.facts[name].parse().unwrap()
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// All links are read at once: what is found does not depend on the number of processes.
fn resolver() -> Resolver {
    let mut options = Options::default();
    options.max_links = usize::MAX;
    Resolver::new(options)
}

/// Attempts to get the expected reason of a thread that sleeps in the expected call: it may be an earlier call of the kind.
const MAX_TRIES: usize = 20;

/// The reason of a thread, once it sleeps in the expected call.
fn awaited(resolver: &mut Resolver, pid: i32, tid: i32, expected: &Reason) -> Reason {
    let process = Process::open(pid).unwrap();
    let deadline = Instant::now() + HANG_TIMEOUT;
    let (mut now, mut tries) = (0, 0);
    loop {
        let files = ThreadFiles::open(&process, tid).unwrap();
        let reason = files.call().unwrap().map(|call| {
            let thread = Waiting {
                tid,
                call: Call::from(&call),
                state: State::Asleep,
                frames: &[call.instruction_pointer],
                memory: None,
                since: None,
                now,
            };
            resolver.reason(&process, thread)
        });
        if let Some(reason) = reason {
            tries += usize::from(reason.call == expected.call);
            if reason == *expected || tries > MAX_TRIES {
                return reason;
            }
        }
        assert!(
            Instant::now() < deadline,
            "it does not call {}",
            expected.call
        );
        std::thread::sleep(std::time::Duration::from_millis(1));
        // What is cached is old by then.
        now += 100_000_000_000;
    }
}

/// The call that the C library makes: aarch64 has the newer one of each pair alone.
const fn by_architecture(x86_64: &'static str, aarch64: &'static str) -> &'static str {
    if cfg!(target_arch = "x86_64") {
        x86_64
    } else {
        aarch64
    }
}

const POLL: &str = by_architecture("poll", "ppoll");
const SELECT: &str = by_architecture("select", "pselect6");
const EPOLL: &str = by_architecture("epoll_wait", "epoll_pwait");
const PAUSE: &str = by_architecture("pause", "ppoll");

/// The call and the text of each wait, and whom it is for.
fn expected(program: &Program, name: &str) -> (&'static str, String, Option<Whom>) {
    use Whom::{Idle, Itself, Server};

    let own = program.target.pid();
    let server = program.number("server");
    let idle = program.number("idle");
    let port = program.fact("port");
    let tcp = format!("127.0.0.1:{port} (shop)");
    let unix = format!("unix socket {} (shop)", program.path("server.sock"));
    let own_tcp = |name: &str| format!("127.0.0.1:{}", program.fact(name));
    let (call, text, whom) = match name {
        "read pipe" => (
            "read",
            format!("read pipe from {server} (shop)"),
            Some(Server),
        ),
        "write pipe" => (
            "write",
            format!("write pipe to {server} (shop)"),
            Some(Server),
        ),
        "read own pipe" => ("read", "read pipe from itself".into(), Some(Itself)),
        "read tcp" => ("read", format!("read from {tcp}"), Some(Server)),
        "readv tcp" => ("readv", format!("read from {tcp}"), Some(Server)),
        "recv tcp" => ("recvfrom", format!("recv from {tcp}"), Some(Server)),
        "recv udp" => (
            "recvfrom",
            format!("recv on UDP {}", own_tcp("udp_port")),
            None,
        ),
        "recv connected udp" => {
            let text = format!("recv from UDP {} (itself)", own_tcp("udp_to"));
            ("recvfrom", text, Some(Itself))
        }
        "recvmsg pair" => (
            "recvmsg",
            "recvmsg from unix socket (shop)".into(),
            Some(Server),
        ),
        "recv unix" => ("recvfrom", format!("recv from {unix}"), Some(Server)),
        "recvmmsg unix" => ("recvmmsg", format!("recvmmsg from {unix}"), Some(Server)),
        "send tcp" => ("sendto", format!("send to {tcp}"), Some(Server)),
        "write unix" => ("write", format!("write {unix}"), Some(Server)),
        "sendmsg unix" => ("sendmsg", format!("sendmsg to {unix}"), Some(Server)),
        "sendto unix" => {
            let path = program.path("datagrams.sock");
            (
                "sendto",
                format!("sendto unix socket {path} (itself)"),
                Some(Itself),
            )
        }
        "connect tcp" => {
            let text = format!("connect to {} (itself)", own_tcp("full_port"));
            ("connect", text, Some(Itself))
        }
        "connect unix" => {
            let path = program.path("full.sock");
            (
                "connect",
                format!("connect to unix socket {path} (itself)"),
                Some(Itself),
            )
        }
        "accept tcp" => (
            "accept",
            format!("accept on {}", own_tcp("accept_port")),
            None,
        ),
        "accept unix" => {
            let path = program.path("accepting.sock");
            ("accept4", format!("accept on unix socket {path}"), None)
        }
        "poll tcp" => (POLL, format!("{POLL} for {tcp}"), Some(Server)),
        "poll many" => {
            let text = format!("{POLL} for {tcp}, eventfd, eventfd, eventfd and 2 more");
            (POLL, text, Some(Server))
        }
        "poll nothing" => (POLL, format!("{POLL} 1000 s"), None),
        "poll listening" => {
            let text = format!("{POLL} for connections to {}", own_tcp("poll_port"));
            (POLL, text, None)
        }
        "poll process" => (
            "poll",
            format!("{POLL} for process {idle} (idle)"),
            Some(Idle),
        ),
        "poll pipes" => (
            "poll",
            format!("{POLL} for pipe from {server} (shop), epoll"),
            Some(Server),
        ),
        "ppoll objects" => ("ppoll", "ppoll for timerfd, inotify".into(), None),
        "select" => (SELECT, format!("{SELECT} for eventfd, {tcp}"), Some(Server)),
        "pselect nothing" => ("pselect6", "pselect6 1000.5 s".into(), None),
        "epoll three" => (EPOLL, format!("{EPOLL} on 3 descriptors"), None),
        "epoll one" => ("epoll_pwait", "epoll_pwait on 1 descriptor".into(), None),
        "epoll none" => ("epoll_pwait2", "epoll_pwait2 on 0 descriptors".into(), None),
        "nanosleep" => ("nanosleep", "nanosleep 1000 s".into(), None),
        "clock_nanosleep" => ("clock_nanosleep", "clock_nanosleep 1000.25 s".into(), None),
        "sleep until" => (
            "clock_nanosleep",
            "clock_nanosleep until a set time".into(),
            None,
        ),
        "wait for idle" => (
            "wait4",
            format!("wait4 for process {idle} (idle)"),
            Some(Idle),
        ),
        "wait for any" => ("wait4", "wait4 for any child".into(), None),
        "waitid idle" => (
            "waitid",
            format!("waitid for process {idle} (idle)"),
            Some(Idle),
        ),
        "waitid descriptor" => (
            "waitid",
            format!("waitid for process {idle} (idle)"),
            Some(Idle),
        ),
        "semop" => {
            let set = program.fact("semaphores");
            (
                "semtimedop",
                format!("semtimedop on semaphore set {set}"),
                None,
            )
        }
        "msgrcv" => (
            "msgrcv",
            format!("msgrcv from queue {}", program.fact("queue")),
            None,
        ),
        "mq_receive" => {
            let text = format!("mq_timedreceive from /waits-{own} (deleted)");
            ("mq_timedreceive", text, None)
        }
        "sigwaitinfo" => (
            "rt_sigtimedwait",
            "rt_sigtimedwait for SIGUSR2, SIGTERM".into(),
            None,
        ),
        "pause" => (PAUSE, PAUSE.into(), None),
        "sigsuspend" => ("rt_sigsuspend", "rt_sigsuspend".into(), None),
        "flock" => {
            let text = format!("flock {} held by {idle} (idle)", program.path("flocked"));
            ("flock", text, Some(Idle))
        }
        "fcntl lock" => {
            let text = format!(
                "fcntl lock {} held by {idle} (idle)",
                program.path("locked")
            );
            ("fcntl", text, Some(Idle))
        }
        "description lock" => (
            "fcntl",
            format!("fcntl lock {}", program.path("described")),
            None,
        ),
        "read eventfd" => ("read", "read eventfd".into(), None),
        "read timerfd" => ("read", "read timerfd".into(), None),
        "read signalfd" => ("read", "read signalfd".into(), None),
        "read inotify" => ("read", "read inotify".into(), None),
        "read terminal" => (
            "read",
            format!("read terminal {}", program.fact("terminal")),
            None,
        ),
        "read fifo" => ("read", format!("read {}", program.path("read")), None),
        "open fifo" => ("openat", format!("open {}", program.path("opened")), None),
        "splice" => (
            "splice",
            "splice from pipe from itself to pipe to itself".into(),
            Some(Itself),
        ),
        "sendfile" => {
            let text = format!("sendfile from {} to {tcp}", program.path("sent"));
            ("sendfile", text, Some(Server))
        }
        "futex" => ("futex", "futex".into(), None),
        "io_uring" => ("io_uring_enter", "io_uring_enter".into(), None),
        "io_getevents" => ("io_getevents", "io_getevents".into(), None),
        "page fault" => {
            let text = format!("page fault in {}", program.path.display());
            ("page fault", text, None)
        }
        other => panic!("{other}"),
    };
    (call, text, whom)
}

#[derive(Debug, Clone, Copy)]
enum Whom {
    Server,
    Idle,
    Itself,
}

#[test]
fn each_kind_of_wait_is_explained() {
    if let Some(program) = Program::start(&[]) {
        explains_each(&program);
    }
}

/// The sockets of another network namespace are those of its tables, and the kernel is asked for its unix sockets there.
#[test]
fn waits_in_another_network_namespace_are_explained() {
    let before = ["unshare", "--map-root-user", "--net", "sh", "-c"];
    let works = |script: &str| {
        let mut command = Command::new(before[0]);
        let status = command
            .args(&before[1..])
            .arg(script)
            .stderr(Stdio::null())
            .status();
        status.is_ok_and(|status| status.success())
    };
    if !works("ip link set lo up") {
        return eprintln!("skipped: no network namespaces (unshare), or no ip");
    }
    let script = "ip link set lo up; exec \"$0\" \"$@\"";
    let before = [&before[..], &[script]].concat();
    if let Some(program) = Program::start(&before) {
        let process = Process::open(program.target.pid()).unwrap();
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        assert_ne!(process.namespace("net").unwrap(), own.into_os_string());
        explains_each(&program);
    }
}

fn explains_each(program: &Program) {
    let own = program.target.pid();
    let mut resolver = resolver();
    let peer = |whom: Whom| {
        let (pid, name, service) = match whom {
            Whom::Server => (program.number("server"), "server", Some("shop")),
            Whom::Idle => (program.number("idle"), "idle", None),
            Whom::Itself => (own, "waits", None),
        };
        Peer {
            pid,
            name: name.to_owned(),
            service: service.map(str::to_owned),
        }
    };
    for (tid, name) in &program.threads {
        let (call, text, whom) = expected(program, name);
        let expected = Reason {
            call: call.into(),
            text,
            peer: whom.map(peer),
            holder: None,
        };
        let reason = awaited(&mut resolver, own, *tid, &expected);
        assert_eq!(reason, expected, "{name}");
    }
    assert!(program.threads.len() >= 60);
    // The main thread reads what this test writes.
    let test = i32::try_from(std::process::id()).unwrap();
    let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
    let expected = Reason {
        call: "read".into(),
        text: format!("read pipe from {test} ({})", comm.trim()),
        peer: Some(Peer {
            pid: test,
            name: comm.trim().to_owned(),
            service: None,
        }),
        holder: None,
    };
    assert_eq!(awaited(&mut resolver, own, own, &expected), expected);
}
