//! Publishes something malformed or unusual; the first argument says what.

use std::io::{Read, Write};
use std::ptr;

use otelctx_reader::format::process_context::{HEADER_SIZE, Header, Payload, Value};
use otelctx_reader::format::record::{self, HEADER_SIZE as HEADER};
use otelctx_reader::format::{KEY_MAP, SCHEMA_VERSION, TraceFlags};

/// Makes the mapping that readers search for and writes `header` into it; returns its address.
fn publish(header: &[u8; HEADER_SIZE]) -> usize {
    // SAFETY: a fresh mapping of 4096 bytes, of which the first 32 are written.
    unsafe {
        let file = libc::memfd_create(c"OTEL_CTX".as_ptr(), libc::MFD_CLOEXEC);
        assert!(file >= 0 && libc::ftruncate(file, 4096) == 0);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let address = libc::mmap(
            ptr::null_mut(),
            4096,
            protection,
            libc::MAP_PRIVATE,
            file,
            0,
        );
        assert_ne!(address, libc::MAP_FAILED);
        address.cast::<[u8; HEADER_SIZE]>().write(*header);
        address as usize
    }
}

fn header(payload: &[u8]) -> Header {
    Header {
        payload_size: payload.len() as u32,
        monotonic_published_at_ns: 1,
        payload_address: payload.as_ptr() as u64,
    }
}

fn with_attributes(attributes: Vec<(String, Value)>) -> &'static [u8] {
    Payload {
        resource: vec![("service.name".into(), "hostile".into())],
        attributes,
    }
    .encode()
    .leak()
}

/// A context that announces thread records, with the keys `a` and `b`.
fn announcing(schema: &str) -> Header {
    header(with_attributes(vec![
        (SCHEMA_VERSION.into(), schema.into()),
        (KEY_MAP.into(), vec![Value::from("a"), "b".into()].into()),
    ]))
}

/// A record with these entries, each a key's position and its value.
fn record(entries: &[(u8, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    for (key, value) in entries {
        bytes.extend([*key, value.len() as u8]);
        bytes.extend_from_slice(value);
    }
    let header = record::Header {
        trace_id: [1; 16].into(),
        span_id: [2; 8].into(),
        valid: record::VALID,
        trace_flags: TraceFlags::SAMPLED,
        attributes_size: (bytes.len() - HEADER) as u16,
    };
    bytes[..HEADER].copy_from_slice(&header.encode());
    bytes
}

/// Places `record` at the end of readable memory; returns its address.
fn at_the_end_of_a_mapping(record: &[u8]) -> usize {
    // SAFETY: two fresh pages; the second becomes unreadable, the record ends with the first.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let pages = libc::mmap(ptr::null_mut(), 8192, protection, flags, -1, 0);
        assert_ne!(pages, libc::MAP_FAILED);
        let second = pages.cast::<u8>().add(4096);
        assert_eq!(libc::mprotect(second.cast(), 4096, libc::PROT_NONE), 0);
        let address = second.sub(record.len());
        ptr::copy_nonoverlapping(record.as_ptr(), address, record.len());
        address as usize
    }
}

/// Points the calling thread's variable at `record`.
fn point_at(record: usize) {
    // Using the publisher links its variable in.
    otelctx::thread_context().detach();
    let variable: *mut usize;
    // SAFETY: the sequence that compilers emit for a thread-local variable under TLS descriptors;
    // what a descriptor's resolver may change is declared.
    unsafe {
        std::arch::asm!(
            "lea rax, [rip + otel_thread_ctx_v1@tlsdesc]",
            "call [rax + otel_thread_ctx_v1@tlscall]",
            "add rax, fs:0",
            out("rax") variable,
            clobber_abi("C"),
        );
        variable.write_volatile(record);
    }
}

fn main() {
    let task = std::env::args().nth(1).expect("what to publish");
    let good = announcing("tlsdesc_v1_dev");
    let bytes = match task.as_str() {
        "huge-payload" => Header {
            payload_size: u32::MAX,
            ..good
        }
        .encode(),
        "payload-nowhere" => Header {
            payload_address: 16,
            ..good
        }
        .encode(),
        "payload-in-kernel" => Header {
            payload_address: u64::MAX - 7,
            ..good
        }
        .encode(),
        "huge-keys" => {
            let keys = vec![Value::from("k".repeat(1 << 20)); 256];
            header(with_attributes(vec![(KEY_MAP.into(), Value::Array(keys))])).encode()
        }
        "malformed" => header(b"\xff\xff\xff\xff").encode(),
        "never-finished" => Header {
            monotonic_published_at_ns: 0,
            ..good
        }
        .encode(),
        "version-3" => {
            let mut bytes = good.encode();
            bytes[8] = 3;
            bytes
        }
        "no-key-map" => header(with_attributes(vec![
            (SCHEMA_VERSION.into(), "tlsdesc_v1_dev".into()),
            (KEY_MAP.into(), Value::Int(1)),
        ]))
        .encode(),
        "no-schema" => header(with_attributes(vec![])).encode(),
        "final-schema" => announcing("tls_v1").encode(),
        "other-schema" => announcing("other\u{1b}[2J").encode(),
        _ => good.encode(),
    };
    println!("address\t{}", publish(&bytes));
    match task.as_str() {
        "two" => println!("address\t{}", publish(&good.encode())),
        "record-nowhere" => point_at(0x10),
        "record-odd" => point_at(bytes.as_ptr() as usize | 1),
        "record-in-kernel" => point_at(usize::MAX & !1),
        "no-schema" | "final-schema" | "other-schema" => {
            point_at(record(&[(0, b"x")]).leak().as_ptr() as usize);
        }
        "record-with-repeats" => {
            let entries: [(u8, &[u8]); 5] =
                [(0, b"x"), (1, b"y"), (9, b"?"), (1, b"\xff"), (0, b"z")];
            point_at(record(&entries).leak().as_ptr() as usize);
        }
        "record-at-page-end" => point_at(at_the_end_of_a_mapping(&record(&[(0, b"xy")]))),
        "record-not-valid" => {
            let mut bytes = record(&[(0, b"x")]);
            bytes[record::offset::VALID] = 2;
            point_at(bytes.leak().as_ptr() as usize);
        }
        "record-large" => {
            let mut entries: Vec<(u8, &[u8])> = vec![(1, &[b'y'; 254]); 255];
            entries.insert(0, (0, b"x"));
            entries.push((1, b"last"));
            point_at(record(&entries).leak().as_ptr() as usize);
        }
        _ => {}
    }
    println!("ready");
    std::io::stdout().flush().expect("standard output is open");
    let _ = std::io::stdin().read(&mut [0]);
}
