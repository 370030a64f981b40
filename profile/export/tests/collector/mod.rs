//! OpenTelemetry's own Collector, as `cargo xtask setup` builds it.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use opentelemetry_proto::tonic::profiles::v1development::ProfilesData;
use prost::Message as _;

const GRPC: u16 = 4317;
const HTTP: u16 = 4318;

/// A Collector with addresses and files of its own, which ends with this value.
pub(crate) struct Collector {
    program: PathBuf,
    child: Child,
    pub(crate) folder: PathBuf,
    pub(crate) address: String,
}

/// The root of the checkout: packages at different depths include this file.
fn checkout() -> &'static Path {
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    above.find(|it| it.join("Cargo.lock").exists()).unwrap()
}

/// The configuration in the documentation.
pub(crate) fn documented() -> String {
    let text = fs::read_to_string(checkout().join("docs/profiles.md")).unwrap();
    let (_, behind) = text.split_once("```yaml\n").unwrap();
    let (configuration, _) = behind.split_once("```").unwrap();
    configuration.to_owned()
}

impl Collector {
    /// Prepares one; none, with a line, where setup could not build it. `number` tells the test
    /// program's Collectors apart.
    pub(crate) fn prepare(number: u8) -> Option<Preparation> {
        let program = checkout().join("target/setup/otelcol/otelcol");
        if !program.is_file() {
            eprintln!("skipped: no Collector at {}", program.display());
            return None;
        }
        let pid = std::process::id();
        let folder = std::env::temp_dir().join(format!("otelctx-collector-{pid}-{number}"));
        fs::create_dir_all(&folder).unwrap();
        // All of 127.0.0.0/8 is this machine: an address of the process's own, so that the
        // customary ports are free. Process ids have 22 bits.
        let [_, high, middle, low] = pid.to_be_bytes();
        let address = format!("127.{}.{middle}.{low}", (high & 0x3f) | (number << 6));
        Some(Preparation {
            program,
            folder,
            address,
        })
    }

    #[allow(dead_code)]
    pub(crate) fn grpc(&self) -> String {
        format!("http://{}:{GRPC}", self.address)
    }

    #[allow(dead_code)]
    pub(crate) fn http(&self) -> String {
        format!("http://{}:{HTTP}", self.address)
    }

    /// Ends it, and starts it again with the same configuration.
    #[allow(dead_code)]
    pub(crate) fn restart(&mut self) {
        self.written();
        self.child = spawn(&self.program, &self.folder);
        self.wait();
    }

    /// Waits until it listens.
    fn wait(&mut self) {
        for port in [GRPC, HTTP] {
            while TcpStream::connect((self.address.as_str(), port)).is_err() {
                if let Some(status) = self.child.try_wait().unwrap() {
                    let log = fs::read_to_string(self.folder.join("log")).unwrap();
                    panic!("the Collector has ended with {status}: {log}");
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Ends it, once, and returns the file that it kept what it got in. That goes with this value.
    pub(crate) fn written(&mut self) -> PathBuf {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        kill(pid, Signal::SIGTERM).unwrap();
        self.child.wait().unwrap();
        self.folder.join("profiles.out")
    }

    /// Ends it, and returns what it got.
    #[allow(dead_code)]
    pub(crate) fn received(mut self) -> Vec<ProfilesData> {
        messages(&self.written())
    }
}

/// The messages in a file of the file exporter, which puts the size of each (four bytes, the first the
/// highest) before it.
pub(crate) fn messages(file: &Path) -> Vec<ProfilesData> {
    let bytes = fs::read(file).unwrap();
    let mut rest = &bytes[..];
    let mut messages = Vec::new();
    while let Some((size, behind)) = rest.split_first_chunk() {
        let (message, behind) = behind.split_at(u32::from_be_bytes(*size) as usize);
        messages.push(ProfilesData::decode(message).unwrap());
        rest = behind;
    }
    messages
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A Collector that is to be started.
pub(crate) struct Preparation {
    program: PathBuf,
    pub(crate) folder: PathBuf,
    pub(crate) address: String,
}

impl Preparation {
    /// Starts it with this configuration for `localhost`, and waits until it listens.
    pub(crate) fn start(self, configuration: &str) -> Collector {
        let path = self.folder.join("config.yaml");
        fs::write(path, configuration.replace("localhost", &self.address)).unwrap();
        let mut collector = Collector {
            child: spawn(&self.program, &self.folder),
            program: self.program,
            folder: self.folder,
            address: self.address,
        };
        collector.wait();
        collector
    }
}

/// Starts a Collector with the configuration in its folder.
fn spawn(program: &Path, folder: &Path) -> Child {
    let mut options = fs::OpenOptions::new();
    let log = options.create(true).append(true).open(folder.join("log"));
    Command::new(program)
        .arg("--config")
        .arg(folder.join("config.yaml"))
        .arg("--feature-gates=service.profilesSupport")
        // Its own metrics would take a port that all of them share.
        .arg("--set=service.telemetry.metrics.level=none")
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(log.unwrap())
        .spawn()
        .unwrap()
}
