//! A virtual machine that runs one script in memory and ends.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::report;

/// Longest a machine may run; an emulated one is some 20 times slower than the host.
const TIMEOUT: Duration = Duration::from_secs(240);
/// The script's last word.
const END: &str = "guest: end";

/// An initramfs in the making: the "newc" format (Linux, `Documentation/driver-api/early-userspace/
/// buffer-format.rst`), uncompressed.
pub(crate) struct Image {
    archive: Vec<u8>,
    /// Folders that are in it.
    folders: Vec<String>,
    inode: u32,
}

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

impl Image {
    /// With the folders that Linux programs expect, and a script that busybox runs as the first
    /// process once they are mounted.
    pub(crate) fn new(busybox: &Path, script: &str) -> Result<Self, String> {
        let mut image = Image {
            archive: Vec::new(),
            folders: Vec::new(),
            inode: 1,
        };
        for folder in ["/proc", "/sys", "/dev", "/tmp", "/etc"] {
            image.parents(&Path::new(folder).join("within"));
        }
        image.file(Path::new("/bin/busybox"), busybox)?;
        let init = format!(
            "#!/bin/busybox sh\n\
             /bin/busybox --install -s /bin\n\
             export PATH=/bin HOME=/ RUST_BACKTRACE=1\n\
             mount -t proc proc /proc\n\
             mount -t sysfs sysfs /sys\n\
             mount -t devtmpfs devtmpfs /dev\n\
             {script}\n\
             echo '{END}'\n\
             poweroff -f\n"
        );
        image.bytes(Path::new("/init"), init.as_bytes());
        image.bytes(Path::new("/etc/passwd"), b"root:x:0:0:root:/:/bin/sh\n");
        Ok(image)
    }

    /// A copy of a file, executable if that is.
    pub(crate) fn file(&mut self, path: &Path, from: &Path) -> Result<(), String> {
        let fail = |error| format!("{}: {error}", from.display());
        let mode = fs::metadata(from).map_err(fail)?.permissions().mode();
        let bytes = fs::read(from).map_err(fail)?;
        self.parents(path);
        self.entry(&path.to_string_lossy(), mode, &bytes);
        Ok(())
    }

    /// An executable file of these bytes.
    pub(crate) fn bytes(&mut self, path: &Path, bytes: &[u8]) {
        self.parents(path);
        self.entry(&path.to_string_lossy(), PROGRAM, bytes);
    }

    fn parents(&mut self, path: &Path) {
        let mut parents: Vec<_> = path.ancestors().skip(1).collect();
        parents.reverse();
        for parent in parents.into_iter().skip(1) {
            let name = parent.to_string_lossy().into_owned();
            if !self.folders.contains(&name) {
                self.entry(&name, FOLDER, &[]);
                self.folders.push(name);
            }
        }
    }

    fn entry(&mut self, path: &str, mode: u32, bytes: &[u8]) {
        let name = path.trim_start_matches('/');
        let size = u32::try_from(bytes.len()).expect("a file below 4 GiB");
        let name_size = u32::try_from(name.len() + 1).expect("a short name");
        self.archive.extend_from_slice(b"070701");
        // Inode, mode, user, group, links, time, size, device (2), device node (2), name, check.
        let fields = [self.inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        for field in fields {
            self.archive
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.archive.extend_from_slice(name.as_bytes());
        self.archive.push(0);
        self.pad();
        self.archive.extend_from_slice(bytes);
        self.pad();
        self.inode += 1;
    }

    fn pad(&mut self) {
        self.archive
            .resize(self.archive.len().next_multiple_of(4), 0);
    }

    /// The archive's bytes.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.archive
    }
}

/// Boots, passes on what the machine says, and returns it. It is ended when it takes too long.
pub(crate) fn run(
    emulator: &mut Command,
    kernel: &Path,
    initramfs: &Path,
    console: &str,
) -> Result<String, String> {
    let parameters = format!("console={console} quiet panic=-1 rdinit=/init");
    emulator
        .args([
            "-nographic",
            "-no-reboot",
            "-nic",
            "none",
            "-append",
            &parameters,
        ])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initramfs)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let shown = report::shown(emulator);
    let mut child = emulator
        .spawn()
        .map_err(|error| format!("{shown}: {error}"))?;
    let start = Instant::now();
    let (sender, lines) = mpsc::channel();
    let output = child.stdout.take().map(BufReader::new);
    std::thread::spawn(move || {
        let lines = output.into_iter().flat_map(|output| output.split(b'\n'));
        for line in lines.map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    let mut said = String::new();
    let result = loop {
        match lines.recv_timeout(TIMEOUT.saturating_sub(start.elapsed())) {
            Ok(line) if line == END => break Ok(()),
            Ok(line) => {
                // A closed terminal is not the machine's fault.
                let _ = writeln!(std::io::stdout(), "{line}");
                said.push_str(&line);
                said.push('\n');
            }
            Err(RecvTimeoutError::Timeout) => {
                break Err(format!(
                    "the machine had not ended after {} s",
                    TIMEOUT.as_secs()
                ));
            }
            Err(RecvTimeoutError::Disconnected) => {
                break Err("the machine ended before its script".to_owned());
            }
        }
    };
    // Fails only if it has ended.
    let _ = child.kill();
    let _ = child.wait();
    result.map(|()| said)
}
