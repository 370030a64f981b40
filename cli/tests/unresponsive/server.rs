//! A file system of one file, whose pages never come, or slowly: a FUSE server without libfuse
//! (include/uapi/linux/fuse.h, version 7.31).

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use nix::libc;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const FLUSH: u32 = 25;
const RELEASE: u32 = 18;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

/// The number of the file's inode; 1 is the root's.
const FILE: u64 = 2;
/// Bytes of a page.
const PAGE: u64 = 4096;
/// Bytes of the file.
const SIZE: u64 = 64 * PAGE;

/// The mounted file system. When it is dropped, processes that wait for its file get an error.
pub(crate) struct Server {
    folder: PathBuf,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// One whose pages come after so long, or never. `None`, with a line on standard error, where that
    /// is not permitted.
    pub(crate) fn start(pages: Option<Duration>) -> Option<Self> {
        let mut options = File::options();
        options.read(true).write(true);
        options.custom_flags(libc::O_NONBLOCK);
        let device = match options.open("/dev/fuse") {
            Ok(device) => device,
            Err(error) => {
                eprintln!("skipped: /dev/fuse can't be opened: {error}");
                return None;
            }
        };
        let kind = if pages.is_some() { "slow" } else { "never" };
        let folder = format!("otelctx-unresponsive-{kind}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        fs::create_dir_all(&folder).unwrap();
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            device.as_raw_fd()
        );
        let (name, flags) = (Some("otelctx-test"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV);
        if let Err(error) = mount(name, &folder, Some("fuse"), flags, Some(options.as_str())) {
            let _ = fs::remove_dir(&folder);
            eprintln!("skipped: no file system can be mounted: {error}");
            return None;
        }
        let end = Arc::new(AtomicBool::new(false));
        let ends = end.clone();
        let thread = spawn(move || serve(device, pages, &ends));
        Some(Self {
            folder,
            end,
            thread: Some(thread),
        })
    }

    /// Returns the path of the only file.
    pub(crate) fn file(&self) -> PathBuf {
        self.folder.join("file")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // What waits gets its error when nobody has the device open any more.
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = umount2(&self.folder, MntFlags::MNT_DETACH);
        let _ = fs::remove_dir(&self.folder);
    }
}

fn serve(mut device: File, pages: Option<Duration>, end: &AtomicBool) {
    // More than the largest request.
    let mut request = vec![0; 1 << 20];
    while !end.load(Ordering::Relaxed) {
        match device.read(&mut request) {
            Ok(size) => {
                if let Some(reply) = reply(&request[..size], pages) {
                    // A request that was taken back needs no answer.
                    let _ = device.write(&reply);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                sleep(Duration::from_millis(1));
            }
            // Unmounted.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return,
            Err(_) => {}
        }
    }
}

/// The answer to a request, if it gets one.
fn reply(request: &[u8], pages: Option<Duration>) -> Option<Vec<u8>> {
    // struct fuse_in_header: len, opcode, unique, nodeid, …
    let u32_at = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
    let u64_at = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().unwrap());
    let (opcode, unique, node) = (u32_at(4), u64_at(8), u64_at(16));
    let (error, body) = match opcode {
        READ => {
            sleep(pages?);
            (0, vec![0; PAGE as usize])
        }
        FORGET | BATCH_FORGET | INTERRUPT => return None,
        INIT => (0, init()),
        LOOKUP if request[40..].starts_with(b"file\0") => (0, entry()),
        LOOKUP => (-libc::ENOENT, Vec::new()),
        GETATTR => (0, attributes(node)),
        OPEN => (0, vec![0; 16]),
        FLUSH | RELEASE => (0, Vec::new()),
        _ => (-libc::ENOSYS, Vec::new()),
    };
    // struct fuse_out_header: len, error, unique.
    let mut reply = (16 + body.len() as u32).to_ne_bytes().to_vec();
    reply.extend(error.to_ne_bytes());
    reply.extend(unique.to_ne_bytes());
    reply.extend(body);
    Some(reply)
}

/// struct fuse_init_out. Without FUSE_ASYNC_READ: who needs a page asks for it and waits.
fn init() -> Vec<u8> {
    let mut body: Vec<u8> = [7_u32, 31, PAGE as u32, 0]
        .into_iter()
        .flat_map(u32::to_ne_bytes)
        .collect();
    body.resize(64, 0);
    // max_write
    body[20..24].copy_from_slice(&4096_u32.to_ne_bytes());
    body
}

/// struct fuse_entry_out: nodeid, generation, how long name and attributes hold, attributes.
fn entry() -> Vec<u8> {
    let mut body: Vec<u8> = [FILE, 1, HOLDS, HOLDS, 0]
        .into_iter()
        .flat_map(u64::to_ne_bytes)
        .collect();
    body.extend(attribute(FILE));
    body
}

/// struct fuse_attr_out.
fn attributes(node: u64) -> Vec<u8> {
    let mut body: Vec<u8> = [HOLDS, 0].into_iter().flat_map(u64::to_ne_bytes).collect();
    body.extend(attribute(node));
    body
}

/// Seconds.
const HOLDS: u64 = 3600;

/// struct fuse_attr: ino, size, blocks, three times in two parts, mode, nlink, …
fn attribute(node: u64) -> Vec<u8> {
    let mode = match node {
        FILE => libc::S_IFREG | 0o644,
        _ => libc::S_IFDIR | 0o755,
    };
    let mut body: Vec<u8> = [node, SIZE, SIZE / 512]
        .into_iter()
        .flat_map(u64::to_ne_bytes)
        .collect();
    body.resize(60, 0);
    body.extend(mode.to_ne_bytes());
    body.extend(1_u32.to_ne_bytes());
    body.resize(88, 0);
    body
}
