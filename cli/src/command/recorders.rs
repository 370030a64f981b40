//! How `dump --last` finds a running `record --keep`, and what they say to each other.
//!
//! A recorder listens on a socket in a directory that only its user may enter. Sockets of the abstract namespace have no
//! permissions (unix(7)): every user could write to one. Both sides check that the other one has their user ID.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::libc;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

/// Maximum size of a message to a recorder, in bytes.
pub(super) const MAX_REQUEST: usize = 4096;
/// Maximum size of a recorder's answer, in bytes.
pub(super) const MAX_ANSWER: u64 = 1 << 20;

/// A request to write; one line of JSON.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Request {
    /// The time to write, in nanoseconds.
    pub(super) last_ns: u64,
}

/// The answer to a [`Request`]; one line of JSON, which `dump --last --json` prints (docs/json.md).
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answer {
    /// The recorder's process ID.
    pub(super) recorder: i32,
    pub(super) samples: usize,
    /// The time that the samples span, in nanoseconds.
    pub(super) duration_ns: u64,
    /// Absolute paths.
    pub(super) files: Vec<PathBuf>,
    /// Why files were not written, or nothing was.
    pub(super) failed: Vec<String>,
}

/// Returns the directories that recorders of this user may have sockets in.
pub(super) fn directories() -> Vec<PathBuf> {
    let user = geteuid();
    let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let given = given.filter(|it| it.is_absolute());
    let system = PathBuf::from(format!("/run/user/{user}"));
    let runtime = given.into_iter().chain([system]);
    let mut all: Vec<PathBuf> = runtime.map(|it| it.join("otelctx")).collect();
    all.push(format!("/tmp/otelctx-{user}").into());
    all.dedup();
    all
}

/// Checks that a directory is this user's, and that nobody else may enter it.
fn check(directory: &Path) -> io::Result<()> {
    let found = directory.symlink_metadata()?;
    let is_own = found.is_dir() && found.uid() == geteuid().as_raw();
    if is_own && found.mode() & 0o077 == 0 {
        Ok(())
    } else {
        let message = format!("{} is open to other users", directory.display());
        Err(io::Error::new(ErrorKind::PermissionDenied, message))
    }
}

/// A socket that is removed when it is dropped.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) listener: UnixListener,
    path: PathBuf,
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Listens as recorder `pid` in the first of these directories that can be used.
pub(super) fn listen(directories: &[PathBuf], pid: u32) -> io::Result<Socket> {
    let mut failure = io::Error::from(ErrorKind::NotFound);
    for directory in directories {
        match listen_in(directory, pid) {
            Ok(socket) => return Ok(socket),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn listen_in(directory: &Path, pid: u32) -> io::Result<Socket> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => check(directory)?,
    }
    // In another PID namespace, another recorder may have the same ID.
    let path = directory.join(format!("record-{pid}.sock"));
    if connect(&path).is_ok() {
        return Err(ErrorKind::AddrInUse.into());
    }
    // Under its name, it accepts connections from the beginning: one that refuses them is removed as stale.
    let hidden = directory.join(format!(".record-{pid}"));
    let _ = fs::remove_file(&hidden);
    let listener = UnixListener::bind(&hidden)?;
    let named = fs::set_permissions(&hidden, Permissions::from_mode(0o600))
        .and_then(|()| fs::rename(&hidden, &path));
    match named {
        Ok(()) => Ok(Socket { listener, path }),
        Err(error) => {
            let _ = fs::remove_file(&hidden);
            Err(error)
        }
    }
}

/// Connects to a socket of this user.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(path)?;
    if is_own_peer(&stream) {
        Ok(stream)
    } else {
        Err(ErrorKind::PermissionDenied.into())
    }
}

/// Returns whether the process at the other end of a connection has this process's user ID.
pub(super) fn is_own_peer(stream: &UnixStream) -> bool {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: SO_PEERCRED writes one ucred, at most `size` bytes (unix(7)). This function owns both, and the descriptor
    // is open.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut size,
        )
    };
    result == 0 && size as usize == size_of::<libc::ucred>() && peer.uid == geteuid().as_raw()
}

/// A running recorder.
#[derive(Debug)]
pub(super) struct Recorder {
    pub(super) pid: i32,
    pub(super) stream: UnixStream,
}

/// Returns the running recorders with sockets in these directories, by their IDs. Removes the sockets of recorders that
/// were killed.
pub(super) fn running(directories: &[PathBuf]) -> Vec<Recorder> {
    let mut found: Vec<Recorder> = Vec::new();
    let private = directories.iter().filter(|it| check(it).is_ok());
    let entries = private.flat_map(|it| fs::read_dir(it).into_iter().flatten().flatten());
    for path in entries.map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let pid = name
            .strip_prefix("record-")
            .and_then(|it| it.strip_suffix(".sock"));
        let Some(pid) = pid.and_then(|pid| pid.parse().ok()) else {
            continue;
        };
        match connect(&path) {
            Ok(stream) if found.iter().all(|it| it.pid != pid) => {
                found.push(Recorder { pid, stream });
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                let _ = fs::remove_file(&path);
            }
            _ => {}
        }
    }
    found.sort_by_key(|it| it.pid);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("otelctx-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn recorders_are_found_until_they_end_and_stale_sockets_are_removed() {
        let base = scratch("recorders");
        let directories = [base.join("absent/otelctx"), base.join("otelctx")];
        let pids = || -> Vec<i32> { running(&directories).iter().map(|it| it.pid).collect() };
        assert_eq!(pids(), [0; 0]);
        let first = listen(&directories, 12).unwrap();
        let second = listen(&directories, 7).unwrap();
        assert_eq!(pids(), [7, 12]);
        let directory = &directories[1];
        let mode = |path: &Path| path.symlink_metadata().unwrap().mode() & 0o777;
        assert_eq!((mode(directory), mode(&second.path)), (0o700, 0o600));
        let taken = listen(&directories, 7).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        drop(first);
        assert_eq!(pids(), [7]);
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn a_killed_recorders_socket_is_removed_and_makes_way() {
        let base = scratch("stale-recorder");
        let directories = [base.join("otelctx")];
        drop(listen(&directories, 8).unwrap());
        let paths = ["record-7.sock", "record-8.sock", "record-x.sock"];
        let [first, second, other] = paths.map(|name| directories[0].join(name));
        for path in [&first, &second, &other] {
            // Its file stays.
            drop(UnixListener::bind(path).unwrap());
        }
        let socket = listen(&directories, 8).unwrap();
        let pids: Vec<i32> = running(&directories).iter().map(|it| it.pid).collect();
        assert_eq!(pids, [8]);
        assert_eq!(
            [&first, &second, &other].map(|it| it.exists()),
            [false, true, true]
        );
        drop(socket);
        assert!(!second.exists());
        fs::remove_dir_all(&base).unwrap();
    }

    /// As another user, who may enter the directory and use the socket.
    #[test]
    fn another_user_is_no_peer() {
        if !geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let base = scratch("other-user");
        let path = base.join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        for user in [0, 65_534] {
            let path = path.clone();
            let connected = std::thread::spawn(move || {
                // SAFETY: the system call has no preconditions. Unlike the C library's function, it changes this thread alone.
                let changed = unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) };
                assert_eq!(changed, 0);
                UnixStream::connect(path).unwrap()
            });
            let (server, _) = listener.accept().unwrap();
            assert_eq!(is_own_peer(&server), user == 0, "{user}");
            // The socket's own user is who listens.
            assert!(is_own_peer(&connected.join().unwrap()));
        }
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn a_directory_that_others_may_enter_is_not_used() {
        let base = scratch("open-recorders");
        let directories = [base.join("otelctx")];
        let socket = listen(&directories, 7).unwrap();
        fs::set_permissions(&directories[0], Permissions::from_mode(0o750)).unwrap();
        assert!(running(&directories).is_empty());
        let refused = listen(&directories, 8).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
        // Nor another name of one: the link is whose it is.
        fs::set_permissions(&directories[0], Permissions::from_mode(0o700)).unwrap();
        let link = base.join("link");
        std::os::unix::fs::symlink(&directories[0], &link).unwrap();
        assert!(running(&[link]).is_empty());
        assert_eq!(running(&directories).len(), 1);
        drop(socket);
        fs::remove_dir_all(&base).unwrap();
    }
}
