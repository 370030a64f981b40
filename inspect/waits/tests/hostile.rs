//! What other processes can do to a reader: descriptors that change, arguments that lie, names that drive a terminal.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use otelctx_fixtures::{Random, tier};
use otelctx_reader::remote::Process;
use otelctx_waits::untrusted::{KINDS, decode};
use otelctx_waits::{Call, Reason, Resolver, State, Waiting};

const READ: i64 = libc::SYS_read;
const PPOLL: i64 = libc::SYS_ppoll;
const OPENAT: i64 = libc::SYS_openat;
const EPOLL: i64 = libc::SYS_epoll_pwait;

fn own() -> Process {
    Process::open(i32::try_from(std::process::id()).unwrap()).unwrap()
}

fn waiting(number: i64, arguments: [u64; 6], now: u64) -> Waiting<'static> {
    Waiting {
        tid: 1,
        call: Call { number, arguments },
        state: State::Asleep,
        frames: &[],
        memory: None,
        since: None,
        now,
    }
}

fn reason(resolver: &mut Resolver, process: &Process, number: i64, arguments: [u64; 6]) -> Reason {
    resolver.reason(process, waiting(number, arguments, 0))
}

fn read_of(resolver: &mut Resolver, descriptor: RawFd) -> String {
    read_at(resolver, descriptor, 0)
}

fn read_at(resolver: &mut Resolver, descriptor: RawFd, now: u64) -> String {
    let thread = waiting(READ, [descriptor as u64, 0, 0, 0, 0, 0], now);
    resolver.reason(&own(), thread).text
}

#[test]
fn a_descriptor_that_changes_has_its_new_name_at_once() {
    let mut resolver = Resolver::default();
    let (reader, _writer) = std::io::pipe().unwrap();
    let number = reader.as_raw_fd();
    assert_eq!(read_of(&mut resolver, number), "read pipe from itself");
    let replace = |with: RawFd| {
        // SAFETY: both are open, and the first one is owned by `reader`, which stays a valid descriptor.
        assert_eq!(unsafe { libc::dup2(with, number) }, number);
    };
    let file = std::fs::File::open("/etc/passwd").unwrap();
    replace(file.as_raw_fd());
    assert_eq!(read_of(&mut resolver, number), "read /etc/passwd");
    let (one, _other) = UnixStream::pair().unwrap();
    replace(one.as_raw_fd());
    // All processes' descriptors are not read again at once.
    assert_eq!(read_of(&mut resolver, number), "read unix socket");
    let later = 100_000_000_000;
    assert_eq!(
        read_at(&mut resolver, number, later),
        "read unix socket (itself)"
    );
    drop(OwnedFd::from(reader));
    assert_eq!(read_of(&mut resolver, 1 << 20), "read descriptor 1048576");
    assert_eq!(read_of(&mut resolver, -1), "read descriptor -1");
}

#[test]
fn the_size_of_an_epoll_is_that_of_the_epoll_that_the_descriptor_refers_to() {
    let mut resolver = Resolver::default();
    // SAFETY: epoll_create1(2) takes only numbers.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    assert!(epoll >= 0);
    let (reader, _writer) = std::io::pipe().unwrap();
    let size = |resolver: &mut Resolver, now| {
        let thread = waiting(EPOLL, [epoll as u64, 0, 0, 0, 0, 0], now);
        resolver.reason(&own(), thread).text
    };
    assert_eq!(size(&mut resolver, 0), "epoll_pwait on 0 descriptors");
    let mut event = libc::epoll_event { events: 1, u64: 0 };
    // SAFETY: `event` lives through the call.
    let added = unsafe {
        libc::epoll_ctl(
            epoll,
            libc::EPOLL_CTL_ADD,
            reader.as_raw_fd(),
            &raw mut event,
        )
    };
    assert_eq!(added, 0);
    // It is read again after half a second, because the kernel holds the epoll's lock meanwhile.
    assert_eq!(
        size(&mut resolver, 499_999_999),
        "epoll_pwait on 0 descriptors"
    );
    assert_eq!(
        size(&mut resolver, 500_000_000),
        "epoll_pwait on 1 descriptor"
    );
    // SAFETY: this test has opened it.
    unsafe { libc::close(epoll) };
    assert_eq!(size(&mut resolver, 501_000_000), "epoll_pwait");
}

#[test]
fn thousands_of_descriptors_are_counted() {
    let mut resolver = Resolver::default();
    let (reader, _writer) = std::io::pipe().unwrap();
    let entry = [reader.as_raw_fd(), 1];
    let all = vec![entry; 20_000];
    let text = |count: u64| {
        let arguments = [all.as_ptr() as u64, count, 0, 0, 0, 0];
        reason(&mut resolver, &own(), PPOLL, arguments).text
    };
    let pipes = ["pipe from itself"; 4].join(", ");
    let mut texts = [20_000, 4_000_000_000, 5, 4].map(text);
    // The count lies: there is no more memory than that, but no more is read than the limit either.
    assert_eq!(texts[0], format!("ppoll for {pipes} and 19996 more"));
    assert_eq!(texts[1], format!("ppoll for {pipes} and 3999999996 more"));
    assert_eq!(texts[2], format!("ppoll for {pipes} and 1 more"));
    assert_eq!(std::mem::take(&mut texts[3]), format!("ppoll for {pipes}"));
}

#[test]
fn names_are_harmless() {
    let mut resolver = Resolver::default();
    let directory = std::env::temp_dir().join(format!("otelctx-names-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("a\x1b]0;x\x07\n\u{202e}b");
    let file = std::fs::File::create(&path).unwrap();
    file.write_at(b"x", 0).unwrap();
    let directory_name = directory.to_str().unwrap();
    let escaped = format!("{directory_name}/a\\u{{1b}}]0;x\\u{{7}}\\n\\u{{202e}}b");
    assert_eq!(
        read_of(&mut resolver, file.as_raw_fd()),
        format!("read {escaped}")
    );
    // A path that a call has as an argument is bounded, and need not end.
    let argument = [&[b'/'; 5000][..], b"\0"].concat();
    let mut path_of = |at: usize| {
        let arguments = [0, argument[at..].as_ptr() as u64, 0, 0, 0, 0];
        reason(&mut resolver, &own(), OPENAT, arguments).text
    };
    assert_eq!(path_of(0), "openat", "longer than a path can be");
    assert_eq!(path_of(4990), format!("open {}", "/".repeat(10)));
    assert_eq!(path_of(4500).chars().count(), "open ".len() + 256);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn any_call_has_a_reason() {
    let mut resolver = Resolver::default();
    let process = own();
    let mut random = Random::new(4711);
    let (reader, writer) = std::io::pipe().unwrap();
    let memory: Vec<u64> = (0..4096).map(|_| random.number()).collect();
    for round in 0..tier::usual_or_all(10_000, 200_000) {
        let argument = |random: &mut Random| match random.below(8) {
            0 => random.number(),
            1 => memory.as_ptr() as u64 + random.below(32 << 10),
            2 => reader.as_raw_fd() as u64,
            3 => writer.as_raw_fd() as u64,
            4 => random.below(64),
            5 => random.below(1 << 20),
            6 => u64::MAX - random.below(64),
            _ => 0,
        };
        let arguments = std::array::from_fn(|_| argument(&mut random));
        let number = random.below(480) as i64 - 2;
        let frames = [argument(&mut random), argument(&mut random)];
        let thread = Waiting {
            frames: &frames,
            since: Some(random.number()),
            ..waiting(number, arguments, round)
        };
        let found = resolver.reason(&process, thread);
        // Four names, or two of a call between two, of 256 characters that are escaped at most, and words.
        assert!(found.text.len() < 4 * 256 * 10 + 200, "{found:?}");
        assert!(!found.text.contains(char::is_control), "{found:?}");
        assert!(!found.call.is_empty());
        assert!(
            found
                .holder
                .is_none_or(|tid| process.has_thread(tid) && tid != 1)
        );
    }
    let unknown = reason(&mut resolver, &process, 5000, [0; 6]);
    assert_eq!(unknown, resolver.reason(&process, waiting(5000, [1; 6], 0)));
    assert_eq!(
        (&*unknown.call, &*unknown.text),
        ("system call 5000", "system call 5000")
    );
    let fault = reason(&mut resolver, &process, -1, [0; 6]);
    assert_eq!((&*fault.call, &*fault.text), ("page fault", "page fault"));
}

#[test]
fn a_thread_that_does_not_wait_for_its_call_has_another_reason() {
    let mut resolver = Resolver::default();
    let mut text = |state| {
        let thread = waiting(READ, [0; 6], 0);
        resolver.reason(&own(), Waiting { state, ..thread }).text
    };
    assert_eq!(text(State::Queued), "ready to run");
    assert_eq!(text(State::Stopped), "stopped");
}

#[test]
fn a_process_that_has_ended_still_has_a_reason() {
    let mut resolver = Resolver::default();
    let mut child = Command::new("sleep")
        .arg("1000")
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let process = Process::open(i32::try_from(child.id()).unwrap()).unwrap();
    let read = |resolver: &mut Resolver| reason(resolver, &process, READ, [0; 6]).text;
    assert_eq!(read(&mut resolver), "read /dev/null");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(read(&mut resolver), "read descriptor 0");
    // Its memory is gone, too.
    let slept = reason(&mut resolver, &process, libc::SYS_nanosleep, [8; 6]);
    assert_eq!(slept.text, "nanosleep");
}

/// fsync, a disk's read and a write-protected page are over before a test sees them, so their calls are made up.
#[test]
fn calls_that_wait_for_a_disk_name_the_file() {
    let mut resolver = Resolver::default();
    let file = std::fs::File::open("/etc/passwd").unwrap();
    let descriptor = file.as_raw_fd() as u64;
    let mut text = |number: i64, arguments: [u64; 6]| {
        let thread = Waiting {
            state: State::Disk,
            ..waiting(number, arguments, 0)
        };
        resolver.reason(&own(), thread).text
    };
    let first = [descriptor, 0, 0, 0, 0, 0];
    assert_eq!(text(libc::SYS_fsync, first), "fsync /etc/passwd");
    assert_eq!(text(libc::SYS_fdatasync, first), "fdatasync /etc/passwd");
    assert_eq!(text(libc::SYS_pread64, first), "read /etc/passwd");
    assert_eq!(text(libc::SYS_getdents64, first), "getdents64 /etc/passwd");
    assert_eq!(
        text(libc::SYS_restart_syscall, first),
        "restart_syscall, a sleep that a signal or stop interrupted"
    );
    assert_eq!(text(libc::SYS_sync, first), "sync");
    let path = c"/etc/passwd".as_ptr() as u64;
    assert_eq!(
        text(libc::SYS_unlinkat, [0, path, 0, 0, 0, 0]),
        "unlinkat /etc/passwd"
    );
    let until = [libc::timespec {
        tv_sec: 102,
        tv_nsec: 3_000,
    }];
    let mut sleep = |clock: u64, since| {
        let arguments = [clock, 1, until.as_ptr() as u64, 0, 0, 0];
        let thread = waiting(libc::SYS_clock_nanosleep, arguments, 0);
        resolver.reason(&own(), Waiting { since, ..thread }).text
    };
    assert_eq!(sleep(1, Some(100_000_009_000)), "clock_nanosleep 2 s");
    assert_eq!(sleep(1, None), "clock_nanosleep until a set time");
    assert_eq!(
        sleep(1, Some(103_000_000_000)),
        "clock_nanosleep until a set time"
    );
    assert_eq!(
        sleep(0, Some(100_000_009_000)),
        "clock_nanosleep until a set time"
    );
}

/// The fuzz target does this for longer.
#[test]
fn whatever_the_kernel_would_write_is_decoded() {
    let mut random = Random::new(33);
    let seeds: [&[u8]; 6] = [
        b"socket:[4711]",
        b"tfd:        8 events:       19\nPid:\t4711\n",
        b"\x01\0/run/x.sock\0",
        b"sl\n   1: 0100007F:9C40 0100007F:1538 01 0:0 0:0 0 0 0 101 1\n",
        b"0: 2 0 00010000 0001 01  4711 /run/x.sock",
        b"1: FLOCK  ADVISORY  WRITE 1 a 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 4711 a 0 EOF\n",
    ];
    for _ in 0..tier::usual_or_all(20_000, 2_000_000) {
        let mut bytes = seeds[random.below(6) as usize].to_vec();
        for _ in 0..random.below(6) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.number() as u8;
        }
        bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
        for kind in 0..KINDS {
            assert_eq!(decode(kind, &bytes), decode(kind, &bytes));
        }
        let name = decode(KINDS - 1, &bytes);
        assert!(!name.contains(char::is_control), "{name:?}");
        assert_eq!(decode(KINDS - 1, name.as_bytes()), name);
    }
}
