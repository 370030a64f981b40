//! A virtual machine that runs one script from an initramfs, and what test programs need in it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::counts::Counts;
use crate::report;
use crate::workspace::{cargo, root};

/// Runs the command's demo, and its subcommands on the demo's service. The demo may exit with 1 because a
/// thread did not stop in time, and dump and check have longer deadlines than by default: the
/// machine is emulated, and its host may be busy. Both services get the lowest priority, the demo's own one
/// once its threads have started. One dump may find every worker between two requests.
pub(crate) const COMMAND: &str = "\
echo 'guest: the command'
/bin/otelctx demo --duration 1 &
demo=$!
for second in 1 2 3 4 5; do
sleep 1
for task in /proc/[0-9]*/task/*; do
read name < $task/comm
case $name in shop|worker-*) renice -n 19 -p ${task##*/} ;; esac
done
done
wait $demo || test $? = 1 || echo 'guest: FAILED demo'
sh -c 'renice -n 19 -p $$ && exec /bin/otelctx demo-service --parent='$$ > /dev/null &
service=$!
sleep 3
/bin/otelctx ps || echo 'guest: FAILED ps'
for attempt in 1 2 3 4 5 6 7 8; do
/bin/otelctx dump --deadline 120 $service > /tmp/dump || echo 'guest: FAILED dump'
grep -q http.route= /tmp/dump && break
done
cat /tmp/dump
/bin/otelctx check --deadline 120 $service || echo 'guest: FAILED check'
/bin/otelctx record -p $service -d 3 -o /tmp/profile.otlp || echo 'guest: FAILED record'
/bin/otelctx report /tmp/profile.otlp || echo 'guest: FAILED report'
kill $service
";
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
/// Start of the script's first line, before the kernel's version.
const START: &str = "guest: kernel ";
/// The error for a machine that did not reach the script.
pub(crate) const NOT_STARTED: &str = "the machine did not start";
/// Start of the script's line for a program that failed, before its path.
const FAILED: &str = "guest: FAILED ";
/// The script's last line.
const END: &str = "guest: end";

/// An initramfs under construction, uncompressed.
pub(crate) struct Image {
    archive: Vec<u8>,
    /// Folders that the archive already has.
    folders: Vec<String>,
}

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

impl Image {
    /// An image with the folders that Linux programs expect. Busybox runs `script` as the first
    /// process once they are mounted; `run PROGRAM` in it runs tests.
    pub(crate) fn new(busybox: &Path, script: &str) -> Result<Self, String> {
        let mut image = Image {
            archive: Vec::new(),
            folders: Vec::new(),
        };
        for folder in ["/proc", "/sys", "/dev", "/tmp", "/etc"] {
            image.parents(&Path::new(folder).join("within"));
        }
        image.file(Path::new("/bin/busybox"), busybox)?;
        let init = format!(
            "#!/bin/busybox sh\n\
             /bin/busybox --install -s /bin\n\
             export PATH=/bin HOME=/ RUST_BACKTRACE=1 NO_COLOR=1\n\
             mount -t proc proc /proc\n\
             mount -t sysfs sysfs /sys\n\
             mount -t devtmpfs devtmpfs /dev\n\
             mkdir -p /dev/pts\n\
             mount -t devpts devpts /dev/pts\n\
             chmod 1777 /tmp\n\
             run() {{\n\
             echo \"guest: running $*\"\n\
             \"$@\" --test-threads=2 || echo \"guest: FAILED $1\"\n\
             }}\n\
             cd /\n\
             echo \"{START}$(uname -r)\"\n\
             {script}\n\
             echo '{END}'\n\
             poweroff -f\n"
        );
        image.bytes(Path::new("/init"), init.as_bytes());
        image.bytes(Path::new("/etc/passwd"), b"root:x:0:0:root:/:/bin/sh\n");
        Ok(image)
    }

    /// Adds a copy of a file, with its permissions.
    pub(crate) fn file(&mut self, path: &Path, from: &Path) -> Result<(), String> {
        let fail = |error| format!("{}: {error}", from.display());
        let mode = fs::metadata(from).map_err(fail)?.permissions().mode();
        let bytes = fs::read(from).map_err(fail)?;
        self.parents(path);
        self.entry(&path.to_string_lossy(), mode, &bytes);
        Ok(())
    }

    /// Adds the sources of the fixtures, at their own paths: a fixture's name contains their hash.
    pub(crate) fn fixture_sources(&mut self) -> Result<(), String> {
        let sources = root().join("testing/fixtures/programs");
        for entry in fs::read_dir(&sources).map_err(|error| error.to_string())? {
            let path = entry.map_err(|error| error.to_string())?.path();
            self.file(&path, &path)?;
        }
        Ok(())
    }

    /// Adds an executable file with these bytes.
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
        let archive = std::mem::take(&mut self.archive);
        let mut entry = cpio::NewcBuilder::new(name).mode(mode).write(archive, size);
        let written = entry.write_all(bytes).and_then(|()| entry.finish());
        self.archive = written.expect("memory takes every byte");
    }

    /// The archive's bytes.
    pub(crate) fn finish(self) -> Vec<u8> {
        cpio::newc::trailer(self.archive).expect("memory takes every byte")
    }
}

/// An emulator, its arguments and its console.
pub(crate) struct Machine {
    pub(crate) emulator: &'static str,
    pub(crate) arguments: &'static [&'static str],
    pub(crate) console: &'static str,
    /// Limit on its run time; an emulated machine is some 20 times slower than its host.
    pub(crate) timeout: Duration,
}

impl Machine {
    /// Boots, and prints and returns the console's output; what is printed has the machine's `name` before
    /// each line. A machine that exceeds its timeout is killed.
    pub(crate) fn run(
        &self,
        kernel: &Path,
        initramfs: &Path,
        name: &str,
    ) -> Result<String, String> {
        let mut emulator = Command::new(self.emulator);
        let parameters = format!(
            "console={} quiet panic=-1 no_timer_check rdinit=/init",
            self.console
        );
        emulator
            .args(self.arguments)
            .args(["-nographic", "-no-reboot", "-nic", "none", "-append"])
            .arg(&parameters)
            .arg("-kernel")
            .arg(kernel)
            .arg("-initrd")
            .arg(initramfs)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let shown = report::shown(&emulator);
        let mut child = emulator
            .spawn()
            .map_err(|error| format!("{shown}: {error}"))?;
        let start = Instant::now();
        let (sender, lines) = mpsc::channel();
        let output = child.stdout.take().map(BufReader::new);
        std::thread::spawn(move || {
            let lines = output.into_iter().flat_map(|output| output.split(b'\n'));
            for line in lines.map_while(Result::ok) {
                let line = visible(&String::from_utf8_lossy(&line));
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut said = String::new();
        let result = loop {
            match lines.recv_timeout(self.timeout.saturating_sub(start.elapsed())) {
                Ok(line) if line == END => break Ok(()),
                Ok(line) => {
                    // A closed terminal is not the machine's fault.
                    let _ = writeln!(std::io::stdout(), "{name} | {line}");
                    said.push_str(&line);
                    said.push('\n');
                }
                Err(RecvTimeoutError::Timeout) => {
                    break Err(format!(
                        "the machine had not ended after {} s",
                        self.timeout.as_secs()
                    ));
                }
                Err(RecvTimeoutError::Disconnected) if !said.contains(START) => {
                    break Err(NOT_STARTED.to_owned());
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
}

/// Counts the tests in a machine's output, and adds them to `counts`. `Err` if one has failed, as
/// the script says by [`FAILED`], or if `expected` output is missing.
pub(crate) fn verdict(
    output: &str,
    expected: &[&str],
    machine: &str,
    counts: &mut Counts,
) -> Result<String, String> {
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
    if !failed.is_empty() {
        return Err(format!("{said}; failed: {}", failed.join(", ")));
    }
    if let Some(line) = output.lines().find(|line| line.starts_with(BY_PTRACE)) {
        return Err(format!("{said}; {line}"));
    }
    let missing = expected.iter().find(|it| !output.contains(**it));
    match missing {
        Some(missing) => Err(format!("{said}; missing in the output: {missing:?}")),
        None => Ok(said),
    }
}

/// A line as a terminal shows it: without the sequences that move the cursor, set colours or clear
/// the screen (ECMA-48), which firmware and emulators print.
fn visible(line: &str) -> String {
    let mut text = String::new();
    let mut characters = line.trim_end().chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            ESCAPE if characters.next_if_eq(&'[').is_some() => {
                // Parameters and intermediates, up to the final character.
                while characters.next_if(|it| (' '..='?').contains(it)).is_some() {}
                characters.next();
            }
            ESCAPE => {
                while characters.next_if(|it| (' '..='/').contains(it)).is_some() {}
                characters.next();
            }
            // The following text overwrites the line.
            '\r' => text.clear(),
            '\t' => text.push(character),
            _ if character.is_control() => {}
            _ => text.push(character),
        }
    }
    text
}

const ESCAPE: char = '\x1b';

/// The programs that cargo's messages (`--message-format=json`) name.
pub(crate) fn executables(messages: &str) -> Vec<PathBuf> {
    let messages = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .collect()
}

/// Runs a program of the fixtures, which builds programs for an architecture on the host, and
/// returns its output.
fn built(program: &str, arguments: &[&str]) -> Result<String, String> {
    let package = [
        "--quiet",
        "--locked",
        "-p",
        "otelctx-fixtures",
        "--bin",
        program,
    ];
    let mut command = cargo();
    command.arg("run").args(package).arg("--").args(arguments);
    report::output(&mut command)
}

/// The matrix of programs, built on the host: one line per program.
pub(crate) struct Rows(String);

impl Rows {
    /// Builds the programs that are not built yet.
    pub(crate) fn build(architecture: &str) -> Result<Self, String> {
        built("matrix", &[architecture]).map(Self)
    }

    /// As [`Rows::build`], with as few as have each compiler, each linker, and each kind of program with each C library and
    /// each access model.
    pub(crate) fn build_few(architecture: &str) -> Result<Self, String> {
        built("matrix", &[architecture, "--few"]).map(Self)
    }

    /// The number of programs.
    pub(crate) fn count(&self) -> usize {
        self.0.lines().count()
    }

    /// Adds the list as `/matrix`, and the files that it names at their own paths.
    pub(crate) fn put_into(&self, image: &mut Image) -> Result<(), String> {
        let words = self.0.lines().flat_map(|line| line.split(['\t', '=']));
        let files: BTreeSet<&Path> = words
            .map(Path::new)
            .filter(|path| path.is_absolute())
            .collect();
        files
            .into_iter()
            .try_for_each(|path| image.file(path, path))?;
        image.bytes(Path::new("/matrix"), self.0.as_bytes());
        Ok(())
    }
}

/// The programs that the sampler's tests sample, and their sources: tests find a program by the
/// hash of its sources.
pub(crate) struct Sampled(Vec<PathBuf>);

impl Sampled {
    /// Builds the programs that are not built yet.
    pub(crate) fn build(architecture: &str) -> Result<Self, String> {
        let paths: Vec<_> = built("sampled", &[architecture])?
            .lines()
            .map(PathBuf::from)
            .collect();
        if paths.is_empty() {
            return Err("there are no programs to sample".to_owned());
        }
        Ok(Self(paths))
    }

    /// Cargo's target folder, which tests find them below.
    pub(crate) fn target(&self) -> &Path {
        self.0[0].ancestors().nth(2).unwrap_or(Path::new("/"))
    }

    /// Adds the programs at their own paths.
    pub(crate) fn put_into(&self, image: &mut Image) -> Result<(), String> {
        self.0.iter().try_for_each(|path| image.file(path, path))?;
        image.fixture_sources()
    }
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
        assert_eq!(error, "1 passed, 1 failed, 0 skipped; failed: /tests/a, ps");
        let failures = ["6.1: /tests/a: b::c", "6.1: ps: no test"];
        assert_eq!(counts.failures(), failures);
        let fallen_back = format!("{BY_PTRACE}: ptrace was requested");
        let error = verdict(&fallen_back, &[], "6.1", &mut counts).unwrap_err();
        assert!(error.ends_with(&fallen_back), "{error}");
        let quoted = format!("yama: 0, Same, demo: status 0 | {fallen_back}");
        assert!(verdict(&quoted, &[], "6.1", &mut counts).is_ok());
        let missing = verdict("one", &["two"], "6.1", &mut counts).unwrap_err();
        assert!(
            missing.ends_with("missing in the output: \"two\""),
            "{missing}"
        );
    }
}
