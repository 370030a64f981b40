//! A virtual machine that runs one script from an initramfs, and what test programs need in it.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anstream::adapter::strip_str;
use anyhow::{Context, Result, anyhow, bail, ensure};
use fs_err as fs;

use crate::counts::Counts;
use crate::files::entries;
use crate::report::{Words, output, shown};
use crate::workspace::{cargo, root};

/// Runs the command on its demo.
pub(crate) const COMMAND: &str = include_str!("guest/command.sh");
/// What [`COMMAND`] prints.
pub(crate) const COMMAND_OUTPUT: [&str; 6] = [
    "matrix: ",
    " being rewritten, 0 unreadable; ",
    "http.route=",
    "local-exec",
    "otelctx report /tmp/profile.otlp",
    "By http.route",
];
/// Start of the line by which `record` says that it fell back to ptrace, which is a failure here.
/// Where tests quote it, their line starts otherwise.
const BY_PTRACE: &str = "otelctx: sampling with ptrace, which stops threads briefly";
/// Start of the first line of `guest/init.sh`, before the kernel's version.
const START: &str = "guest: kernel ";
/// The error for a machine that did not reach it.
const NOT_STARTED: &str = "the machine did not start";
/// Start of the line of `guest/init.sh` for a program that failed, before its path.
const FAILED: &str = "guest: FAILED ";
/// Its last line.
const END: &str = "guest: end";
/// A machine that writes nothing for so long hangs: one test takes minutes, on a busy host many.
const SILENCE: Duration = Duration::from_secs(3600);

/// An initramfs under construction, uncompressed.
#[derive(Default)]
pub(crate) struct Image {
    archive: Vec<u8>,
    /// Folders that the archive already has.
    folders: BTreeSet<PathBuf>,
}

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

impl Image {
    /// An image with the folders that Linux programs expect. The first process mounts them, and then runs `script`, in
    /// which `run PROGRAM` runs tests.
    pub(crate) fn new(busybox: &Path, script: &str) -> Result<Self> {
        let mut image = Self::default();
        for folder in ["/proc", "/sys", "/dev", "/tmp", "/etc"] {
            image.parents(&Path::new(folder).join("within"));
        }
        image.file("/bin/busybox", busybox)?;
        image.bytes("/init", include_bytes!("guest/init.sh"));
        image.bytes("/script", script.as_bytes());
        image.bytes("/etc/passwd", b"root:x:0:0:root:/:/bin/sh\n");
        Ok(image)
    }

    /// Adds a copy of a file, with its permissions.
    pub(crate) fn file(&mut self, path: impl AsRef<Path>, from: &Path) -> Result<()> {
        let mode = fs::metadata(from)?.permissions().mode();
        self.parents(path.as_ref());
        self.entry(path.as_ref(), mode, &fs::read(from)?);
        Ok(())
    }

    /// Adds copies of files at their own paths.
    pub(crate) fn files(&mut self, paths: impl IntoIterator<Item: AsRef<Path>>) -> Result<()> {
        let mut paths = paths.into_iter();
        paths.try_for_each(|path| self.file(&path, path.as_ref()))
    }

    /// Adds what [`matrix`] returned as `/matrix`, and the files that it names at their own paths.
    pub(crate) fn matrix(&mut self, rows: &str) -> Result<()> {
        let words = rows.lines().flat_map(|line| line.split(['\t', '=']));
        let files: BTreeSet<&str> = words.filter(|word| word.starts_with('/')).collect();
        self.bytes("/matrix", rows.as_bytes());
        self.files(files)
    }

    /// Adds an executable file with these bytes.
    pub(crate) fn bytes(&mut self, path: impl AsRef<Path>, bytes: &[u8]) {
        self.parents(path.as_ref());
        self.entry(path.as_ref(), PROGRAM, bytes);
    }

    fn parents(&mut self, path: &Path) {
        let mut parents: Vec<_> = path.ancestors().skip(1).collect();
        parents.reverse();
        for parent in parents.into_iter().skip(1) {
            if self.folders.insert(parent.to_owned()) {
                self.entry(parent, FOLDER, &[]);
            }
        }
    }

    fn entry(&mut self, path: &Path, mode: u32, bytes: &[u8]) {
        let name = path.to_string_lossy();
        let size = u32::try_from(bytes.len()).expect("a file below 4 GiB");
        let archive = std::mem::take(&mut self.archive);
        let entry = cpio::NewcBuilder::new(name.trim_start_matches('/')).mode(mode);
        let mut entry = entry.write(archive, size);
        let written = entry.write_all(bytes).and_then(|()| entry.finish());
        self.archive = written.expect("memory takes every byte");
    }

    /// Writes the archive.
    pub(crate) fn write(self, file: &Path) -> Result<()> {
        let archive = cpio::newc::trailer(self.archive).expect("memory takes every byte");
        Ok(fs::write(file, archive)?)
    }
}

/// The sources of the fixtures, whose hash their names contain: machines have them at their own paths.
pub(crate) fn fixture_sources() -> Result<Vec<PathBuf>> {
    entries(&root().join("testing/fixtures/programs"))
}

/// An emulator, its arguments and its console.
pub(crate) struct Machine {
    pub(crate) emulator: &'static str,
    pub(crate) arguments: &'static str,
    pub(crate) console: &'static str,
}

impl Machine {
    /// Boots, and prints and returns the console's output; what is printed has the machine's `name` before
    /// each line. A machine that hangs is killed. One that fails to boot, as on a busy host, is started
    /// again, twice.
    pub(crate) fn run(&self, kernel: &Path, initramfs: &Path, name: &str) -> Result<String> {
        let is_started = |output: &Result<String>| !matches!(output, Err(error) if error.to_string() == NOT_STARTED);
        let mut outputs = (0..3).map(|_| self.run_once(kernel, initramfs, name));
        let output = outputs.find(is_started);
        output.unwrap_or_else(|| Err(anyhow!(NOT_STARTED)))
    }

    fn run_once(&self, kernel: &Path, initramfs: &Path, name: &str) -> Result<String> {
        let mut emulator = Command::new(self.emulator);
        emulator.words(self.arguments);
        emulator.words("-nographic -no-reboot -nic none -append");
        let kernel_arguments = "quiet panic=-1 no_timer_check rdinit=/init";
        emulator.arg(format!("console={} {kernel_arguments}", self.console));
        emulator.arg("-kernel").arg(kernel).arg("-initrd");
        emulator.arg(initramfs);
        emulator.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = emulator.spawn().with_context(|| shown(&emulator))?;
        let (sender, lines) = mpsc::channel();
        let console = child.stdout.take().map(BufReader::new);
        std::thread::spawn(move || {
            let lines = console.into_iter().flat_map(|console| console.split(b'\n'));
            for line in lines.map_while(Result::ok) {
                let line = visible(&String::from_utf8_lossy(&line));
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut said = String::new();
        let result = loop {
            match lines.recv_timeout(SILENCE) {
                Ok(line) if line == END => break Ok(()),
                Ok(line) => {
                    // A closed terminal is not the machine's fault.
                    let _ = writeln!(std::io::stdout(), "{name} | {line}");
                    said += &format!("{line}\n");
                }
                Err(RecvTimeoutError::Timeout) => {
                    let seconds = SILENCE.as_secs();
                    break Err(anyhow!("the machine has written nothing for {seconds} s"));
                }
                Err(RecvTimeoutError::Disconnected) if !said.contains(START) => {
                    break Err(anyhow!(NOT_STARTED));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    break Err(anyhow!("the machine ended before its script"));
                }
            }
        };
        // Fails only if it has ended.
        let _ = child.kill();
        let _ = child.wait();
        result.map(|()| said)
    }
}

/// Counts the tests in a machine's output, and adds them to `counts`. Fails if one has failed, as
/// the script says by [`FAILED`], or if `expected` output is missing.
pub(crate) fn verdict(
    output: &str,
    expected: &[&str],
    machine: &str,
    counts: &mut Counts,
) -> Result<String> {
    let (mut tests, mut failed) = (Counts::default(), Vec::new());
    let mut printed = String::new();
    for line in output.lines() {
        printed.extend([line, "\n"]);
        if let Some(what) = line.strip_prefix(FAILED) {
            tests.add(what, Counts::of_failed_program(&printed));
            printed.clear();
            failed.push(what);
        }
    }
    tests.add("", Counts::of_libtest(&printed));
    let said = tests.to_string();
    counts.add(machine, tests);
    ensure!(failed.is_empty(), "{said}; failed: {}", failed.join(", "));
    if let Some(line) = output.lines().find(|line| line.starts_with(BY_PTRACE)) {
        bail!("{said}; {line}");
    }
    if let Some(missing) = expected.iter().find(|it| !output.contains(**it)) {
        bail!("{said}; missing in the output: {missing:?}");
    }
    Ok(said)
}

/// A line as a terminal shows it: without the sequences that move the cursor, set colours or clear
/// the screen, which firmware and emulators print.
fn visible(line: &str) -> String {
    // What follows a carriage return overwrites the line.
    let last = line.trim_end().rsplit('\r').next();
    strip_str(last.unwrap_or_default()).to_string()
}

/// The start of a script: variables for tests, with Cargo's target folder and what a kernel supports.
pub(crate) fn variables(target: &Path, kernel: &str) -> String {
    let target = target.display();
    format!("export OTELCTX_MATRIX=/matrix CARGO_TARGET_DIR='{target}' OTELCTX_KERNEL='{kernel}'\n")
}

/// Runs a program of the fixtures, which builds programs for an architecture on the host, and
/// returns its output.
fn built(program: &str, arguments: &str) -> Result<String> {
    let mut run = cargo("run --quiet --locked -p otelctx-fixtures --bin");
    output(run.arg(program).arg("--").words(arguments))
}

/// Builds the programs of the matrix that are not built yet; returns a line for each. With `--few` after the architecture,
/// there are as few as have each compiler, each linker, and each kind of program with each C library and each access model.
pub(crate) fn matrix(arguments: &str) -> Result<String> {
    built("matrix", arguments)
}

/// Builds the programs that the sampler's tests sample and that are not built yet, and returns their paths. Tests find them
/// below Cargo's target folder, by the hash of their sources.
pub(crate) fn sampled(architecture: &str) -> Result<Vec<PathBuf>> {
    let built = built("sampled", architecture)?;
    ensure!(!built.is_empty(), "there are no programs to sample");
    Ok(built.lines().map(PathBuf::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_control_sequences_are_removed() {
        let firmware = "\x1bc\x1b[?7l\x1b[2J\x1b[0mSeaBIOS (version 1.16)\r";
        assert_eq!(visible(firmware), "SeaBIOS (version 1.16)");
        assert_eq!(visible("\x1b(B\x1b[1;31m✗\x1b[0m\tname\x07"), "✗\tname");
        assert_eq!(visible("12 %\r\x1b[K 99 %"), " 99 %");
        assert_eq!(visible("cut short \x1b["), "cut short ");
    }

    #[test]
    fn a_machine_names_what_failed_in_it() {
        let output = "guest: running /tests/a\nfailures:\n    b::c\n\n\
                      test result: FAILED. 1 passed; 1 failed\n\
                      guest: FAILED /tests/a\nguest: FAILED ps\n";
        let mut counts = Counts::default();
        let error = verdict(output, &[], "6.1", &mut counts).unwrap_err();
        assert_eq!(
            error.to_string(),
            "1 passed, 1 failed, 0 skipped; failed: /tests/a, ps"
        );
        let failures = ["6.1: /tests/a: b::c", "6.1: ps: no test"];
        assert_eq!(counts.failures(), failures);
        let fallen_back = format!("{BY_PTRACE}: ptrace was requested");
        let error = verdict(&fallen_back, &[], "6.1", &mut counts).unwrap_err();
        assert!(error.to_string().ends_with(&fallen_back), "{error}");
        let quoted = format!("yama: 0, Same, demo: status 0 | {fallen_back}");
        assert!(verdict(&quoted, &[], "6.1", &mut counts).is_ok());
        let missing = verdict("one", &["two"], "6.1", &mut counts).unwrap_err();
        assert!(
            missing
                .to_string()
                .ends_with("missing in the output: \"two\""),
            "{missing}"
        );
    }
}
