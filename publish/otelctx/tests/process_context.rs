//! Publishing, updating and unpublishing, and every way in which they can fail.

#![cfg(target_os = "linux")]

mod common;
mod seccomp;

use std::env;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{in_forked_child, in_own_process, wait_for};
use otelctx::{Detect, Key, ProcessContext, PublishError, Schema, Value};
use otelctx_format::process_context::{Header, Payload};

/// Address of the mapping with the context, from this process's maps.
fn mappings() -> Vec<usize> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| line.contains("/memfd:OTEL_CTX (deleted)") || line.contains(":OTEL_CTX]"))
        .inspect(|line| assert!(line.contains("rw-p"), "{line}"))
        .map(|line| usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap())
        .collect()
}

fn header() -> Header {
    let [mapping] = mappings()[..] else {
        panic!("there is not one mapping: {:x?}", mappings());
    };
    // SAFETY: the mapping is a page, and nobody changes it meanwhile.
    Header::decode(unsafe { &*(mapping as *const [u8; 32]) }).unwrap()
}

fn payload() -> Payload {
    let header = header();
    let address = header.payload_address as *const u8;
    // SAFETY: the header says so, and nobody changes it meanwhile.
    let bytes = unsafe { std::slice::from_raw_parts(address, header.payload_size as usize) };
    let mut payload = Payload::decode(bytes).unwrap();
    assert_eq!(payload.take_problems(), []);
    payload
}

fn text(value: Option<&Value>) -> &str {
    match value {
        Some(Value::String(text)) => text,
        other => panic!("not a text: {other:?}"),
    }
}

#[test]
fn a_context_is_published_updated_and_unpublished() {
    in_own_process("a_context_is_published_updated_and_unpublished", || {
        static FIRST: Key = Key::new("first");
        static SECOND: Key = Key::new("second");
        FIRST.register().unwrap();
        let values = vec![
            ("double".to_owned(), Value::from(1.5)),
            ("bytes".to_owned(), Value::from(vec![0_u8, 255])),
            (
                "list".to_owned(),
                Value::from(vec![Value::from(true), Value::from(-1_i64)]),
            ),
        ];
        let mut process = ProcessContext::new()
            .with_attribute("service.name", "other")
            .with_service_name("shop")
            .with_attribute("map", values.clone())
            .with_context_attribute("extra", 7_i64)
            .publish()
            .unwrap();
        let first = header();
        assert_ne!(first.monotonic_published_at_ns, 0);
        let keys = |names: &[&str]| Value::Array(names.iter().map(|name| (*name).into()).collect());
        let expected = Payload {
            resource: vec![
                ("service.name".into(), "shop".into()),
                ("map".into(), values.into()),
            ],
            attributes: vec![
                ("extra".into(), 7_i64.into()),
                ("threadlocal.schema_version".into(), "tlsdesc_v1_dev".into()),
                ("threadlocal.attribute_key_map".into(), keys(&["first"])),
            ],
        };
        assert_eq!(payload(), expected);

        SECOND.register().unwrap();
        let second = header();
        assert!(second.monotonic_published_at_ns > first.monotonic_published_at_ns);
        assert_eq!(payload().attributes[2].1, keys(&["first", "second"]));

        process
            .replace(ProcessContext::new().with_schema(Schema::TlsV1))
            .unwrap();
        assert_ne!(
            header().payload_address,
            second.payload_address,
            "the old payload is alive"
        );
        assert_eq!(
            text(payload().attribute("threadlocal.schema_version")),
            "tls_v1"
        );
        assert_eq!(payload().resource, []);

        process.unpublish().unwrap();
        assert_eq!(mappings(), []);
        let last = second.monotonic_published_at_ns;
        let _again = ProcessContext::new().publish().unwrap();
        assert!(header().monotonic_published_at_ns > last);
    });
}

#[test]
fn a_second_user_changes_what_is_published() {
    in_own_process("a_second_user_changes_what_is_published", || {
        static KEY: Key = Key::new("key");
        let name = |name: &'static str| {
            ProcessContext::modify(move |context| context.with_service_name(name))
        };
        assert_eq!(name("early"), Err(PublishError::NotPublished));
        let mut process = ProcessContext::detect()
            .with_service_name("shop")
            .with_attribute("region", "eu")
            .with_context_attribute("extra", 7_i64)
            .publish()
            .unwrap();
        let before = payload();
        ProcessContext::modify(|context| {
            // The lock is free, and the change is made to what is published with the key.
            KEY.register().unwrap();
            context
                .without_attribute("region")
                .with_attribute("job.name", "nightly")
        })
        .unwrap();
        let mut expected = before;
        expected.resource.retain(|(key, _)| key != "region");
        expected
            .resource
            .push(("job.name".into(), "nightly".into()));
        expected.attributes[2].1 = vec!["key"].into();
        assert_eq!(payload(), expected);

        let error = ProcessContext::modify(|context| context.with_attribute("", 1_i64));
        assert_eq!(error, Err(PublishError::EmptyKey));
        assert_eq!(payload(), expected);

        in_forked_child(|| {
            assert_eq!(name("child"), Err(PublishError::NotPublished));
            assert_eq!(mappings(), []);
        });

        // The guard's holder replaces what others have changed.
        process
            .replace(ProcessContext::new().with_service_name("new"))
            .unwrap();
        assert_eq!(payload().resource, [("service.name".into(), "new".into())]);
        process.unpublish().unwrap();
        assert_eq!(name("late"), Err(PublishError::NotPublished));
        assert_eq!(mappings(), []);
    });
}

#[test]
fn changes_by_many_threads_are_all_kept() {
    in_own_process("changes_by_many_threads_are_all_kept", || {
        let _process = ProcessContext::detect().publish().unwrap();
        thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for round in 0..50 {
                        let name = format!("{thread}-{round}");
                        let change = |context: ProcessContext| context.with_attribute(&name, 1_i64);
                        ProcessContext::modify(change).unwrap();
                        if round < 10 {
                            Key::from_string(name).unwrap();
                        }
                    }
                });
            }
        });
        let found = payload();
        for name in (0..4).flat_map(|thread| (0..50).map(move |round| format!("{thread}-{round}")))
        {
            let value = found.resource_attribute(&name);
            assert_eq!(value, Some(&Value::Int(1)), "{name}");
        }
        let Some(Value::Array(keys)) = found.attribute("threadlocal.attribute_key_map") else {
            panic!("{found:?}");
        };
        assert_eq!(keys.len(), 40);
    });
}

#[test]
fn attributes_of_an_sdk_keep_their_type() {
    in_own_process("attributes_of_an_sdk_keep_their_type", || {
        // As an SDK has them, opentelemetry's for example.
        enum Typed {
            Bool(bool),
            I64(i64),
            F64(f64),
            String(Box<str>),
            Bools(Vec<bool>),
            I64s(&'static [i64]),
            Strings(Vec<String>),
        }
        let adapt = |value| match value {
            Typed::Bool(value) => Value::from(value),
            Typed::I64(value) => value.into(),
            Typed::F64(value) => value.into(),
            Typed::String(value) => value.into(),
            Typed::Bools(values) => values.into(),
            Typed::I64s(values) => values.iter().copied().collect(),
            Typed::Strings(values) => values.into(),
        };
        let resource = [
            ("bool", Typed::Bool(false)),
            ("int", Typed::I64(i64::MIN)),
            ("double", Typed::F64(-0.5)),
            ("text", Typed::String("text".into())),
            ("bools", Typed::Bools(vec![true, false])),
            ("ints", Typed::I64s(&[1, -1])),
            ("texts", Typed::Strings(vec!["a".into(), String::new()])),
            ("none", Typed::Strings(vec![])),
            ("int", Typed::I64(2)),
        ];
        let resource = resource.map(|(key, value)| (key, adapt(value)));
        let _process = ProcessContext::new().with_attributes(resource).publish();
        let text = |text: &str| Value::String(text.into());
        let expected = [
            ("bool", Value::Bool(false)),
            // Set again.
            ("int", Value::Int(2)),
            ("double", Value::Double(-0.5)),
            ("text", text("text")),
            (
                "bools",
                Value::Array(vec![Value::Bool(true), Value::Bool(false)]),
            ),
            ("ints", Value::Array(vec![Value::Int(1), Value::Int(-1)])),
            ("texts", Value::Array(vec![text("a"), text("")])),
            ("none", Value::Array(vec![])),
        ];
        let expected = expected.map(|(key, value)| (key.to_owned(), value));
        assert_eq!(payload().resource, expected);
    });
}

#[test]
fn the_previous_payload_stays_alive_until_the_next_update() {
    in_own_process(
        "the_previous_payload_stays_alive_until_the_next_update",
        || {
            let long =
                |letter: &str| ProcessContext::new().with_attribute("text", letter.repeat(60_000));
            let mut process = long("a").publish().unwrap();
            let old = header();
            process.replace(long("b")).unwrap();
            // Something else that might take freed memory.
            let _other: Vec<_> = (0..4)
                .map(|_| vec![0_u8; old.payload_size as usize])
                .collect();
            // SAFETY: that is what the test is about.
            let bytes = unsafe {
                std::slice::from_raw_parts(
                    old.payload_address as *const u8,
                    old.payload_size as usize,
                )
            };
            let payload = Payload::decode(bytes).unwrap();
            assert_eq!(text(payload.resource_attribute("text")), "a".repeat(60_000));
        },
    );
}

#[test]
fn a_schema_can_have_attributes_of_its_own() {
    in_own_process("a_schema_can_have_attributes_of_its_own", || {
        let context = ProcessContext::new()
            .with_schema(Schema::Other("nodejs_v1_dev".into()))
            .with_schema_attribute("threadlocal.tagged_size", 4_i64)
            .with_schema_attribute("threadlocal.tagged_size", 8_i64);
        let _process = context.publish().unwrap();
        let published = || payload().attribute("threadlocal.tagged_size").cloned();
        assert_eq!(published(), Some(Value::Int(8)));
        // Also after an update by a key or by a change.
        Key::from_string("late".into()).unwrap();
        ProcessContext::modify(|context| context.with_attribute("a", 1_i64)).unwrap();
        assert_eq!(published(), Some(Value::Int(8)));
        assert_eq!(
            text(payload().attribute("threadlocal.schema_version")),
            "nodejs_v1_dev"
        );
    });
}

#[test]
fn what_readers_would_reject_is_not_published() {
    in_own_process("what_readers_would_reject_is_not_published", || {
        let message = |context: ProcessContext| {
            let error = context.publish().unwrap_err();
            assert_eq!(mappings(), []);
            error.to_string()
        };
        let new = ProcessContext::new;
        assert!(message(new().with_attribute("", 1_i64)).contains("an attribute has an empty key"));
        let reserved = new().with_context_attribute("threadlocal.x", 1_i64);
        assert!(message(reserved).contains("\"threadlocal.x\" describes thread contexts"));
        for name in [
            "x",
            "threadlocal.schema_version",
            "threadlocal.attribute_key_map",
        ] {
            let reserved = new().with_schema_attribute(name, 1_i64);
            let error = reserved.publish().unwrap_err();
            assert_eq!(error, PublishError::ReservedKey { key: name.into() });
            assert_eq!(mappings(), []);
        }
        let large = new().with_attribute("a", "x".repeat(70_000));
        assert!(message(large.clone()).contains("at most 65536 are allowed"));
        let deep = (0..40).fold(Value::from(1), |value, _| Value::Array(vec![value]));
        assert!(message(new().with_attribute("deep", deep)).contains("nested deeper"));

        let mut process = large.with_max_payload_size(1 << 20).publish().unwrap();
        assert!(header().payload_size > 70_000);
        let before = header();
        assert!(process.replace(new().with_attribute("", 1_i64)).is_err());
        assert_eq!(header(), before);
        assert_eq!(new().publish().unwrap_err(), PublishError::AlreadyPublished);
    });
}

/// A mapping as another publisher would make it.
fn foreign_mapping() -> *mut [u8; 32] {
    // SAFETY: a new mapping.
    unsafe {
        let file = libc::memfd_create(c"OTEL_CTX".as_ptr(), 0);
        libc::ftruncate(file, 4096);
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), 4096, rw, libc::MAP_PRIVATE, file, 0).cast()
    }
}

/// A header that is valid, wherever it lies.
fn foreign_header(payload_address: u64) -> Header {
    Header {
        payload_size: 1,
        monotonic_published_at_ns: 1,
        payload_address,
    }
}

#[test]
fn a_foreign_context_is_found_after_the_main_thread_has_ended() {
    in_own_process(
        "a_foreign_context_is_found_after_the_main_thread_has_ended",
        || {
            // The child's main thread is this one.
            in_forked_child(|| {
                let mapping = foreign_mapping();
                let address = mapping as u64;
                // SAFETY: the mapping is ours.
                unsafe { mapping.write(foreign_header(address).encode()) };
                thread::spawn(move || {
                    while !fs::read("/proc/self/maps").unwrap().is_empty() {
                        thread::yield_now();
                    }
                    let publish = || ProcessContext::new().with_service_name("second").publish();
                    let refused = matches!(publish(), Err(PublishError::Foreign { .. }));
                    // A withdrawn one is in nobody's way.
                    let mut withdrawn = foreign_header(address);
                    withdrawn.monotonic_published_at_ns = 0;
                    // SAFETY: the mapping is ours.
                    unsafe { (address as *mut [u8; 32]).write(withdrawn.encode()) };
                    let published = publish().is_ok();
                    // SAFETY: ends the child.
                    unsafe { libc::_exit(i32::from(!(refused && published))) };
                });
                // SAFETY: ends this thread alone.
                unsafe { libc::syscall(libc::SYS_exit, 1) };
            });
        },
    );
}

#[test]
fn a_foreign_context_is_named() {
    in_own_process("a_foreign_context_is_named", || {
        let header = foreign_mapping();
        // Not valid: not a context, however it is named.
        let process = ProcessContext::new().publish().unwrap();
        drop(process);
        // SAFETY: the mapping is ours.
        unsafe { header.write(foreign_header(header as u64).encode()) };
        let error = ProcessContext::new().publish().unwrap_err();
        let PublishError::Foreign { mapping } = &error else {
            panic!("{error:?}");
        };
        assert!(
            mapping.starts_with(&format!("{:x}-", header as usize)),
            "{mapping}"
        );
        assert!(error.to_string().contains("/memfd:OTEL_CTX (deleted)"));
        assert_eq!(mappings(), [header as usize]);

        // Behind the header, what this crate would put there: nothing that can be read, and nothing
        // that is a copy of this crate.
        let behind = header.wrapping_add(1).cast::<u64>();
        let other = [*b"otelctx_withdrawn, by another...", [0xff; 32]];
        for address in [
            8,
            u64::MAX,
            other.as_ptr() as u64 + 1,
            other[1].as_ptr() as u64,
        ] {
            // SAFETY: the mapping is ours.
            unsafe { behind.write(address) };
            let error = ProcessContext::new().publish().unwrap_err();
            assert!(matches!(error, PublishError::Foreign { .. }), "{error}");
        }
        // A copy that says it has nothing.
        extern "C" fn nothing() -> bool {
            true
        }
        #[repr(C, align(32))]
        struct Copy([u8; 16], extern "C" fn() -> bool);
        let copy = Copy(*b"otelctx_withdraw", nothing);
        // SAFETY: as above.
        unsafe { behind.write(&raw const copy as u64) };
        let error = ProcessContext::new().publish().unwrap_err();
        assert!(matches!(error, PublishError::Foreign { .. }), "{error}");
        assert_eq!(mappings(), [header as usize]);

        // The context of a copy that was unloaded, but its keys cannot be known.
        let magic = behind.wrapping_add(1).cast::<[u8; 16]>();
        // SAFETY: as above.
        unsafe { magic.write(*b"otelctx_withdraw") };
        for payload in [8, header as u64] {
            // SAFETY: as above.
            unsafe { header.write(foreign_header(payload).encode()) };
            let error = ProcessContext::new().publish().unwrap_err();
            assert!(matches!(error, PublishError::Foreign { .. }), "{error}");
            assert_eq!(mappings(), [header as usize]);
        }
    });
}

#[test]
fn the_context_of_an_unloaded_copy_is_replaced_whatever_is_in_its_place() {
    in_own_process(
        "the_context_of_an_unloaded_copy_is_replaced_whatever_is_in_its_place",
        || {
            extern "C" fn nothing() -> bool {
                true
            }
            #[repr(C, align(32))]
            struct Copy([u8; 16], extern "C" fn() -> bool);
            let copy = Copy(*b"otelctx_withdraw", nothing);
            let other = *b"what another library has there..";
            let keys = Value::Array(vec!["theirs".into()]);
            let mut payload = Payload::default();
            payload
                .attributes
                .push(("threadlocal.attribute_key_map".into(), keys));
            let payload = payload.encode();
            for descriptor in [8, other.as_ptr() as u64, &raw const copy as u64] {
                let mapping = foreign_mapping();
                let mut header = foreign_header(payload.as_ptr() as u64);
                header.payload_size = payload.len() as u32;
                let behind = mapping.wrapping_add(1).cast::<[u8; 24]>();
                let mut mark = [0; 24];
                mark[..8].copy_from_slice(&descriptor.to_ne_bytes());
                mark[8..].copy_from_slice(b"otelctx_withdraw");
                // SAFETY: the mapping is ours.
                unsafe {
                    behind.write(mark);
                    mapping.write(header.encode());
                }
                let process = ProcessContext::new().publish().unwrap();
                assert_eq!(mappings().len(), 1);
                let keys = self::payload();
                let keys = keys.attribute("threadlocal.attribute_key_map");
                assert_eq!(keys, Some(&Value::Array(vec!["theirs".into()])));
                drop(process);
                assert_eq!(mappings(), []);
            }
        },
    );
}

#[test]
fn a_forked_child_publishes_its_own_context() {
    in_own_process("a_forked_child_publishes_its_own_context", || {
        static FIRST: Key = Key::new("first");
        static SECOND: Key = Key::new("second");
        FIRST.register().unwrap();
        SECOND.register().unwrap();
        let mut process = ProcessContext::detect().publish().unwrap();
        let id = |payload: &Payload| {
            let id = text(payload.resource_attribute("service.instance.id")).to_owned();
            assert_eq!(
                (id.len(), id.as_bytes()[14], id.matches('-').count()),
                (36, b'4', 4)
            );
            id
        };
        let parents = payload();
        in_forked_child(|| {
            assert_eq!(mappings(), []);
            // Harmless before the child has published.
            let mut record = otelctx::Context::new([1; 16], [1; 8]).unwrap();
            drop(record.attach());
            process.replace(ProcessContext::detect()).unwrap();
            let own = payload();
            assert_ne!(id(&own), id(&parents));
            let keys = "threadlocal.attribute_key_map";
            assert_eq!(own.attribute(keys), parents.attribute(keys));
            let pid = i64::from(std::process::id());
            assert_eq!(
                own.resource_attribute("process.pid"),
                Some(&Value::Int(pid))
            );
        });
        assert_eq!(payload(), parents);
        // An inherited guard does nothing in the child, and a context is welcome, also one that was
        // detected before.
        let detected = ProcessContext::detect();
        in_forked_child(|| {
            let inherited = process;
            drop(inherited);
            let _own = detected.publish().unwrap();
            assert_ne!(id(&payload()), id(&parents));
            let pid = i64::from(std::process::id());
            assert_eq!(
                payload().resource_attribute("process.pid"),
                Some(&Value::Int(pid))
            );
        });
    });
}

/// The resource by name: its order is not the same in a child.
fn sorted(payload: &Payload) -> Vec<(String, Value)> {
    let mut resource = payload.resource.clone();
    resource.sort_by(|(a, _), (b, _)| a.cmp(b));
    resource
}

#[test]
fn forked_children_publish_again_when_that_is_asked_for() {
    in_own_process(
        "forked_children_publish_again_when_that_is_asked_for",
        || {
            static KEY: Key = Key::new("key");
            static LATE: Key = Key::new("late");
            KEY.register().unwrap();
            // Texts that look like what is written over in the child.
            let pid = "process.pid\x12\x05\x18\u{7f}";
            let context = || {
                ProcessContext::new()
                    .with_attribute(pid, pid)
                    .with_attribute("id", "________-____-____-____-____________")
            };
            let mut process = context().publish().unwrap();
            process.republish_after_fork().unwrap();
            let before = payload();
            in_forked_child(|| assert_eq!(payload(), before));

            process
                .replace(
                    ProcessContext::detect()
                        .with_attribute(pid, pid)
                        .with_attribute("id", "________-____-____-____-____________"),
                )
                .unwrap();
            let parents = payload();
            // What the child of one with these attributes must show.
            let check = |parents: &Payload| {
                let own = payload();
                let id = text(own.resource_attribute("service.instance.id")).to_owned();
                assert_ne!(id, text(parents.resource_attribute("service.instance.id")));
                assert_eq!((id.len(), id.as_bytes()[14]), (36, b'4'));
                let pid = i64::from(std::process::id());
                let mut expected = parents.clone();
                for (key, value) in &mut expected.resource {
                    match &**key {
                        "process.pid" => *value = pid.into(),
                        "service.instance.id" => *value = id.as_str().into(),
                        _ => {}
                    }
                }
                assert_eq!(sorted(&own), sorted(&expected));
                assert_eq!(own.attributes, expected.attributes);
                own
            };
            in_forked_child(|| {
                let own = check(&parents);
                LATE.register().unwrap();
                let mut expected = own.clone();
                expected.attributes[1].1 = vec!["key", "late"].into();
                assert_eq!(payload(), expected);
                let add = |context: ProcessContext| context.with_attribute("worker", 1_i64);
                ProcessContext::modify(add).unwrap();
                expected.resource.push(("worker".into(), 1_i64.into()));
                assert_eq!(payload(), expected);
                in_forked_child(|| {
                    let grandchilds = check(&expected);
                    in_forked_child(|| drop(check(&grandchilds)));
                });
                assert_eq!(payload(), expected);
                assert_eq!(
                    ProcessContext::new().publish().unwrap_err(),
                    PublishError::AlreadyPublished
                );
            });
            assert_eq!(payload(), parents);

            // One that the program has set stays.
            process
                .replace(ProcessContext::detect().with_attribute("service.instance.id", "mine"))
                .unwrap();
            let mine = payload();
            in_forked_child(|| {
                let id = payload().resource_attribute("service.instance.id").cloned();
                assert_eq!(id, Some("mine".into()));
                assert_ne!(
                    payload().resource_attribute("process.pid"),
                    mine.resource_attribute("process.pid")
                );
                // Whatever the program does with it later, it is no placeholder.
                let remove =
                    |context: ProcessContext| context.without_attribute("service.instance.id");
                ProcessContext::modify(remove).unwrap();
                check(&mine);
            });

            // A sandbox: the fork goes on, and the child has no context.
            in_forked_child(|| {
                seccomp::deny(&[libc::SYS_madvise]);
                in_forked_child(|| assert_eq!(mappings(), []));
            });

            // The inherited guard is that of the child's own context.
            in_forked_child(|| {
                process.unpublish().unwrap();
                assert_eq!(mappings(), []);
                in_forked_child(|| assert_eq!(mappings(), []));
                // Another one is not asked to.
                let mut other = context().publish().unwrap();
                in_forked_child(|| assert_eq!(mappings(), []));
                other.republish_after_fork().unwrap();
                in_forked_child(|| drop(payload()));
            });
        },
    );
}

#[test]
fn a_child_with_its_parents_pid_publishes_its_own_context() {
    in_own_process(
        "a_child_with_its_parents_pid_publishes_its_own_context",
        || {
            // A process that is the first of its namespace, and a child that is the first of the next.
            // SAFETY: plain system calls.
            let flags = libc::CLONE_NEWPID
                | if unsafe { libc::geteuid() } == 0 {
                    0
                } else {
                    libc::CLONE_NEWUSER
                };
            // SAFETY: as above.
            if unsafe { libc::unshare(flags) } != 0 {
                println!("skipped: no right to make PID namespaces");
                return;
            }
            in_forked_child(|| {
                assert_eq!(std::process::id(), 1);
                let _process = ProcessContext::new().publish().unwrap();
                // SAFETY: fork by clone(2), without glibc's own handlers.
                match unsafe {
                    libc::syscall(
                        libc::SYS_clone,
                        libc::CLONE_NEWPID | libc::SIGCHLD,
                        0,
                        0,
                        0,
                        0,
                    )
                } {
                    0 => {
                        let own = ProcessContext::new().publish();
                        let fine = own.is_ok() && std::process::id() == 1 && mappings().len() == 1;
                        // SAFETY: ends the child.
                        unsafe { libc::_exit(i32::from(!fine)) };
                    }
                    child => wait_for(child as libc::pid_t),
                }
            });
        },
    );
}

#[test]
fn a_fork_while_another_thread_updates_leaves_both_going() {
    in_own_process(
        "a_fork_while_another_thread_updates_leaves_both_going",
        || {
            let stop = AtomicBool::new(false);
            let mut process = ProcessContext::detect().publish().unwrap();
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        process.replace(ProcessContext::detect()).unwrap();
                    }
                });
                // Blocks of shared records may be in the hands of this thread at the fork.
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        drop(otelctx::Context::new([1; 16], [1; 8]).unwrap().share());
                    }
                });
                for _ in 0..200 {
                    in_forked_child(|| {
                        // SAFETY: a child that hangs is ended.
                        unsafe { libc::alarm(10) };
                        let shared = otelctx::Context::new([1; 16], [1; 8]).unwrap().share();
                        let _attached = shared.attach();
                        let _own = ProcessContext::new()
                            .with_service_name("child")
                            .publish()
                            .unwrap();
                        assert_eq!(text(payload().resource_attribute("service.name")), "child");
                    });
                }
                stop.store(true, Ordering::Relaxed);
            });
            assert_eq!(mappings().len(), 1);
        },
    );
}

#[test]
fn the_lock_is_not_needed_for_shared_records_and_its_waiters_sleep() {
    const TEST: &str = "the_lock_is_not_needed_for_shared_records_and_its_waiters_sleep";
    static WAITER: AtomicI32 = AtomicI32::new(0);
    static IS_HELD: AtomicBool = AtomicBool::new(false);
    static HAS_SHARED: AtomicBool = AtomicBool::new(false);
    static LATE: Key = Key::new("late");

    fn wait_until(what: &str, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(600);
        while !condition() {
            assert!(Instant::now() < deadline, "{what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Runs in the middle of a fork, while the publisher's own handlers hold its lock: handlers
    /// that were registered earlier run later.
    extern "C" fn while_the_lock_is_held() {
        IS_HELD.store(true, Ordering::SeqCst);
        wait_until("sharing", || HAS_SHARED.load(Ordering::SeqCst));
        wait_until("a waiter that sleeps", || {
            let waiter = WAITER.load(Ordering::SeqCst);
            let call = fs::read_to_string(format!("/proc/self/task/{waiter}/syscall"));
            call.is_ok_and(|call| call.starts_with(&format!("{} ", libc::SYS_futex)))
        });
    }

    in_own_process(TEST, || {
        // SAFETY: the handler takes no arguments; a panic in it ends the process.
        let registered = unsafe { libc::pthread_atfork(Some(while_the_lock_is_held), None, None) };
        assert_eq!(registered, 0);
        let mut process = ProcessContext::new()
            .with_service_name("locked")
            .publish()
            .unwrap();
        process.republish_after_fork().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                wait_until("the fork", || IS_HELD.load(Ordering::SeqCst));
                for number in 1..=100 {
                    let shared = otelctx::Context::new([number; 16], [number; 8])
                        .unwrap()
                        .share();
                    drop(shared.attach());
                    drop(otelctx::raw::swap_current(Some(shared)));
                }
                HAS_SHARED.store(true, Ordering::SeqCst);
            });
            scope.spawn(|| {
                wait_until("the fork", || IS_HELD.load(Ordering::SeqCst));
                // SAFETY: takes nothing.
                WAITER.store(unsafe { libc::gettid() }, Ordering::SeqCst);
                LATE.register().unwrap();
            });
            in_forked_child(|| ());
        });
        assert_eq!(LATE.index(), Some(0));
    });
}

/// Whether this kernel names anonymous mappings (CONFIG_ANON_VMA_NAME).
fn kernel_names_mappings() -> bool {
    // SAFETY: a mapping of our own.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, flags, -1, 0);
        libc::prctl(0x5356_4d41, 0_usize, page, 4096_usize, c"test".as_ptr()) == 0
    }
}

#[test]
fn without_memfd_the_mapping_is_named_or_publishing_fails() {
    in_own_process(
        "without_memfd_the_mapping_is_named_or_publishing_fails",
        || {
            seccomp::deny(&[libc::SYS_memfd_create]);
            let result = ProcessContext::new().publish();
            if kernel_names_mappings() {
                let _process = result.unwrap();
                assert_ne!(header().monotonic_published_at_ns, 0);
            } else {
                println!("this kernel names no anonymous mappings: only the failure is tested");
                let invisible = PublishError::Invisible {
                    memfd: libc::EPERM,
                    naming: libc::EINVAL,
                };
                assert_eq!(result.unwrap_err(), invisible);
                assert_eq!(mappings(), []);
            }
        },
    );
}

#[test]
fn without_memfd_and_naming_publishing_fails() {
    in_own_process("without_memfd_and_naming_publishing_fails", || {
        let before = fs::read_to_string("/proc/self/maps")
            .unwrap()
            .matches("rw-p")
            .count();
        seccomp::deny(&[libc::SYS_memfd_create, libc::SYS_prctl]);
        let error = ProcessContext::new().publish().unwrap_err();
        assert_eq!(
            error,
            PublishError::Invisible {
                memfd: libc::EPERM,
                naming: libc::EPERM
            }
        );
        assert!(error.to_string().contains("Allow memfd_create"));
        // Nothing is left but the page with the lock.
        let after = fs::read_to_string("/proc/self/maps")
            .unwrap()
            .matches("rw-p")
            .count();
        assert!(after <= before + 1, "{before} {after}");
    });
}

#[test]
fn a_name_given_once_stays_when_naming_is_denied_later() {
    in_own_process(
        "a_name_given_once_stays_when_naming_is_denied_later",
        || {
            // As on a kernel that names anonymous mappings, in a program that enters a sandbox later.
            seccomp::deny(&[libc::SYS_memfd_create]);
            seccomp::answer(&[libc::SYS_prctl], 0);
            let mut process = ProcessContext::new().publish().unwrap();
            seccomp::deny(&[libc::SYS_prctl]);
            static KEY: Key = Key::new("key");
            KEY.register().unwrap();
            process
                .replace(ProcessContext::new().with_service_name("new"))
                .unwrap();
        },
    );
}

#[test]
fn with_a_memfd_naming_may_fail() {
    in_own_process("with_a_memfd_naming_may_fail", || {
        seccomp::deny(&[libc::SYS_prctl]);
        let _process = ProcessContext::new().publish().unwrap();
        assert_ne!(header().monotonic_published_at_ns, 0);
    });
}

#[test]
fn a_system_call_that_fails_is_named_and_everything_undone() {
    for (call, name) in [
        (libc::SYS_ftruncate, "ftruncate"),
        (libc::SYS_madvise, "madvise"),
        (libc::SYS_getrandom, "getrandom"),
    ] {
        let child = || {
            // The standard library's own needs come first.
            drop(std::collections::HashMap::<u8, u8>::new());
            // So does the page with the lock.
            drop(ProcessContext::new().publish());
            let open = fs::read_dir("/proc/self/fd").unwrap().count();
            seccomp::deny(&[call]);
            let error = ProcessContext::detect().publish().unwrap_err();
            assert!(
                matches!(error, PublishError::System { call, errno: libc::EPERM } if call.starts_with(name)),
                "{error:?}"
            );
            assert_eq!(mappings(), []);
            assert_eq!(fs::read_dir("/proc/self/fd").unwrap().count(), open);
        };
        in_forked_child(child);
    }
}

#[test]
fn threads_with_and_without_the_page_that_a_fork_wipes_share_one_lock() {
    in_own_process(
        "threads_with_and_without_the_page_that_a_fork_wipes_share_one_lock",
        || {
            let (sender, receiver) = std::sync::mpsc::channel();
            // A thread that is not in the sandbox.
            let other = thread::spawn(move || {
                receiver.recv().unwrap();
                ProcessContext::new().publish().unwrap_err()
            });
            seccomp::deny(&[libc::SYS_madvise]);
            static KEY: Key = Key::new("key");
            KEY.register().unwrap();
            sender.send(()).unwrap();
            let errors = [
                ProcessContext::new().publish().unwrap_err(),
                other.join().unwrap(),
            ];
            for error in errors {
                assert!(error.to_string().contains("madvise(MADV_WIPEONFORK)"));
            }
        },
    );
}

#[test]
fn resource_attributes_come_from_the_environment_and_the_process() {
    in_own_process(
        "resource_attributes_come_from_the_environment_and_the_process",
        || {
            // Before there is another thread that reads the environment.
            env::set_var("OTEL_SERVICE_NAME", "from-env");
            env::set_var("OTEL_RESOURCE_ATTRIBUTES", "service.name=no,a=x%2Cy,b=1");
            let executable = env::current_exe().unwrap();
            let process = ProcessContext::detect()
                .with_attribute("b", "code")
                .publish()
                .unwrap();
            let found = payload();
            let attribute = |key| text(found.resource_attribute(key)).to_owned();
            assert_eq!(attribute("service.name"), "from-env");
            assert_eq!(
                (attribute("a"), attribute("b")),
                ("x,y".into(), "code".into())
            );
            assert_eq!(
                attribute("process.executable.path"),
                executable.to_str().unwrap()
            );
            assert_eq!(attribute("telemetry.sdk.language"), "rust");
            assert_eq!(found.resource_attribute("process.command_args"), None);
            drop(process);

            env::set_var("OTEL_RESOURCE_ATTRIBUTES", "a=%zz,b=1");
            let context = ProcessContext::detect();
            assert!(context.malformed_variable().is_some());
            let process = context.publish().unwrap();
            assert_eq!(payload().resource_attribute("b"), None);
            drop(process);

            env::remove_var("OTEL_SERVICE_NAME");
            env::remove_var("OTEL_RESOURCE_ATTRIBUTES");
            let context = ProcessContext::detect_with(Detect {
                command_args: true,
                ..Detect::default()
            });
            let process = context.publish().unwrap();
            let name = executable.file_name().unwrap().to_str().unwrap();
            assert_eq!(
                text(payload().resource_attribute("service.name")),
                format!("unknown_service:{name}")
            );
            let args: Vec<Value> = env::args().map(Value::from).collect();
            assert_eq!(
                payload().resource_attribute("process.command_args"),
                Some(&args.into())
            );
            drop(process);

            let nothing = Detect {
                environment: false,
                process: false,
                command_args: false,
                sdk: false,
                instance_id: false,
            };
            let _process = ProcessContext::detect_with(nothing).publish().unwrap();
            assert_eq!(payload().resource, []);
        },
    );
}

#[test]
fn publishing_from_many_threads_makes_one_context() {
    in_own_process("publishing_from_many_threads_makes_one_context", || {
        let published: Vec<_> = thread::scope(|scope| {
            let publish = || {
                let result = ProcessContext::detect().publish();
                thread::sleep(Duration::from_millis(1));
                result
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(publish)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert_eq!(published.iter().filter(|result| result.is_ok()).count(), 1);
        assert_eq!(mappings().len(), 1);
    });
}
