//! Operations whose instructions are counted: with fixed inputs, a fixed number of times, in a
//! function that callgrind finds by name. `counted` lists the operations, `counted NAME` runs one
//! and prints the number of times.
//!
//! Memory comes from a bump allocator. The C library's allocator depends on the neighbours of each
//! block, so that a count would change with unrelated code.

#[allow(dead_code, unreachable_pub)]
#[path = "../../src/work/input.rs"]
mod input;
#[allow(dead_code, unreachable_pub)]
#[path = "../../src/work/ours.rs"]
mod ours;

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use otelctx::Key;
use otelctx_format::process_context::{Payload, Value};
use otelctx_format::{KEY_MAP, KeyMap, MAX_KEYS, SCHEMA_VERSION, record};
use otelctx_remote::Mapping;

/// How often an operation runs while its instructions are counted.
const TIMES: u64 = 1000;
/// Attaches and detaches while another thread adds keys. It is not listed: its times vary.
const WHILE_KEYS_ARE_ADDED: &str = "attach + detach while keys are added";

/// A name, and a function that runs the operation a number of times.
type Work = (&'static str, fn(u64));

static COUNTED: [Work; 12] = [
    ("attach + detach", |times| ours::WORKS[0](times)),
    ("update ids and flags", |times| ours::WORKS[1](times)),
    ("update with the local root", |times| ours::WORKS[2](times)),
    ("update with 2 attributes", |times| ours::WORKS[3](times)),
    ("build + attach + drop", |times| ours::WORKS[5](times)),
    ("swap a shared record out and in", ours::swap_out_and_in),
    (
        "attach + detach a shared record",
        ours::attach_detach_shared,
    ),
    ("share + attach + last drop", ours::share_attach_drop),
    ("encode a payload", encode_payload),
    ("decode a payload", decode_payload),
    ("resolve a record", resolve_record),
    ("parse a line of maps", parse_mapping),
];

/// Bytes that an operation can allocate. Only used pages take memory.
const ARENA_SIZE: usize = 256 << 20;

#[repr(align(4096))]
struct Arena {
    bytes: UnsafeCell<[u8; ARENA_SIZE]>,
    used: AtomicUsize,
}

impl Arena {
    /// Continues at the start of a page: how bytes are copied depends on their alignment, and the
    /// bytes used so far depend on the length of the program's path.
    fn turn_page(&self) {
        let used = self.used.load(Ordering::Relaxed);
        self.used
            .store(used.next_multiple_of(4096), Ordering::Relaxed);
    }
}

// SAFETY: each byte is handed out once, to one owner.
unsafe impl Sync for Arena {}

#[global_allocator]
static ARENA: Arena = Arena {
    bytes: UnsafeCell::new([0; ARENA_SIZE]),
    used: AtomicUsize::new(0),
};

// SAFETY: blocks do not overlap, lie within the arena, and are aligned because what is skipped
// before each is what its alignment may need.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let reserved = layout.size() + layout.align();
        let used = self.used.fetch_add(reserved, Ordering::Relaxed);
        if used + reserved > ARENA_SIZE {
            return std::ptr::null_mut();
        }
        // SAFETY: the block and what its alignment skips were found to lie within the arena.
        unsafe {
            let free = self.bytes.get().cast::<u8>().add(used);
            free.add(free.align_offset(layout.align()))
        }
    }

    unsafe fn dealloc(&self, _block: *mut u8, _layout: Layout) {}
}

fn main() -> ExitCode {
    let Some(name) = std::env::args().nth(1) else {
        for (name, _) in COUNTED {
            println!("{name}");
        }
        return ExitCode::SUCCESS;
    };
    let _published = ours::set_up();
    if name == WHILE_KEYS_ARE_ADDED {
        println!("{}", while_keys_are_added());
        return ExitCode::SUCCESS;
    }
    let Some((_, work)) = COUNTED.iter().find(|(known, _)| *known == name) else {
        eprintln!("no such work: {name}");
        return ExitCode::from(2);
    };
    // One-time work, such as a thread's first record, is not counted.
    work(1);
    ARENA.turn_page();
    otelctx_bench_counted(*work, TIMES);
    println!("{TIMES}");
    ExitCode::SUCCESS
}

/// Callgrind counts from the call of this function to its return.
#[unsafe(no_mangle)]
#[inline(never)]
fn otelctx_bench_counted(work: fn(u64), times: u64) {
    work(times);
}

/// Attaches and detaches until another thread has added as many keys as possible; returns how
/// often. At least one round passes between two keys, because otherwise the scheduler might run
/// either thread to its end first.
fn while_keys_are_added() -> u64 {
    let attach_detach = ours::WORKS[0];
    attach_detach(1);
    let (rounds, is_full) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..=MAX_KEYS {
                let before = rounds.load(Ordering::Relaxed);
                let key = Key::new(Box::leak(format!("key {number}").into_boxed_str()));
                if key.register().is_err() {
                    break;
                }
                while rounds.load(Ordering::Relaxed) == before {
                    std::thread::yield_now();
                }
            }
            is_full.store(true, Ordering::Relaxed);
        });
        while !is_full.load(Ordering::Relaxed) {
            otelctx_bench_counted(attach_detach, TIMES);
            rounds.fetch_add(1, Ordering::Relaxed);
            std::thread::yield_now();
        }
    });
    rounds.into_inner() * TIMES
}

fn payload() -> Payload {
    let keys = KeyMap::new(["http.route", "user.id"]).expect("two good names");
    let text = |key: &str, value: &str| (key.to_owned(), Value::from(value));
    Payload {
        resource: vec![
            text("service.name", "shop"),
            text(
                "service.instance.id",
                "627cc493-f310-47de-96bd-71410b7dec09",
            ),
            text("telemetry.sdk.language", "rust"),
            ("process.pid".to_owned(), Value::from(4711)),
        ],
        attributes: vec![
            text(SCHEMA_VERSION, "tlsdesc_v1_dev"),
            (KEY_MAP.to_owned(), keys.to_value()),
        ],
    }
}

fn encode_payload(times: u64) {
    let payload = payload();
    for _ in 0..times {
        black_box(black_box(&payload).encode());
    }
}

fn decode_payload(times: u64) {
    let bytes = payload().encode();
    for _ in 0..times {
        black_box(Payload::decode(black_box(&bytes)).is_ok());
    }
}

fn resolve_record(times: u64) {
    let keys = KeyMap::new(["http.route", "user.id"]).expect("two good names");
    let mut bytes = [0; record::RECOMMENDED_SIZE];
    let mut size = 0;
    let room = &mut bytes[record::HEADER_SIZE..];
    let _ = record::append(room, &mut size, 0, "/api/v1/cart");
    let _ = record::append(room, &mut size, 1, "4711");
    let header = record::Header {
        valid: record::VALID,
        attributes_size: size as u16,
        ..record::Header::default()
    };
    bytes[..record::HEADER_SIZE].copy_from_slice(&header.encode());
    for _ in 0..times {
        let record = record::decode(black_box(&bytes)).expect("it is valid");
        black_box(record.resolve(&keys));
    }
}

fn parse_mapping(times: u64) {
    let line = b"7f3a1c000000-7f3a1c021000 r-xp 00028000 fd:10 1835301                    /usr/lib/libc.so.6";
    for _ in 0..times {
        black_box(Mapping::parse(black_box(line)));
    }
}
