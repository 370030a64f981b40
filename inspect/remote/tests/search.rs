//! Mappings found by their names, in either way of searching.

use std::fs;
use std::ops::ControlFlow;
use std::process::Command;
use std::time::Instant;

use otelctx_fixtures::{Compiler, Target};
use otelctx_remote::mappings::{NameFilter, NamedMapping, Scan, ScanOptions};
use otelctx_remote::process::processes;
use otelctx_remote::{Error, Process};

const NAMES: [&[u8]; 3] = [
    b"[anon_shmem:OTEL_CTX]",
    b"[anon:OTEL_CTX]",
    b"/memfd:OTEL_CTX",
];

/// The mappings that are found first, and all of them.
type Found = (Vec<NamedMapping>, Vec<NamedMapping>);

fn start() -> Option<Target> {
    let program = Compiler::gcc().program::<&str>(&["mappings.c"], &[])?;
    Some(Target::spawn(&mut Command::new(program)))
}

fn search(process: &Process, names: &[&[u8]], limit: usize, text: bool) -> Result<Found, Error> {
    let options = ScanOptions {
        text,
        ..ScanOptions::default()
    };
    let filter = NameFilter {
        names,
        limit,
        options,
    };
    let search = complete(process.search(filter)?);
    let first = search.writable_files.clone();
    Ok((first, complete(process.search_others(search)?)))
}

fn complete<T>(scan: Scan<T>) -> T {
    match scan {
        Scan::Complete(found) => found,
        _ => panic!("there is no limit"),
    }
}

fn none() -> Found {
    (Vec::new(), Vec::new())
}

/// The same either way.
fn found(process: &Process, names: &[&[u8]], limit: usize) -> Found {
    let found = search(process, names, limit, false).unwrap();
    assert_eq!(search(process, names, limit, true).unwrap(), found);
    found
}

/// The target's output about its contexts, the last first.
fn printed(target: &Target) -> Vec<u64> {
    let address = |line: &String| {
        let address = line.strip_prefix("context 0x")?;
        Some(u64::from_str_radix(address, 16).unwrap())
    };
    let mut printed: Vec<_> = target.lines.iter().filter_map(address).collect();
    printed.sort_unstable();
    printed
}

fn starts(found: &[NamedMapping]) -> Vec<u64> {
    found.iter().map(|named| named.start).collect()
}

#[test]
fn a_name_is_found_among_many_mappings_in_either_way() {
    for kind in ["files", "memory"] {
        let Some(mut target) = start() else { return };
        let process = Process::open(target.pid()).unwrap();
        assert_eq!(found(&process, &NAMES, 64), none());
        target.command("publish first");
        target.command(&format!("map {kind} 60000"));
        target.command("publish second");
        let (first, others) = found(&process, &NAMES, 64);
        assert_eq!(starts(&first), printed(&target));
        assert_eq!(others, []);
        for named in &first {
            assert_eq!(named.name, b"/memfd:OTEL_CTX (deleted)");
        }
        assert_eq!(found(&process, &NAMES, 1).0, first[..1]);
    }
}

#[test]
fn what_is_not_writable_comes_last_and_code_never() {
    let Some(mut target) = start() else { return };
    target.command("code");
    target.command("publish first");
    target.command("read-only");
    let process = Process::open(target.pid()).unwrap();
    let (first, others) = found(&process, &NAMES, 64);
    assert_eq!((first, starts(&others)), (vec![], printed(&target)));
}

/// Not a memfd, whatever it is called.
#[test]
fn a_file_on_a_disk_is_skipped() {
    let Some(mut target) = start() else { return };
    let path = otelctx_fixtures::directory().join(format!("named-{}", target.pid()));
    fs::write(&path, [0; 4096]).unwrap();
    let path_bytes = fs::canonicalize(&path).unwrap();
    target.command(&format!("file {}", path.display()));
    let process = Process::open(target.pid()).unwrap();
    let names = [path_bytes.as_os_str().as_encoded_bytes()];
    let found = found(&process, &names, 64);
    fs::remove_file(&path).unwrap();
    assert_eq!(found, none());
}

/// Memory that has a name of its own if this kernel knows such.
#[test]
fn anonymous_memory_is_found_by_its_name_where_it_has_one() {
    let Some(mut target) = start() else { return };
    target.command("anonymous first");
    let process = Process::open(target.pid()).unwrap();
    let maps = fs::read_to_string(format!("/proc/{}/maps", target.pid())).unwrap();
    let expected = if maps.contains("[anon:OTEL_CTX]") {
        printed(&target)
    } else {
        eprintln!("this kernel does not name anonymous memory");
        vec![]
    };
    assert_eq!(starts(&found(&process, &NAMES, 64).1), expected);
    // What the kernel names itself is no name that a process gave.
    assert_eq!(found(&process, &[b"[stack]", b"[heap]"], 64), none());
}

#[test]
fn of_every_process_both_ways_find_the_same() {
    let names: [&[u8]; 4] = [b"/memfd:", b"[", b"/dev/", b"/SYSV"];
    let mut compared = 0;
    let mut differed = Vec::new();
    for pid in processes().unwrap() {
        let Ok(process) = Process::open(pid) else {
            continue;
        };
        // Another process may change meanwhile, and is then compared again.
        let same = (0..5).any(|_| {
            let both = [false, true].map(|text| search(&process, &names, 64, text));
            match both {
                [Ok(one), Ok(other)] if one == other => {
                    compared += 1;
                    true
                }
                [Ok(_), Ok(_)] => false,
                _ => true,
            }
        });
        if !same {
            differed.push(pid);
        }
    }
    differed.retain(|pid| Process::open(*pid).is_ok_and(|process| process.exists()));
    assert!(compared > 0);
    assert_eq!(differed, [0; 0]);
}

#[test]
fn once_the_leader_has_exited_another_thread_is_asked() {
    let Some(mut target) = start() else { return };
    target.command("publish first");
    target.command("leave");
    let process = Process::open(target.pid()).unwrap();
    assert_eq!(starts(&found(&process, &NAMES, 64).0), printed(&target));
    let mut code = Vec::new();
    let options = ScanOptions::default();
    let all = process.code_mappings(options, &mut |mapping| code.push(mapping.start));
    assert_eq!(all.unwrap(), Scan::Complete(()));
    assert!(!code.is_empty());
}

#[test]
fn code_is_the_same_in_either_way() {
    let Some(target) = start() else { return };
    let process = Process::open(target.pid()).unwrap();
    let code = |options| {
        let mut seen = Vec::new();
        let visit = &mut |mapping: &otelctx_remote::Mapping<'_>| {
            assert!(mapping.permissions.execute);
            seen.push((mapping.start, mapping.end, mapping.device, mapping.inode));
        };
        let all = process.code_mappings(options, visit).unwrap();
        (seen, all)
    };
    let text = ScanOptions {
        text: true,
        ..ScanOptions::default()
    };
    let (seen, all) = code(text);
    assert_eq!(all, Scan::Complete(()));
    assert!(seen.len() > 1);
    assert_eq!(code(ScanOptions::default()), (seen, all));
    let max_mappings = Some(3);
    let limited = ScanOptions {
        max_mappings,
        ..text
    };
    assert_eq!(code(limited).1, Scan::TooMany);
}

#[test]
fn mappings_of_files_are_the_same_in_either_way() {
    let Some(mut target) = start() else { return };
    target.command("code");
    target.command("map files 3000");
    target.command("map memory 3000");
    let process = Process::open(target.pid()).unwrap();
    let with_name = |mapping: &otelctx_remote::Mapping<'_>| {
        let name = match mapping.permissions.execute {
            true => mapping.name.to_vec(),
            false => Vec::new(),
        };
        let (at, file) = (mapping.start..mapping.end, (mapping.device, mapping.inode));
        (at, mapping.permissions, mapping.offset, file, name)
    };
    let mut expected = Vec::new();
    let walk = process.mappings(&mut |mapping| {
        expected.extend((mapping.inode != 0).then(|| with_name(mapping)));
        ControlFlow::Continue(())
    });
    assert!(walk.unwrap().mappings > 6000);
    assert!(expected.len() > 3000 && expected.iter().any(|it| !it.4.is_empty()));
    for text in [false, true] {
        let options = ScanOptions {
            text,
            ..ScanOptions::default()
        };
        let mut seen = Vec::new();
        let all = process.file_mappings(options, &mut |mapping| seen.push(with_name(mapping)));
        assert_eq!(all.unwrap(), Scan::Complete(()));
        assert!(seen == expected, "as text: {text}");
        let late = ScanOptions {
            deadline: Some(Instant::now()),
            ..options
        };
        let none = process.file_mappings(late, &mut |mapping| panic!("{mapping:?}"));
        assert_eq!(none.unwrap(), Scan::DeadlinePassed);
    }
}

#[test]
fn limits_end_a_search() {
    let Some(target) = start() else { return };
    let process = Process::open(target.pid()).unwrap();
    let mappings = process
        .mappings(&mut |_| ControlFlow::Continue(()))
        .unwrap()
        .mappings;
    let scan = |options| {
        let filter = NameFilter {
            names: &NAMES,
            limit: 64,
            options,
        };
        process.search(filter).unwrap()
    };
    let within = |limit| {
        scan(ScanOptions {
            max_mappings: Some(limit),
            ..ScanOptions::default()
        })
    };
    assert!(matches!(within(mappings), Scan::Complete(_)));
    assert!(matches!(within(mappings - 1), Scan::TooMany));
    let late = ScanOptions {
        deadline: Some(Instant::now()),
        text: true,
        ..ScanOptions::default()
    };
    assert!(matches!(scan(late), Scan::DeadlinePassed));
}
