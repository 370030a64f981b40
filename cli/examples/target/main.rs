//! The process that the tests of the command inspect: `target SCENARIO [ARGUMENT]`.
//!
//! A separate program, because a test harness has its own threads, output and timeouts. It
//! prints `NAME: NUMBER` for each thread that a test wants to know of, then `ready`, and runs until
//! its standard input is closed.

#[path = "shared.rs"]
mod shared;

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::{env, thread};

use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap};
use nix::unistd::{ftruncate, gettid};
use otelctx::{Context, Key, SpanId, TraceFlags, TraceId};
use otelctx_reader::format::process_context::{Header, Payload, Value};
use otelctx_reader::format::{KEY_MAP, SCHEMA_VERSION};

use shared::{EVIL, SPAN, STUCK, TRACE};

/// Every scenario, by name.
const SCENARIOS: [(&str, fn()); 29] = [
    ("shop", shop),
    ("waiting", waiting),
    ("sandboxed", sandboxed),
    ("busy", busy),
    ("busy_user", busy_user),
    ("hostile", hostile),
    ("hostile_busy", hostile_busy),
    ("silent", silent),
    ("idle", idle),
    ("two_contexts", two_contexts),
    ("vm_child", vm_child),
    ("newer_version", newer_version),
    ("enormous", enormous),
    ("dangling", dangling),
    ("no_schema", no_schema),
    ("other_schema", other_schema),
    ("bad_key_map", bad_key_map),
    ("odd_keys", odd_keys),
    ("changing", changing),
    ("crowd", crowd),
    ("stuck", stuck),
    ("all_stuck", all_stuck),
    ("restless", restless),
    ("no_keys", no_keys),
    ("many_keys", many_keys),
    ("empty_name", empty_name),
    ("oversize", oversize),
    ("copied_on_fork", copied_on_fork),
    ("forked", forked),
];

fn main() {
    let name = env::args().nth(1).expect("the name of a scenario");
    let scenario = SCENARIOS.iter().find(|(known, _)| *known == name);
    let (_, play) = scenario.expect("a known scenario");
    play();
}

/// Tells the test that everything is in place, and waits for the end.
fn ready() {
    println!("ready");
    // The test closes the other end.
    let _ = std::io::stdin().read(&mut [0]);
}

static ROUTE: Key = Key::new("http.route");
static METHOD: Key = Key::new("http.request.method");

/// Runs `work` in a thread of this name, which tells its id and stays. `work` calls what it is
/// given while everything is attached.
fn worker(name: &str, work: impl FnOnce(&dyn Fn()) + Send + 'static) {
    let attached = Arc::new(Barrier::new(2));
    let here = attached.clone();
    let own = name.to_owned();
    let worker = thread::Builder::new().name(name.into()).spawn(move || {
        println!("{own}: {}", gettid());
        work(&|| {
            here.wait();
            loop {
                thread::park();
            }
        });
    });
    worker.unwrap();
    attached.wait();
}

fn ids() -> (TraceId, SpanId) {
    (TRACE.parse().unwrap(), SPAN.parse().unwrap())
}

/// Everything as it should be: typed attributes, and threads with one record, none, and one
/// without ids.
fn shop() {
    let _process = otelctx::ProcessContext::new()
        .with_service_name("shop")
        .with_attribute("telemetry.sdk.language", "rust")
        .with_attribute("replicas", 3_i64)
        .with_attribute("ratio", 0.5)
        .with_attribute("canary", true)
        .with_attribute("digest", vec![0xde_u8, 0xad])
        .with_attribute("zones", vec![Value::from("a"), Value::from("b")])
        .with_attribute("limits", vec![("cpu".to_owned(), Value::from(2_i64))])
        .with_context_attribute("deployment", "blue")
        .publish()
        .unwrap();
    ROUTE.register().unwrap();
    METHOD.register().unwrap();
    worker("worker-1", |stay| {
        let (trace, span) = ids();
        let mut record = Context::new(trace, span)
            .unwrap()
            .with_sampled(true)
            .with_attribute(&ROUTE, "/cart")
            .with_attribute(&METHOD, "GET");
        let _attached = record.attach();
        stay();
    });
    worker("worker-2", |stay| stay());
    worker("worker-3", |stay| {
        let mut record = Context::without_ids().with_attribute(&ROUTE, "/none");
        let _attached = record.attach();
        stay();
    });
    worker("worker-4", |stay| {
        let (trace, span) = ids();
        otelctx::thread_context()
            .set(trace, span, TraceFlags(0x81))
            .unwrap();
        stay();
    });
    ready();
}

/// Threads that wait: one in a trace, for a peer that sends nothing, and one in none. Tells the peer's port.
fn waiting() {
    let _process = otelctx::ProcessContext::new()
        .with_service_name("waiting shop")
        .publish()
        .unwrap();
    ROUTE.register().unwrap();
    let peer = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = peer.local_addr().unwrap();
    println!("port: {}", address.port());
    let attached = Arc::new(Barrier::new(2));
    let has_attached = Arc::clone(&attached);
    let wait = move || {
        let mut connection = TcpStream::connect(address).unwrap();
        let (trace, span) = ids();
        let record = Context::new(trace, span).unwrap();
        let mut record = record.with_attribute(&ROUTE, "/cart");
        let _attached = record.attach();
        has_attached.wait();
        connection.read_exact(&mut [0]).unwrap();
    };
    thread::Builder::new()
        .name("at the peer".into())
        .spawn(wait)
        .unwrap();
    worker("at leisure", |stay| stay());
    attached.wait();
    ready();
}

/// Publishes if it may, and tells whether that failed because nobody could find the context.
fn sandboxed() {
    let published = otelctx::ProcessContext::new()
        .with_service_name("sandboxed")
        .publish();
    let invisible = matches!(published, Err(otelctx::PublishError::Invisible { .. }));
    assert!(published.is_ok() || invisible, "{published:?}");
    println!("invisible: {}", u8::from(invisible));
    ready();
}

/// Two threads that never sleep: one works on a trace, the other on none.
fn busy() {
    let _process = otelctx::ProcessContext::new()
        .with_service_name("busy shop")
        .publish()
        .unwrap();
    ROUTE.register().unwrap();
    let begun = Arc::new(Barrier::new(3));
    for (name, at_work) in [("at work", true), ("at leisure", false)] {
        let has_begun = Arc::clone(&begun);
        let spin = move || {
            let (trace, span) = ids();
            let mut record = Context::new(trace, span)
                .unwrap()
                .with_attribute(&ROUTE, "/cart");
            let attached = at_work.then(|| record.attach());
            has_begun.wait();
            loop {
                std::hint::spin_loop();
                std::hint::black_box(&attached);
            }
        };
        thread::Builder::new()
            .name(name.into())
            .spawn(spin)
            .unwrap();
    }
    begun.wait();
    ready();
}

/// A busy thread with several attributes, and a resource with several. The next argument, if any, is part
/// of a value.
fn busy_user() {
    static USER: Key = Key::new("enduser.id");
    let _process = otelctx::ProcessContext::new()
        .with_service_name("known-service")
        .with_attribute("host.name", "known-host")
        .publish()
        .unwrap();
    let keys = [&ROUTE, &USER];
    keys.iter().for_each(|key| key.register().unwrap());
    let begun = Arc::new(Barrier::new(2));
    let has_begun = Arc::clone(&begun);
    thread::spawn(move || {
        let (trace, span) = ids();
        let record = Context::new(trace, span).unwrap();
        let record = record.with_attribute(&ROUTE, "/known-route");
        let user = format!("known-user{}", env::args().nth(2).unwrap_or_default());
        let mut record = record.with_attribute(&USER, &user);
        let attached = record.attach();
        has_begun.wait();
        loop {
            std::hint::spin_loop();
            std::hint::black_box(&attached);
        }
    });
    begun.wait();
    ready();
}

fn hostile() {
    static KEY: Key = Key::new(EVIL);
    let _process = otelctx::ProcessContext::new()
        .with_service_name(EVIL)
        .with_attribute("telemetry.sdk.language", EVIL)
        .with_attribute(EVIL, vec![Value::from(EVIL)])
        .with_context_attribute(EVIL, EVIL)
        .publish()
        .unwrap();
    KEY.register().unwrap();
    worker("e\x1b[31m\n\u{9b}", |stay| {
        let (trace, span) = ids();
        let mut record = Context::new(trace, span)
            .unwrap()
            .with_attribute(&KEY, EVIL);
        let _attached = record.attach();
        stay();
    });
    ready();
}

/// The same, at work; its service has a name of 60,000 characters.
fn hostile_busy() {
    static KEY: Key = Key::new(EVIL);
    let _process = otelctx::ProcessContext::new()
        .with_service_name(EVIL.to_owned() + &"long".repeat(15_000))
        .publish()
        .unwrap();
    KEY.register().unwrap();
    thread::Builder::new()
        .name("e\x1b[31m\n\u{9b}".into())
        .spawn(|| {
            let (trace, span) = ids();
            let mut record = Context::new(trace, span)
                .unwrap()
                .with_attribute(&KEY, EVIL);
            let attached = record.attach();
            loop {
                std::hint::black_box(&attached);
            }
        })
        .unwrap();
    ready();
}

/// Follows commands: `publish NAME`, `update NAME`, `withdraw`, `exec` (a shop).
fn changing() {
    let context = |name: &str| otelctx::ProcessContext::new().with_service_name(name);
    let mut published = None;
    println!("ready");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("publish", name) => published = Some(context(name).publish().unwrap()),
            ("update", name) => published.as_mut().unwrap().replace(context(name)).unwrap(),
            ("withdraw", _) => published = None,
            ("exec", _) => {
                let program = env::current_exe().unwrap();
                let error = Command::new(program)
                    .arg("shop")
                    // The test reads no more of it.
                    .stdout(Stdio::null())
                    .exec();
                panic!("{error}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Very many threads beside the first, each with a record whose span is its number from 1 on.
fn crowd() {
    let _process = otelctx::ProcessContext::new()
        .with_service_name("crowd")
        .publish()
        .unwrap();
    let count = env::args().nth(2).unwrap().parse().unwrap();
    for number in 1..=count {
        thread_without_std(member, number);
    }
    while ATTACHED.load(Ordering::Acquire) < count {
        thread::sleep(std::time::Duration::from_millis(1));
    }
    ready();
}

/// Number of threads of a [`crowd`] that have attached their records.
static ATTACHED: AtomicU64 = AtomicU64::new(0);

/// Attaches a record, and waits forever.
extern "C" fn member(number: *mut libc::c_void) -> *mut libc::c_void {
    attach_number(number as u64);
    ATTACHED.fetch_add(1, Ordering::Release);
    loop {
        // SAFETY: takes nothing, and waits.
        unsafe { libc::pause() };
    }
}

fn attach_number(number: u64) {
    let span = SpanId::from_bytes(number.to_be_bytes());
    otelctx::thread_context()
        .set(ids().0, span, TraceFlags(1))
        .unwrap();
}

/// Starts a thread by hand: those of the standard library take more memory and mappings.
fn thread_without_std(run: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void, number: u64) {
    // SAFETY: the attributes are made before they are used, and nobody waits for the thread.
    unsafe {
        let mut attributes = std::mem::zeroed();
        assert_eq!(libc::pthread_attr_init(&raw mut attributes), 0);
        assert_eq!(libc::pthread_attr_setguardsize(&raw mut attributes, 0), 0);
        let stack = libc::pthread_attr_setstacksize(&raw mut attributes, 64 << 10);
        assert_eq!(stack, 0);
        let state = libc::PTHREAD_CREATE_DETACHED;
        assert_eq!(
            libc::pthread_attr_setdetachstate(&raw mut attributes, state),
            0
        );
        let mut thread = std::mem::zeroed();
        let argument = number as *mut libc::c_void;
        let made = libc::pthread_create(&raw mut thread, &raw const attributes, run, argument);
        assert_eq!(made, 0, "thread {number}");
    }
}

/// Creates a thread after the other, each of which lives for a moment, beside one that stays.
fn restless() {
    extern "C" fn moment(_: *mut libc::c_void) -> *mut libc::c_void {
        std::ptr::null_mut()
    }
    let _process = otelctx::ProcessContext::new()
        .with_service_name("restless")
        .publish()
        .unwrap();
    let (attached, is_attached) = std::sync::mpsc::channel();
    thread::spawn(move || {
        attach_number(1);
        attached.send(()).unwrap();
        loop {
            thread_without_std(moment, 0);
        }
    });
    is_attached.recv().unwrap();
    ready();
}

/// Publishes a context of this language, and attaches nothing.
fn idle() {
    let language = env::args().nth(2).expect("a language");
    let context = otelctx::ProcessContext::new().with_service_name("idle");
    let context = context.with_attribute("telemetry.sdk.language", language);
    let _process = context.publish().unwrap();
    ready();
}

/// Publishes nothing.
fn silent() {
    ready();
}

/// A header at the start of a mapping of the right name, and where its payload lies.
fn by_hand(header: &[u8]) {
    let mapping = mapping(header);
    // SAFETY: the mapping has 4096 bytes, and stays as it is in this process.
    unsafe { madvise(mapping, 4096, MmapAdvise::MADV_DONTFORK) }.unwrap();
}

/// The same, which a fork would copy.
fn mapping(header: &[u8]) -> NonNull<libc::c_void> {
    let file = memfd_create(c"OTEL_CTX", MFdFlags::MFD_CLOEXEC).unwrap();
    ftruncate(file.as_fd(), 4096).unwrap();
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let length = 4096.try_into().unwrap();
    // SAFETY: a new mapping at an address that the kernel chooses disturbs nothing.
    let at = unsafe { mmap(None, length, protection, MapFlags::MAP_PRIVATE, &file, 0) }.unwrap();
    // SAFETY: the mapping has 4096 bytes and is never unmapped; a header has 32.
    unsafe { std::ptr::copy_nonoverlapping(header.as_ptr(), at.cast().as_ptr(), header.len()) };
    at
}

/// A whole context, made by hand.
fn publish(payload: &Payload) {
    by_hand(&header(payload).encode());
}

fn header(payload: &Payload) -> Header {
    let bytes = payload.encode().leak();
    Header {
        payload_size: bytes.len() as u32,
        monotonic_published_at_ns: 7,
        payload_address: bytes.as_ptr() as u64,
    }
}

fn payload(service: &str, attributes: Vec<(String, Value)>) -> Payload {
    Payload {
        resource: vec![("service.name".into(), service.into())],
        attributes,
    }
}

fn schema(name: &str) -> (String, Value) {
    (SCHEMA_VERSION.into(), name.into())
}

fn keys(names: &[&str]) -> (String, Value) {
    let names = names.iter().map(|name| Value::from(*name)).collect();
    (KEY_MAP.into(), Value::Array(names))
}

fn two_contexts() {
    let attributes = vec![schema("tls_v1"), keys(&[])];
    publish(&payload("one", attributes.clone()));
    publish(&payload("two", attributes));
    ready();
}

/// A child in the same memory, as after vfork().
fn vm_child() {
    publish(&payload(
        "parent",
        vec![schema("tls_v1"), keys(&["a", "b"])],
    ));
    let child = child_in_same_memory();
    println!("child: {child}");
    ready();
}

fn child_in_same_memory() -> libc::pid_t {
    extern "C" fn wait(_: *mut libc::c_void) -> libc::c_int {
        // SAFETY: these take no pointers.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            loop {
                libc::pause();
            }
        }
    }
    // Aligned for any architecture, and never freed.
    let stack = Vec::leak(vec![0_u128; 4096]).as_mut_ptr_range().end;
    let flags = libc::CLONE_VM | libc::SIGCHLD;
    // SAFETY: the child only waits, on a stack of its own.
    let child = unsafe { libc::clone(wait, stack.cast(), flags, std::ptr::null_mut()) };
    assert!(child > 0);
    child
}

/// Set when threads of [`start_stuck_thread`] are to go to sleep.
static ALL_THERE: AtomicBool = AtomicBool::new(false);

/// A thread that goes into an uninterruptible sleep, as the caller of vfork() does while it waits for
/// its child. clone() makes it without the C library, which therefore does not list it: only a stop
/// would tell its thread pointer.
fn start_stuck_thread() -> libc::pid_t {
    extern "C" fn sleep(stack: *mut libc::c_void) -> libc::c_int {
        extern "C" fn wait(_: *mut libc::c_void) -> libc::c_int {
            // SAFETY: these take no pointers.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                loop {
                    libc::pause();
                }
            }
        }
        while !ALL_THERE.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
        // It has the thread-local storage of its creator, which it must not use.
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: the child only waits, on a stack of its own.
        unsafe { libc::clone(wait, stack, flags, std::ptr::null_mut()) }
    }
    let stack = || Vec::leak(vec![0_u128; 4096]).as_mut_ptr_range().end;
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM;
    // SAFETY: the thread does nothing but spin and clone, on a stack of its own.
    let thread = unsafe { libc::clone(sleep, stack().cast(), flags, stack().cast()) };
    assert!(thread > 0);
    thread
}

/// A thread in an uninterruptible sleep, and three created after it.
fn stuck() {
    let _process = otelctx::ProcessContext::new()
        .with_service_name("stuck")
        .publish()
        .unwrap();
    println!("stuck: {}", start_stuck_thread());
    for number in 1..=3 {
        worker(&format!("worker-{number}"), move |stay| {
            attach_number(number);
            stay();
        });
    }
    ALL_THERE.store(true, Ordering::Release);
    ready();
}

/// Threads in an uninterruptible sleep, more than there is time for.
fn all_stuck() {
    let _process = otelctx::ProcessContext::new()
        .with_service_name("all stuck")
        .publish()
        .unwrap();
    ALL_THERE.store(true, Ordering::Release);
    for _ in 0..STUCK {
        start_stuck_thread();
    }
    let is_stuck = |task: &std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(task.as_ref().unwrap().path().join("stat"));
        stat.is_ok_and(|stat| stat.contains(") D "))
    };
    let tasks = || std::fs::read_dir("/proc/self/task").unwrap();
    while tasks().filter(is_stuck).count() < STUCK {
        thread::sleep(std::time::Duration::from_millis(1));
    }
    ready();
}

fn newer_version() {
    let header = Header {
        payload_size: 1,
        monotonic_published_at_ns: 7,
        payload_address: 1,
    };
    let mut bytes = header.encode();
    bytes[8] = 3;
    by_hand(&bytes);
    ready();
}

fn enormous() {
    let header = Header {
        payload_size: u32::MAX,
        monotonic_published_at_ns: 7,
        payload_address: 4096,
    };
    by_hand(&header.encode());
    ready();
}

fn dangling() {
    let header = Header {
        payload_size: 100,
        monotonic_published_at_ns: 7,
        payload_address: 16,
    };
    by_hand(&header.encode());
    ready();
}

/// Attaches a record though the process context does not say so.
fn attach() {
    worker("worker-1", |stay| {
        let (trace, span) = ids();
        let mut record = Context::new(trace, span).unwrap();
        let _attached = record.attach();
        stay();
    });
}

fn no_schema() {
    publish(&payload("quiet", vec![]));
    attach();
    ready();
}

fn other_schema() {
    publish(&payload("strange", vec![schema("future_v9")]));
    attach();
    ready();
}

fn bad_key_map() {
    let attributes = vec![
        schema("tlsdesc_v1_dev"),
        (KEY_MAP.into(), "http.route".into()),
    ];
    publish(&payload("odd", attributes));
    ready();
}

fn odd_keys() {
    let mut payload = payload(
        "odd",
        vec![schema("tlsdesc_v1_dev"), keys(&["a", "", "b", "a"])],
    );
    payload
        .resource
        .push(("service.name".into(), "again".into()));
    publish(&payload);
    ready();
}

fn no_keys() {
    publish(&payload("nameless", vec![schema("tls_v1")]));
    attach();
    ready();
}

/// One more than an index can tell apart.
fn many_keys() {
    let names: Vec<String> = (0..257).map(|index| format!("key{index}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    publish(&payload("wordy", vec![schema("tls_v1"), keys(&names)]));
    ready();
}

fn empty_name() {
    let mut payload = payload("x", vec![schema("tls_v1"), keys(&["a"])]);
    payload.resource = vec![(String::new(), "lost".into())];
    publish(&payload);
    ready();
}

/// More than every reader takes.
fn oversize() {
    let mut payload = payload("large", vec![schema("tls_v1"), keys(&["a"])]);
    payload
        .resource
        .push(("filler".into(), "x".repeat(70_000).into()));
    publish(&payload);
    ready();
}

fn copied_on_fork() {
    let payload = payload("copied", vec![schema("tls_v1"), keys(&["a"])]);
    mapping(&header(&payload).encode());
    ready();
}

/// A child that does not publish for itself.
fn forked() {
    publish(&payload("parent", vec![schema("tls_v1"), keys(&["a"])]));
    // SAFETY: the child calls what is safe after a fork of several threads, and no more.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: these take no pointers.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            loop {
                libc::pause();
            }
        }
    }
    println!("child: {child}");
    ready();
}
