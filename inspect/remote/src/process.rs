//! Reads a process and its threads through `/proc`, relative to a descriptor of its directory.

mod executable;
mod fork;
mod open_files;
mod search;
mod sizes;
mod stat;
mod status;

use std::cell::Cell;
use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, open, openat, openat2, readlinkat};
use nix::sys::stat::{Mode, fstat, fstatat};

use crate::mappings::{self, Visit, Walk};
use crate::memory::ProcessMemory;

use crate::file::{is_mapped_file, reopen};
use crate::{Device, Error, module, permission};
pub use sizes::{Sizes, SizesFile};
pub use stat::{Stat, TICK};
pub use status::Status;

/// Maximum number of bytes read of a `/proc` file whose length the target controls.
const STATUS_LIMIT: u64 = 64 * 1024;
/// More than the size of `comm`, in bytes: at most 64 (fs/proc/array.c, `proc_task_name`).
const NAME_SIZE: usize = 128;

/// Maximum number of bytes read of the list of one thread's children: PID_MAX_LIMIT, 8 bytes each.
const MAX_CHILDREN: u64 = 32 << 20;

/// A process, pinned by a descriptor of its directory in `/proc`: once the process has exited,
/// every read fails, even if its ID was reused.
#[derive(Debug)]
pub struct Process {
    pid: i32,
    directory: OwnedFd,
}

/// A thread of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// Its ID in the reader's PID namespace.
    pub tid: i32,
    /// Its name: at most 15 bytes, chosen by the target.
    pub name: OsString,
}

/// The IDs of all existing processes.
pub fn processes() -> Result<Vec<i32>, Error> {
    let path = Path::new("/proc");
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    let mut directory = Dir::open(path, flags, Mode::empty()).map_err(Error::io(path))?;
    let numbers: Result<Vec<i32>, Errno> = numbers(&mut directory).collect();
    numbers.map_err(Error::io(path))
}

/// The entries of a directory whose names are numbers, and errors of reading it.
fn numbers(directory: &mut Dir) -> impl Iterator<Item = Result<i32, Errno>> {
    let number = |name: &CStr| name.to_str().ok()?.parse().ok();
    directory.iter().filter_map(move |entry| match entry {
        Ok(entry) => number(entry.file_name()).map(Ok),
        Err(errno) => Some(Err(errno)),
    })
}

impl Process {
    /// Opens the process. Reads nothing yet.
    pub fn open(pid: i32) -> Result<Self, Error> {
        if !is_own_proc() {
            return Err(Error::OtherPidNamespace { pid });
        }
        let path = PathBuf::from(format!("/proc/{pid}"));
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        match open(&path, flags, Mode::empty()) {
            Ok(directory) => Ok(Process { pid, directory }),
            Err(Errno::ENOENT) => Err(Error::NoSuchProcess { pid }),
            Err(errno) => Err(Error::io(path)(errno)),
        }
    }

    /// Its process ID.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns whether the process still exists, including as a zombie. True if that is unknown.
    pub fn exists(&self) -> bool {
        !matches!(self.open_entry("stat"), Err(error) if is_gone(&error))
    }

    /// Its command name: at most 15 bytes, chosen by the target.
    pub fn comm(&self) -> Result<OsString, Error> {
        self.name_of("comm")
    }

    fn name_of(&self, entry: &str) -> Result<OsString, Error> {
        let mut buffer = [0; NAME_SIZE];
        let file = self.open_entry(entry);
        let size = file.and_then(|file| file.read_at(&mut buffer, 0));
        let text = &buffer[..size.map_err(|error| self.error(entry, "read /proc", error))?];
        let name = text.strip_suffix(b"\n").unwrap_or(text);
        Ok(OsString::from_vec(name.to_vec()))
    }

    /// The target of `/proc/PID/exe`: a path in the process's mount namespace, followed by `
    /// (deleted)` if the file was deleted. For a program started with `ld.so PROGRAM`, it is ld.so.
    pub fn executable(&self) -> Result<PathBuf, Error> {
        let entry = format!("{}exe", self.task_prefix());
        readlinkat(&self.directory, entry.as_str())
            .map(PathBuf::from)
            .map_err(|errno| self.error("exe", "read the executable's name", errno.into()))
    }

    /// Opens the file that [`Self::executable`] names, even if it was deleted.
    pub fn open_executable(&self) -> Result<File, Error> {
        let entry = format!("{}exe", self.task_prefix());
        self.open_entry(&entry)
            .map_err(|error| self.error("exe", "read the executable", error))
    }

    /// Its threads, in the order of `/proc/PID/task`, without threads that exit meanwhile. May not
    /// end, like [`Self::visit_thread_ids`].
    pub fn threads(&self) -> Result<Vec<Thread>, Error> {
        let mut threads = Vec::new();
        for tid in self.thread_ids()? {
            match self.thread_name(tid) {
                Ok(name) => threads.push(Thread { tid, name }),
                Err(Error::NoSuchThread { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(threads)
    }

    /// The IDs of its threads. May not end, like [`Self::visit_thread_ids`].
    pub fn thread_ids(&self) -> Result<Vec<i32>, Error> {
        let mut ids = Vec::new();
        self.visit_thread_ids(&mut |tid| {
            ids.push(tid);
            ControlFlow::Continue(())
        })?;
        Ok(ids)
    }

    /// Calls `visit` with the ID of each thread until it breaks. The list does not end while a
    /// process creates threads as fast as it is read.
    pub fn visit_thread_ids(
        &self,
        visit: &mut dyn FnMut(i32) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let error = |errno: Errno| self.error("task", "list the threads", errno.into());
        let mut directory =
            Dir::openat(&self.directory, "task", flags, Mode::empty()).map_err(error)?;
        for tid in numbers(&mut directory) {
            if visit(tid.map_err(error)?).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// The name of thread `tid`: at most 15 bytes, chosen by the target.
    pub fn thread_name(&self, tid: i32) -> Result<OsString, Error> {
        let name = || self.name_of(&format!("task/{tid}/comm"));
        let name = match name() {
            // A thread that exists is not omitted because of one failed read.
            Err(Error::NoSuchProcess { .. }) if self.has_thread(tid) => name(),
            name => name,
        };
        name.map_err(|error| error.of_thread(tid))
    }

    /// Returns whether `tid` is a thread of this process.
    pub fn has_thread(&self, tid: i32) -> bool {
        self.open_path(Path::new(&format!("task/{tid}")), OFlag::O_PATH)
            .is_ok()
    }

    /// The process's status.
    pub fn status(&self) -> Result<Status, Error> {
        let flags = || self.stat().ok()?.flags();
        let text = self.read_entry("status", STATUS_LIMIT)?;
        Ok(Status::parse(&text, flags))
    }

    /// One thread's status.
    pub fn thread_status(&self, tid: i32) -> Result<Status, Error> {
        let status = self.read_entry(&format!("task/{tid}/status"), STATUS_LIMIT);
        status
            .map(|text| Status::parse(&text, || self.thread_stat(tid).ok()?.flags()))
            .map_err(|error| error.of_thread(tid))
    }

    /// The existing processes that its threads have started; none without CONFIG_PROC_CHILDREN.
    pub fn children(&self) -> Vec<i32> {
        let mut children = Vec::new();
        for tid in self.thread_ids().unwrap_or_default() {
            let list = self.read_entry(&format!("task/{tid}/children"), MAX_CHILDREN);
            let list = String::from_utf8(list.unwrap_or_default()).unwrap_or_default();
            let pids = list.split_whitespace().map(str::parse);
            children.extend(pids.filter_map(Result::<i32, _>::ok));
        }
        children
    }

    /// The control groups that it is in, one per line (cgroups(7)).
    pub fn control_groups(&self) -> Result<String, Error> {
        let text = self.read_entry("cgroup", STATUS_LIMIT)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// The environment with which the program was started, at most `limit` bytes of it.
    pub fn environment(&self, limit: usize) -> Result<Vec<(OsString, OsString)>, Error> {
        let entry = format!("{}environ", self.task_prefix());
        let bytes = self.read_entry(&entry, limit as u64)?;
        let pairs = bytes.split(|byte| *byte == 0).filter_map(|entry| {
            let equals = entry.iter().position(|byte| *byte == b'=')?;
            let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
            Some((text(&entry[..equals]), text(&entry[equals + 1..])))
        });
        Ok(pairs.collect())
    }

    /// Returns whether both share their memory (CLONE_VM), as a process and its vfork child do.
    /// `None` if the kernel was built without kcmp(2), or denies it.
    #[doc(alias = "kcmp")]
    pub fn shares_memory_with(&self, other: &Process) -> Option<bool> {
        const KCMP_VM: i32 = 1;
        // SAFETY: with KCMP_VM, kcmp(2) takes only numbers and accesses no memory of this process.
        let order =
            unsafe { nix::libc::syscall(nix::libc::SYS_kcmp, self.pid, other.pid, KCMP_VM, 0, 0) };
        // The IDs may have been reused.
        (order >= 0 && self.exists() && other.exists()).then_some(order == 0)
    }

    /// Opens its memory. This requires the right to trace the process.
    #[doc(alias = "process_vm_readv")]
    pub fn memory(&self) -> Result<ProcessMemory, Error> {
        let open = |prefix: &str| self.open_entry(&format!("{prefix}mem"));
        let mut memory = open("");
        // If there is no address space, the open fails, or (before Linux 6.14; fs/proc/base.c,
        // mem_rw) a read returns nothing. Otherwise, nothing is mapped at address 0.
        if memory
            .as_ref()
            .map_or_else(is_gone, |file| matches!(file.read_at(&mut [0], 0), Ok(0)))
            && let Some(prefix) = self.other_task()
        {
            memory = open(&prefix);
        }
        memory
            .map(ProcessMemory::new)
            .map_err(|error| self.error("mem", "read the memory", error))
    }

    /// Calls `visit` for each mapping until it breaks, see [`mappings`].
    ///
    /// Once the thread-group leader has exited, `/proc/PID/maps` is empty; another thread's is read
    /// then.
    pub fn mappings(&self, visit: Visit<'_>) -> Result<Walk, Error> {
        let visited = Cell::new(false);
        self.read_maps(
            |maps| {
                mappings::walk(maps, &mut |mapping| {
                    visited.set(true);
                    visit(mapping)
                })
            },
            // Nothing is visited twice: if a walk fails halfway, the process has ended.
            |walk| {
                let is_empty = |walk: &Walk| *walk == Walk::default();
                !visited.get() && walk.as_ref().map_or_else(is_gone, is_empty)
            },
        )
    }

    /// Opens a file that the process has mapped, given a mapping's range and name.
    ///
    /// Tries in turn: `map_files` (the mapped file, even if deleted or replaced; requires
    /// CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE), the process's program (even then, and for its own
    /// user), the path below the process's root, the plain path (for a process in a chroot). The
    /// file must have the device and inode that `/proc/PID/maps` shows.
    pub fn mapped_file(
        &self,
        range: (u64, u64),
        name: &[u8],
        device: Device,
        inode: u64,
    ) -> Option<File> {
        self.open_mapped(range, name, |file| is_mapped_file(file, device, inode))
    }

    /// Opens a file with this build ID that the process has mapped; see [`Process::mapped_file`].
    pub fn mapped_file_by_build_id(
        &self,
        range: (u64, u64),
        name: &[u8],
        build_id: &[u8],
    ) -> Option<File> {
        self.open_mapped(range, name, |file| {
            let found = reopen(file).and_then(|file| module::build_id(&file));
            found.is_some_and(|found| found == build_id)
        })
    }

    /// Opens the file of a mapping, if `is_mapped` returns true for it, opened with O_PATH.
    fn open_mapped(
        &self,
        (start, end): (u64, u64),
        name: &[u8],
        is_mapped: impl Fn(&File) -> bool,
    ) -> Option<File> {
        let open = |path: &Path| self.open_regular(path, &is_mapped);
        let by_path = || {
            let relative = OsStr::from_bytes(name.strip_prefix(b"/")?);
            let root = format!("{}root", self.task_prefix());
            let mut roots = [&root, "/"].into_iter();
            roots.find_map(|root| open(&Path::new(root).join(relative)))
        };
        open(Path::new(&format!("map_files/{start:x}-{end:x}")))
            .or_else(|| open(Path::new("exe")))
            .or_else(by_path)
    }

    /// Opens a file that the process has written, at a path relative to its root: a regular file of
    /// the process's user, or of root. Symbolic links stay below the root.
    pub fn open_own_file(&self, path: &Path) -> Option<File> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
        let root = self.open_path(Path::new("root"), flags).ok()?;
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT);
        let found = File::from(openat2(root, path, how).ok()?);
        let owner = fstat(&self.directory).ok()?.st_uid;
        let metadata = found.metadata().ok()?;
        let is_own = metadata.uid() == owner || metadata.uid() == 0;
        (metadata.is_file() && is_own).then(|| reopen(&found))?
    }

    /// Opens a file if it is a regular file and `is_wanted` returns true. It is first opened with
    /// O_PATH: opening a device can have side effects, and opening a FIFO unblocks its writer.
    fn open_regular(&self, path: &Path, is_wanted: impl FnOnce(&File) -> bool) -> Option<File> {
        let found = File::from(self.open_path(path, OFlag::O_PATH).ok()?);
        if !found.metadata().is_ok_and(|it| it.is_file()) || !is_wanted(&found) {
            return None;
        }
        reopen(&found)
    }

    /// The prefix of `/proc` entries of a running thread: empty for the thread-group leader, the
    /// directory of another thread if the leader has exited.
    fn task_prefix(&self) -> String {
        let other = (!self.has_memory("")).then(|| self.other_task());
        other.flatten().unwrap_or_default()
    }

    /// The directory of a running thread, if the thread-group leader has exited.
    fn other_task(&self) -> Option<String> {
        // "task" has a link for each thread, in addition to its own two (fs/proc/base.c,
        // proc_task_getattr): the leader is the only thread.
        let task = fstatat(&self.directory, "task", AtFlags::empty()).ok()?;
        if task.st_nlink == 3 {
            return None;
        }
        let mut found = None;
        // Not listed first: the list may not end.
        self.visit_thread_ids(&mut |tid| {
            found = Some(format!("task/{tid}/")).filter(|prefix| self.has_memory(prefix));
            if found.is_some() {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })
        .ok()?;
        found
    }

    /// A task without memory (a zombie, a kernel thread) has no executable.
    fn has_memory(&self, prefix: &str) -> bool {
        let link = readlinkat(&self.directory, format!("{prefix}exe").as_str());
        !matches!(link, Err(Errno::ENOENT | Errno::ESRCH))
    }

    /// Opens an entry; ESRCH if the task has no memory: its entries belong to root then
    /// (fs/proc/base.c, task_dump_owner), until a thread that executes a program takes over the ID.
    pub(crate) fn open_entry(&self, entry: &str) -> io::Result<File> {
        let open = || self.open_path(Path::new(entry), OFlag::O_RDONLY);
        let mut file = open();
        for _ in 0..2 {
            match &file {
                Err(error) if error.raw_os_error() == Some(nix::libc::EACCES) => {}
                _ => break,
            }
            if !self.has_memory("") {
                return Err(Errno::ESRCH.into());
            }
            file = open();
        }
        file.map(File::from)
    }

    fn open_path(&self, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
        let flags = flags | OFlag::O_CLOEXEC;
        Ok(openat(&self.directory, path, flags, Mode::empty())?)
    }

    fn read_entry(&self, entry: &str, limit: u64) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        self.open_entry(entry)
            .and_then(|file| file.take(limit).read_to_end(&mut bytes))
            .map_err(|error| self.error(entry, "read /proc", error))?;
        Ok(bytes)
    }

    fn error(&self, entry: &str, action: &'static str, source: io::Error) -> Error {
        let pid = self.pid;
        if is_gone(&source) {
            return Error::NoSuchProcess { pid };
        }
        match source.raw_os_error() {
            Some(nix::libc::EACCES | nix::libc::EPERM) => Error::NotPermitted {
                pid,
                action,
                hint: permission::hint(),
            },
            _ => Error::io(format!("/proc/{pid}/{entry}"))(source),
        }
    }
}

/// Returns whether `/proc` belongs to this process's PID namespace. Checked once.
fn is_own_proc() -> bool {
    static IS_OWN: OnceLock<bool> = OnceLock::new();
    *IS_OWN.get_or_init(|| match std::fs::read_link("/proc/self") {
        Ok(own) => own.as_os_str() == std::process::id().to_string().as_str(),
        // `/proc` is not mounted.
        Err(_) => true,
    })
}

fn is_gone(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    matches!(errno, Some(nix::libc::ENOENT | nix::libc::ESRCH))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

    use super::*;

    /// A path may refer to another file than when the target mapped it.
    #[test]
    fn only_the_mapped_file_is_opened() {
        let directory = otelctx_fixtures::directory().join(format!("open-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        fs::set_permissions(&directory, PermissionsExt::from_mode(0o755)).unwrap();
        let (mapped, other, fifo) = (
            directory.join("mapped"),
            directory.join("other"),
            directory.join("fifo"),
        );
        fs::write(&mapped, "mapped").unwrap();
        fs::write(&other, "other").unwrap();
        nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        let metadata = fs::metadata(&mapped).unwrap();
        let (device, inode) = (Device::from_stat(metadata.dev()), metadata.ino());

        let own = i32::try_from(std::process::id()).unwrap();
        let process = Process::open(own).unwrap();
        let opened = |path: &Path, inode| {
            let watch = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
            watch.add_watch(path, AddWatchFlags::IN_OPEN).unwrap();
            // There is no mapping, so map_files has no entry, as for a reader without privileges.
            let name = path.as_os_str().as_bytes();
            let file = process.mapped_file((0x1000, 0x2000), name, device, inode);
            (file.is_some(), watch.read_events().is_ok())
        };
        assert_eq!(opened(&mapped, inode), (true, true));
        assert_eq!(opened(&other, inode), (false, false));
        let of_fifo = fs::metadata(&fifo).unwrap().ino();
        assert_eq!(opened(&fifo, of_fifo), (false, false));
        fs::remove_dir_all(&directory).unwrap();
    }
}
