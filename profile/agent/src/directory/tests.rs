use std::collections::BTreeSet;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;

/// A directory that is removed with this value.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("otelctx-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        Self(path)
    }

    pub(crate) fn names(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let names = entries.map(|it| it.unwrap().file_name().into_string().unwrap());
        names.filter(|it| it != LOCK).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What may be read later is no damage: the message would be lost.
#[test]
fn only_another_file_than_the_written_one_is_damage() {
    let of = |errno: Errno| Directory::is_damage(&io::Error::from(errno));
    for errno in [
        Errno::EMFILE,
        Errno::ENFILE,
        Errno::EIO,
        Errno::ENOMEM,
        Errno::EACCES,
    ] {
        assert!(!of(errno), "{errno}");
    }
    for errno in [Errno::ENOENT, Errno::ELOOP] {
        assert!(of(errno), "{errno}");
    }
    assert!(Directory::is_damage(&ErrorKind::InvalidData.into()));
}

/// Its owner could exchange what it leads to after the check.
#[test]
fn a_link_to_a_directory_is_refused() {
    let folder = Scratch::new("queue-link");
    let link = folder.0.join("link");
    fs::create_dir(folder.0.join("queue")).unwrap();
    symlink("queue", &link).unwrap();
    let error = Directory::open(&link).unwrap_err();
    assert!(matches!(error, DirectoryError::Io { .. }), "{error:?}");
}

#[test]
fn a_file_is_the_message_itself_with_its_facts_in_its_name() {
    let scratch = Scratch::new("directory-name");
    let directory = Directory::open(&scratch.0).unwrap();
    let stored = Stored::of(7, 3, b"123456789");
    directory.write(stored, b"123456789").unwrap();
    // The CRC is that of the check value in catalogues of CRC algorithms.
    let name = "00000000000000000007-3-9-cbf43926.otlp";
    assert_eq!(scratch.names(), BTreeSet::from([name.to_owned()]));
    assert_eq!(fs::read(scratch.0.join(name)).unwrap(), b"123456789");
    assert_eq!(directory.find().unwrap().messages, [stored]);
    assert_eq!(directory.read(stored).unwrap(), b"123456789");
    let mode = fs::metadata(scratch.0.join(name)).unwrap().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn names_that_would_not_be_written_like_this_are_foreign() {
    for name in [
        "7-3-9-cbf43926.otlp",
        "00000000000000000007-3-9-CBF43926.otlp",
        "00000000000000000007-3-9-cbf43926.otlp.1",
        "00000000000000000007-3-9-cbf43926-1.otlp",
        "00000000000000000007-3-9.otlp",
        "00000000000000000007-03-9-cbf43926.otlp",
        "+0000000000000000007-3-9-cbf43926.otlp",
        "00000000000000000007-10-9-cbf43926.otlp",
        "00000000000000000007-3-999999999999-cbf43926.otlp",
        "18446744073709551615-3-9-cbf43926.otlp",
        "99999999999999999999-3-9-cbf43926.otlp",
        "",
        ".otlp",
        "----.otlp",
    ] {
        assert_eq!(Stored::parse(OsStr::new(name)), None, "{name}");
    }
}

#[test]
fn what_is_no_message_is_left_alone_and_counted() {
    let scratch = Scratch::new("directory-foreign");
    let directory = Directory::open(&scratch.0).unwrap();
    let (whole, short) = (Stored::of(1, 1, b"whole"), Stored::of(2, 1, b"short"));
    let (pipe, link, folder) = (
        Stored::of(3, 1, b"x"),
        Stored::of(4, 1, b"whole"),
        Stored::of(5, 0, b""),
    );
    directory.write(whole, b"whole").unwrap();
    directory.write(short, b"shor").unwrap();
    nix::unistd::mkfifo(&directory.path(pipe), nix::sys::stat::Mode::S_IRWXU).unwrap();
    symlink(directory.path(whole), directory.path(link)).unwrap();
    fs::create_dir(directory.path(folder)).unwrap();
    fs::write(scratch.0.join("notes.txt"), "mine").unwrap();
    fs::write(scratch.0.join(UNFINISHED), "who").unwrap();
    let found = directory.find().unwrap();
    assert_eq!(found.messages, [whole]);
    let damaged: BTreeSet<_> = found.damaged.into_iter().collect();
    assert_eq!(damaged, BTreeSet::from([short, pipe, link, folder]));
    let foreign = found.foreign.unwrap();
    assert_eq!(foreign, (scratch.0.join("notes.txt"), 1));
    let left = BTreeSet::from([whole.name(), "notes.txt".to_owned()]);
    assert_eq!(scratch.names(), left);
}

/// Whatever is in a file and in its name: what is read is the message that was written, or an error.
#[test]
fn mutated_files_are_read_as_written_or_not_at_all() {
    let scratch = Scratch::new("directory-mutated");
    let directory = Directory::open(&scratch.0).unwrap();
    let mut random = fastrand::Rng::with_seed(36);
    let (mut read, mut refused) = (0, 0);
    for sequence in 0..1_000_u64 {
        let message: Vec<u8> = (0..random.usize(0..200)).map(|_| random.u8(..)).collect();
        let stored = Stored::of(sequence, 0, &message);
        directory.write(stored, &message).unwrap();
        let path = directory.path(stored);
        let mut bytes = message.clone();
        for _ in 0..random.usize(0..4) {
            match random.u8(0..4) {
                0 => bytes.truncate(random.usize(0..=bytes.len())),
                1 => bytes.push(random.u8(..)),
                _ if bytes.is_empty() => {}
                2 => {
                    let at = random.usize(0..bytes.len());
                    bytes[at] ^= 1 << random.u8(0..8);
                }
                _ => bytes.rotate_left(1),
            }
        }
        fs::write(&path, &bytes).unwrap();
        let mut name = path.file_name().unwrap().as_encoded_bytes().to_vec();
        if random.bool() {
            let at = random.usize(0..name.len());
            name[at] = random.u8(b'-'..=b'g');
        }
        let name = String::from_utf8(name).unwrap();
        let renamed = scratch.0.join(name.replace('/', "-"));
        fs::rename(&path, &renamed).unwrap();
        let found = directory.find().unwrap();
        for found in found.messages {
            match directory.read(found) {
                Ok(bytes) => {
                    assert_eq!(bytes, message);
                    read += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::InvalidData);
                    refused += 1;
                }
            }
            directory.remove(found).unwrap();
        }
        let _ = fs::remove_file(renamed);
    }
    assert!(read > 50 && refused > 50, "{read} {refused}");
}

/// Child processes of an agent that was killed end after it, and have its lock until then.
#[test]
fn a_lock_may_be_released_late() {
    let scratch = Scratch::new("directory-late-lock");
    fs::create_dir_all(&scratch.0).unwrap();
    let mut first = lock_with_retries(&scratch.0, || ()).unwrap();
    assert!(first.is_some());
    let mut pauses = 0;
    let second = lock_with_retries(&scratch.0, || pauses += 1).unwrap();
    assert!(second.is_none());
    assert_eq!(pauses, LOCK_ATTEMPTS - 1);
    let mut pauses = 0;
    let second = lock_with_retries(&scratch.0, || {
        pauses += 1;
        if pauses == LOCK_ATTEMPTS - 1 {
            first = None;
        }
    });
    assert!(second.unwrap().is_some());
    assert_eq!(pauses, LOCK_ATTEMPTS - 1);
}

#[test]
fn a_directory_belongs_to_one_process_and_one_user() {
    let scratch = Scratch::new("directory-lock");
    let path = scratch.0.join("new/queue");
    let first = Directory::open(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    let second = Directory::open(&path).unwrap_err();
    assert!(matches!(second, DirectoryError::InUse { .. }), "{second}");
    drop(first);
    Directory::open(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o770)).unwrap();
    let open = Directory::open(&path).unwrap_err();
    assert!(matches!(open, DirectoryError::Writable { .. }), "{open}");
    let file = scratch.0.join("file");
    fs::write(&file, "").unwrap();
    let error = Directory::open(&file).unwrap_err();
    assert!(matches!(error, DirectoryError::Io { .. }), "{error}");
}
