use super::*;

/// A dictionary without entries but the first ones: without a sample, there is no table.
const EMPTY: &[u8] = b"\x12\x0e\x0a\0\x12\0\x1a\0\x22\0\x2a\0\x32\0\x3a\0";

fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("otelctx-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    folder
}

fn open(folder: &Path) -> ParquetFiles {
    ParquetFiles::open(folder, "web-1/é", Duration::ZERO).unwrap()
}

fn some(number: u32, bytes: u64, samples: u64) -> Messages {
    Messages {
        number,
        bytes,
        samples,
    }
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "it is compared with the result of making room"
)]
fn discarded(number: u32, bytes: u64, samples: u64) -> Option<Discarded> {
    Some(Discarded {
        messages: some(number, bytes, samples),
        removal: Ok(()),
    })
}

/// Waits until tables are written, and returns the result.
fn written(files: &mut ParquetFiles) -> Result<Removal, Error> {
    loop {
        if let Some(result) = files.written() {
            return result;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The files below a folder, by their paths relative to it.
fn files(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let mut left = vec![folder.to_owned()];
    while let Some(next) = left.pop() {
        for path in entries(&next).unwrap() {
            match path.is_dir() {
                true => left.push(path),
                false => all.push(path.strip_prefix(folder).unwrap().display().to_string()),
            }
        }
    }
    all.sort();
    all
}

#[test]
fn messages_of_an_agent_that_was_killed_are_kept() {
    let folder = scratch("parquet-kept");
    let mut first = open(&folder);
    (0..3).for_each(|number| first.add(&[number], 1).unwrap());
    // As if it was killed while it wrote another one.
    fs::write(first.folder.own.join("unfinished"), b"x").unwrap();
    drop(first);
    let mut second = open(&folder);
    assert_eq!((second.kept, second.taken), (some(3, 3, 0), some(0, 0, 0)));
    assert!(second.begun.is_some());
    second.add(b"more", 1).unwrap();
    assert_eq!(second.kept, some(4, 7, 1));
    let last = message_path(&second.folder.kept(), 4);
    assert_eq!(fs::read(last).unwrap(), b"more");
    // As if it was killed while it converted them.
    fs::rename(second.folder.kept(), second.folder.taken()).unwrap();
    drop(second);
    let third = open(&folder);
    assert_eq!((third.kept, third.taken), (some(0, 0, 0), some(4, 7, 0)));
    assert!(third.begun.is_some());
    third.folder.forget(&third.folder.taken()).unwrap().unwrap();
    assert_eq!(files(&folder), [".agent-web-1/lock"]);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_host_has_a_name_and_one_agent() {
    let folder = scratch("parquet-host");
    let first = open(&folder);
    let names = (&first.folder.host[..], &first.folder.name[..]);
    assert_eq!(names, ("web-1/é", "web-1"));
    let open = |host| ParquetFiles::open(&folder, host, Duration::ZERO);
    let why = open("web-1").unwrap_err().to_string();
    assert_eq!(
        why,
        "another agent writes the Parquet files of this host there"
    );
    drop(first);
    open("web-1").unwrap();
    let why = open("é").unwrap_err().to_string();
    assert!(why.starts_with("no file can be named after this host, \"é\""));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn messages_that_are_in_a_table_are_removed_at_once_or_later() {
    let folder = scratch("parquet-removed");
    let mut first = open(&folder);
    first.add(b"message", 1).unwrap();
    let (kept, taken) = (first.folder.kept(), first.folder.taken());
    let (kept_done, done) = (first.folder.done(&kept), first.folder.done(&taken));
    // As if it was killed while it removed them.
    fs::rename(&kept, &done).unwrap();
    fs::create_dir(&kept_done).unwrap();
    drop(first);
    let mut second = open(&folder);
    let are_there = (done.exists(), kept_done.exists());
    assert_eq!((second.kept.number, are_there), (0, (false, false)));
    second.add(b"message", 1).unwrap();
    fs::rename(&kept, &taken).unwrap();
    second.add(b"message", 1).unwrap();
    // No folder: it can be removed by nothing that removes folders.
    fs::write(&done, b"x").unwrap();
    assert!(second.folder.forget(&taken).is_err());
    assert_eq!(find(&taken).number, 1);
    // Others are removed meanwhile.
    second.folder.forget(&kept).unwrap().unwrap();
    assert_eq!(find(&kept).number, 0);
    fs::remove_file(&done).unwrap();
    second.folder.forget(&taken).unwrap().unwrap();
    assert_eq!(find(&taken).number, 0);
    second.folder.forget(&taken).unwrap().unwrap();
    fs::remove_dir_all(folder).unwrap();
}

/// Each loss is counted once, whatever else fails.
#[test]
fn samples_that_are_in_no_table_are_counted() {
    let folder = scratch("parquet-lost");
    let mut tables = Tables {
        files: Some(open(&folder)),
        notices: Arc::new(Mutex::new(Notices::new())),
        failure: None,
    };
    let files = |tables: &mut Tables| tables.files.take().unwrap();
    assert_eq!(tables.add(b"first", 5), 0);
    let mut some_files = files(&mut tables);
    let (kept, own) = (some_files.folder.kept(), some_files.folder.own.clone());
    let done = some_files.folder.done(&kept);
    some_files.kept.bytes = MAX_KEPT;
    tables.files = Some(some_files);
    // No room can be made: the messages stay.
    fs::write(&done, b"x").unwrap();
    assert_eq!(tables.add(b"second", 7), 7);
    assert_eq!(find(&kept).number, 1);
    fs::remove_file(&done).unwrap();
    // Room is made, and the write after that fails.
    fs::create_dir(own.join("unfinished")).unwrap();
    assert_eq!(tables.add(b"third", 11), 5 + 11);
    let some_files = files(&mut tables);
    assert_eq!((some_files.kept, find(&kept).number), (some(0, 0, 0), 0));
    tables.files = Some(some_files);
    assert_eq!(tables.add(b"fourth", 13), 13);
    fs::remove_dir(own.join("unfinished")).unwrap();
    assert_eq!(tables.add(b"fifth", 17), 0);
    assert_eq!(files(&mut tables).kept, some(1, 5, 17));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn messages_that_cannot_be_converted_are_bounded() {
    let folder = scratch("parquet-bound");
    let mut files = open(&folder);
    files.add(b"this is no message", 5).unwrap();
    files.write_if_due().unwrap();
    assert_eq!((files.kept, files.taken), (some(0, 0, 0), some(1, 18, 5)));
    assert!(written(&mut files).is_err());
    files.add(b"x", 7).unwrap();
    // The same ones again, and one at a time.
    files.write_if_due().unwrap();
    files.write_if_due().unwrap();
    assert_eq!((files.kept, files.taken), (some(1, 1, 7), some(1, 18, 5)));
    // Messages that are being converted stay.
    files.kept.bytes = MAX_KEPT;
    assert_eq!(files.make_room().unwrap(), discarded(1, MAX_KEPT, 7));
    files.add(b"yz", 8).unwrap();
    assert_eq!((files.kept, files.taken), (some(1, 2, 8), some(1, 18, 5)));
    assert!(written(&mut files).is_err());
    files.kept.bytes = MAX_KEPT;
    assert_eq!(files.make_room().unwrap(), discarded(1, 18, 5));
    files.add(b"z", 9).unwrap();
    assert_eq!((files.kept, files.taken.number), (some(1, 1, 9), 0));
    assert_eq!(files.full, [(1, some(1, MAX_KEPT, 8))]);
    assert_eq!(find(&files.folder.taken()).number, 0);
    fs::remove_dir_all(folder).unwrap();
}

/// As if they were too many to convert: those after them are converted.
#[test]
fn messages_that_cannot_be_converted_are_discarded_after_two_attempts() {
    let folder = scratch("parquet-bad");
    let mut tables = Tables {
        files: Some(open(&folder)),
        notices: Arc::new(Mutex::new(Notices::new())),
        failure: None,
    };
    assert_eq!(tables.add(b"this is no message", 5), 0);
    let mut lost = Vec::new();
    let mut add = Some(EMPTY);
    loop {
        lost.push(tables.write_if_due());
        if let Some(message) = add.take() {
            assert_eq!(tables.add(message, 7), 0);
        }
        let files = tables.files.as_mut().unwrap();
        if files.taken.number == 0 && files.kept.number == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    lost.retain(|it| *it > 0);
    let failures = tables.files.as_ref().unwrap().failures;
    assert_eq!((lost, failures), (vec![5], 0));
    assert_eq!(files(&folder), [".agent-web-1/lock"]);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn messages_stay_while_the_disk_is_at_fault() {
    let folder = scratch("parquet-disk");
    let mut files = open(&folder);
    files.add(EMPTY, 5).unwrap();
    // No folder: it can be removed by nothing that removes folders.
    fs::write(files.folder.own.join("new"), b"x").unwrap();
    for _ in 0..3 {
        files.write_if_due().unwrap();
        assert!(written(&mut files).is_err());
        assert_eq!(files.give_up().unwrap(), None);
    }
    assert_eq!((files.taken.samples, files.failures), (5, 0));
    fs::remove_file(files.folder.own.join("new")).unwrap();
    files.write_if_due().unwrap();
    written(&mut files).unwrap().unwrap();
    assert_eq!(files.taken, some(0, 0, 0));
    fs::remove_dir_all(folder).unwrap();
}

/// However long a conversion takes, the next one has no more than its bound.
#[test]
fn messages_are_divided_before_they_are_too_many_to_convert() {
    let folder = scratch("parquet-full");
    let mut files = open(&folder);
    files.add(EMPTY, 1).unwrap();
    files.write_if_due().unwrap();
    let converted = files.taken;
    for samples in 2..12 {
        files.add(EMPTY, samples).unwrap();
        files.kept.bytes = MAX_MESSAGES;
    }
    let full = |number: u32| (number, some(1, MAX_MESSAGES, u64::from(number) + 1));
    assert_eq!(files.taken, converted);
    assert_eq!(files.kept, some(1, MAX_MESSAGES, 11));
    assert_eq!(files.full, (1..10).map(full).collect::<VecDeque<_>>());
    // What is being converted stays, and the oldest of the others is discarded.
    assert_eq!(files.make_room().unwrap(), discarded(1, MAX_MESSAGES, 2));
    assert_eq!(find(&files.folder.full(1)), some(0, 0, 0));
    written(&mut files).unwrap().unwrap();
    files.interval = Duration::MAX;
    // At once, and in order.
    files.write_if_due().unwrap();
    assert_eq!(
        (files.taken, files.full.front()),
        (full(2).1, Some(&full(3)))
    );
    written(&mut files).unwrap().unwrap();
    drop(files);
    // As if the agent was killed. Numbers have an order, not their texts: 10 is after 9.
    let kept = folder.join(".agent-web-1/messages");
    fs::rename(kept, folder.join(".agent-web-1/full-10")).unwrap();
    let mut files = open(&folder);
    let size = EMPTY.len() as u64;
    let expected = (3..11).map(|number| (number, some(1, size, 0)));
    assert_eq!(files.full, expected.collect::<VecDeque<_>>());
    assert_eq!((files.kept, files.begun.is_some()), (some(0, 0, 0), true));
    files.kept.bytes = MAX_KEPT;
    assert_eq!(files.make_room().unwrap(), discarded(1, size, 0));
    assert_eq!(files.full.front(), Some(&(4, some(1, size, 0))));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn messages_are_collected_while_others_are_converted() {
    let folder = scratch("parquet-meanwhile");
    let mut files = open(&folder);
    files.add(EMPTY, 0).unwrap();
    files.write_if_due().unwrap();
    files.add(b"next", 1).unwrap();
    assert_eq!((files.kept.number, files.taken.number), (1, 1));
    written(&mut files).unwrap().unwrap();
    assert_eq!((files.kept.number, files.taken.number), (1, 0));
    assert!(files.begun.is_some() && files.written().is_none());
    let found = find(&files.folder.kept());
    assert_eq!(
        (found, find(&files.folder.taken()).number),
        (some(1, 4, 0), 0)
    );
    fs::remove_dir_all(folder).unwrap();
}

/// Files in folders beyond a limit would be removed without having been moved.
#[test]
fn too_many_folders_are_an_error() {
    let folder = scratch("parquet-folders");
    assert_eq!(at_most(1, &folder).unwrap(), Vec::<PathBuf>::new());
    fs::create_dir_all(folder.join("a")).unwrap();
    fs::create_dir_all(folder.join("b")).unwrap();
    assert_eq!(at_most(2, &folder).unwrap().len(), 2);
    let error = at_most(1, &folder).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    let expected = format!("{}: more than 1 folders", folder.display());
    assert_eq!(error.to_string(), expected);
    fs::remove_dir_all(folder).unwrap();
}

/// As after an agent that was killed before it had removed the messages.
#[test]
fn what_is_written_again_replaces_what_was_written() {
    let folder = scratch("parquet-again");
    let mut tables = open(&folder);
    tables.add(b"message", 1).unwrap();
    fs::rename(tables.folder.kept(), tables.folder.taken()).unwrap();
    for content in ["first", "second"] {
        let new = tables.folder.own.join("new");
        let part = new.join("hour=2026-11-30T13/service=shop");
        fs::create_dir_all(&part).unwrap();
        fs::write(part.join("part.parquet"), content).unwrap();
        tables.folder.publish(&new).unwrap();
        let found = files(&folder);
        let [_lock, _message, table] = &found[..] else {
            panic!("{found:?}");
        };
        let start = "hour=2026-11-30T13/service=shop/part-web-1-";
        assert!(table.starts_with(start), "{table}");
        assert_eq!(fs::read_to_string(folder.join(table)).unwrap(), content);
    }
    fs::remove_dir_all(folder).unwrap();
}
