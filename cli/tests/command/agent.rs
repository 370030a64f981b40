//! `otelctx agent`, with OpenTelemetry's Collector and without one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use otelctx_fixtures::HANG_TIMEOUT;

use crate::run::{Answer, Scratch, command, otelctx};
use crate::send::collector::{Collector, documented, messages};
use crate::send::{flat, nobody};
use crate::target::{TRACE, Target};

/// A running agent, which is killed with this value.
struct Agent {
    child: Child,
    /// The lines of its standard error.
    lines: Receiver<String>,
    said: String,
    /// Where it listens.
    address: String,
}

impl Agent {
    /// Starts one that sends to this URL five times in a second, and waits until it records.
    fn start(url: &str, more: &[&str]) -> Self {
        Self::start_with(
            &[&["--otlp", url, "--interval", "0.2"], more].concat(),
            |_| {},
        )
    }

    fn start_with(arguments: &[&str], change: impl FnOnce(&mut std::process::Command)) -> Self {
        // At the end, all is sent, however busy the machine is: tests compare what arrived.
        let arguments = [
            &["agent", "--listen", "0", "--stop-timeout", "5m"],
            arguments,
        ]
        .concat();
        let mut command = command(&arguments);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            let mut lines = stderr.lines().map_while(Result::ok);
            lines.all(|line| sender.send(line).is_ok())
        });
        let mut agent = Self {
            child,
            lines,
            said: String::new(),
            address: String::new(),
        };
        let line = agent.wait_for("metrics and health on http://");
        let (_, address) = line.split_once("http://").unwrap();
        agent.address = address.to_owned();
        agent
    }

    /// Waits until it says a line with this text.
    fn wait_for(&mut self, text: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(HANG_TIMEOUT);
            let line = line.unwrap_or_else(|why| panic!("{why}: {}", self.said));
            self.said += &format!("{line}\n");
            if line.contains(text) {
                return line;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Ends it with a signal, and returns what it said at last.
    fn end(mut self) -> String {
        self.signal(Signal::SIGTERM);
        let last = self.wait_for("otelctx: sent ");
        assert!(self.child.wait().unwrap().success(), "{}", self.said);
        last
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Returns its metrics by name and labels.
    fn metrics(&self) -> BTreeMap<String, f64> {
        let answer = self.get("/metrics");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        let lines = body.lines().filter(|line| !line.starts_with('#'));
        let metrics = lines.map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        });
        metrics.collect()
    }

    /// Waits until a metric is larger than this.
    fn wait_until(&self, metric: &str, larger_than: f64) {
        while self.metrics()[metric] <= larger_than {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Parses `otelctx: sent N samples in M messages…`.
fn sent(line: &str) -> (usize, usize) {
    let numbers: Vec<usize> = line
        .split([' ', ';'])
        .filter_map(|word| word.replace(',', "").parse().ok())
        .collect();
    (numbers[0], numbers[1])
}

#[test]
fn a_collector_has_exactly_what_the_agent_says_it_sent_with_routes_and_traces() {
    let Some(preparation) = Collector::prepare(0) else {
        return;
    };
    let mut collector = preparation.start(&documented());
    let _target = Target::start("busy");
    let agent = Agent::start(&collector.grpc(), &["--node-name", "node-7"]);
    agent.wait_until("otelctx_messages_sent_total", 9.0);
    // On a busy machine, the target may run rarely.
    let ids = (0..16).map(|at| u8::from_str_radix(&TRACE[2 * at..][..2], 16).unwrap());
    let trace: Vec<u8> = ids.collect();
    let file = collector.folder.join("profiles.out");
    let has_trace = || fs::read(&file).unwrap().windows(16).any(|it| it == trace);
    while !has_trace() {
        thread::sleep(Duration::from_millis(20));
    }
    let line = agent.end();
    let (samples, number) = sent(&line);
    let received = messages(&collector.written());
    assert_eq!(received.len(), number);
    let lines = flat::lines(&received);
    assert_eq!(lines.len(), samples);
    let trace = format!("{trace:x?}/");
    let with_trace: Vec<_> = lines.iter().filter(|it| it.contains(&trace)).collect();
    assert!(!with_trace.is_empty(), "{line}");
    let without_route = with_trace.iter().find(|it| !it.contains("/cart"));
    assert_eq!(without_route, None);
    // Of all processes, whatever they publish.
    let node = r#"k8s.node.name=\"node-7\""#;
    let mut all = lines.iter();
    let without = all.find(|it| !(it.contains(node) && it.contains("host.name=")));
    assert_eq!(without, None);
}

#[test]
fn samples_outlive_a_killed_agent_and_a_collector_that_is_away() {
    let Some(preparation) = Collector::prepare(0) else {
        return;
    };
    let scratch = Scratch::new("agent-queue");
    let queue = scratch.path("queue");
    let url = format!("http://{}:4317", preparation.address);
    let mut agent = Agent::start(&url, &["--queue-dir", &queue]);
    agent.wait_for("Connection refused");
    agent.wait_until("otelctx_queue_messages", 4.0);
    drop(agent);
    let names = || -> Vec<String> {
        let entries = fs::read_dir(&queue).unwrap();
        let names = entries.map(|it| it.unwrap().file_name().into_string().unwrap());
        names.filter(|it| it.ends_with(".otlp")).collect()
    };
    let kept = names();
    assert!(kept.len() > 4, "{kept:?}");
    // The name of each file has the number of its samples, and its content is the message.
    let of_name = |name: &String| name.split('-').nth(1).unwrap().parse::<usize>().unwrap();
    let resumed: usize = kept.iter().map(of_name).sum();
    for name in &kept {
        let path = format!("{queue}/{name}");
        let report = otelctx(&["report", "--json", &path]).expect(0).json();
        let all = ["samples", "samples_off_cpu"].iter();
        let all: u64 = all.filter_map(|it| report[it].as_u64()).sum();
        assert_eq!(all as usize, of_name(name));
    }
    // Ended while the collector is still away: what is in files stays there.
    let agent = Agent::start(&url, &["--queue-dir", &queue]);
    let line = agent.end();
    assert!(
        line.contains("in the queue's directory are sent later"),
        "{line}"
    );
    assert_eq!(sent(&line), (0, 0));
    let waiting: usize = names().iter().map(of_name).sum();
    assert!(waiting >= resumed && kept.iter().all(|it| names().contains(it)));
    let mut collector = preparation.start(&documented());
    let agent = Agent::start(&url, &["--queue-dir", &queue]);
    agent.wait_until("otelctx_samples_sent_total", waiting as f64);
    let (samples, number) = sent(&agent.end());
    let received = messages(&collector.written());
    assert_eq!(
        (received.len(), flat::lines(&received).len()),
        (number, samples)
    );
    assert!(samples > waiting);
    assert_eq!(names(), [""; 0]);
}

#[test]
fn settings_are_read_again_without_a_gap() {
    let (Some(first), Some(second)) = (Collector::prepare(0), Collector::prepare(1)) else {
        return;
    };
    let (mut first, mut second) = (first.start(&documented()), second.start(&documented()));
    let target = Target::start("busy");
    let scratch = Scratch::new("agent-reload");
    let path = scratch.path("agent.toml");
    let write = |url: &str, more: &str| {
        let settings = format!("otlp = \"{url}\"\ninterval = \"0.2s\"\n{more}");
        fs::write(&path, settings).unwrap();
    };
    write(&first.grpc(), "");
    let mut agent = Agent::start_with(&["--config", &path], |_| {});
    agent.wait_until("otelctx_messages_sent_total", 3.0);
    // A mistake changes nothing.
    write(&second.http(), "frequenzy = 19\n");
    agent.signal(Signal::SIGHUP);
    let mistake = agent.wait_for("the settings stay as they were");
    assert!(
        mistake.contains("agent.toml:3:1: unknown field `frequenzy`"),
        "{mistake}"
    );
    write(&second.http(), "frequency = 19\nmax-values = 7\n");
    agent.signal(Signal::SIGHUP);
    let restart = agent.wait_for("needs a restart");
    assert!(restart.contains("a change of frequency needs"), "{restart}");
    agent.wait_for("the settings were read again");
    let before = agent.metrics()["otelctx_messages_sent_total"];
    agent.wait_until("otelctx_messages_sent_total", before + 5.0);
    let (samples, number) = sent(&agent.end());
    let (first, second) = (messages(&first.written()), messages(&second.written()));
    assert!(!first.is_empty() && second.len() >= 4);
    assert_eq!(first.len() + second.len(), number);
    assert_eq!(flat::lines(first.iter().chain(&second)).len(), samples);
    drop(target);
}

#[test]
fn processes_opt_out_and_services_are_selected() {
    let Some(preparation) = Collector::prepare(0) else {
        return;
    };
    let mut collector = preparation.start(&documented());
    let wanted = Target::start("busy");
    let out = Target::start_with("busy", |command| {
        command.env("OTELCTX_PROFILE", "off");
    });
    let more = ["--service", "busy*", "--resource", "service.name=busy*"];
    let agent = Agent::start(&collector.http(), &more);
    agent.wait_until("otelctx_messages_sent_total", 5.0);
    agent.wait_until("otelctx_samples_excluded_total", 20.0);
    agent.end();
    let lines = flat::lines(&messages(&collector.written()));
    let of = |target: &Target| {
        let pid = format!("process.pid=Some(IntValue({}))", target.pid());
        lines.iter().filter(|it| it.contains(&pid)).count()
    };
    assert!(of(&wanted) > 0);
    assert_eq!(of(&out), 0);
    // Of other tests, too, but of no other service.
    let other = lines.iter().find(|it| !it.contains("busy shop"));
    assert_eq!(other, None);
}

#[test]
fn systemd_and_probes_learn_what_the_agent_does() {
    let scratch = Scratch::new("agent-notify");
    let path = scratch.path("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(HANG_TIMEOUT)).unwrap();
    let next = || {
        let mut message = [0; 256];
        let size = socket.recv(&mut message).unwrap();
        String::from_utf8_lossy(&message[..size]).into_owned()
    };
    let next_but_alive = || loop {
        match next() {
            alive if alive == "WATCHDOG=1" => {}
            other => return other,
        }
    };
    let url = nobody();
    let agent = Agent::start_with(&["--otlp", &url], |command| {
        command.env("NOTIFY_SOCKET", &path);
        command.env("WATCHDOG_USEC", "100000");
    });
    assert_eq!(next(), "READY=1");
    // Also while the collector is away.
    (0..5).for_each(|_| assert_eq!(next(), "WATCHDOG=1"));
    let address = agent.address.clone();
    let health = otelctx(&["agent", "--health", "--listen", &address]).expect(0);
    assert_eq!(health.json()["status"], "ok");
    assert!(agent.get("/health").starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(agent.get("/").starts_with("HTTP/1.1 404 "));
    agent.signal(Signal::SIGHUP);
    let reloading = next_but_alive();
    assert!(
        reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="),
        "{reloading}"
    );
    assert_eq!(next_but_alive(), "READY=1");
    let line = agent.end();
    assert_eq!(next_but_alive(), "STOPPING=1");
    assert!(line.contains("dropped (stopped)"), "{line}");
    let gone = otelctx(&["agent", "--health", "--listen", &address]).expect(1);
    assert!(gone.stderr.contains("no agent answers on"), "{gone:?}");
}

#[test]
fn an_agent_that_takes_too_much_samples_less_often_and_each_profile_has_its_period() {
    let Some(preparation) = Collector::prepare(0) else {
        return;
    };
    let mut collector = preparation.start(&documented());
    let _target = Target::start("busy");
    let mut agent = Agent::start(&collector.grpc(), &["--cpu-budget", "0.1%"]);
    if !agent.said.contains("with ebpf, 99 Hz") {
        println!("skipped: eBPF is not permitted");
        return;
    }
    // How much lower depends on what the machine is busy with.
    let line = agent.wait_for(" Hz from now on: the agent took ");
    let (_, frequency) = line.split_once("sampling at ").unwrap();
    let (frequency, _) = frequency.split_once(' ').unwrap();
    let frequency: i64 = frequency.parse().unwrap();
    assert!(frequency < 99, "{line}");
    let sent = agent.metrics()["otelctx_messages_sent_total"];
    agent.wait_until("otelctx_messages_sent_total", sent + 3.0);
    agent.end();
    let periods = messages(&collector.written()).into_iter().map(|message| {
        let resources = message.resource_profiles.into_iter();
        let scopes = resources.flat_map(|it| it.scope_profiles);
        let profiles = scopes.flat_map(|it| it.profiles);
        profiles.map(|it| it.period).collect::<BTreeSet<i64>>()
    });
    let periods: Vec<_> = periods.collect();
    assert_eq!(periods[0], [1_000_000_000 / 99].into());
    // Never two in a message, whose samples stand for one of them.
    assert!(periods.iter().all(|it| it.len() == 1), "{periods:?}");
    assert!(
        periods.contains(&[1_000_000_000 / frequency].into()),
        "{periods:?}"
    );
}

#[test]
fn samples_are_in_parquet_files_by_hour_and_service() {
    let scratch = Scratch::new("agent-parquet");
    let folder = scratch.path("tables");
    let _target = Target::start("busy");
    let more = ["--parquet", &folder, "--parquet-interval", "0.5"];
    let agent = Agent::start(&nobody(), &more);
    let subfolders = |of: &std::path::Path| -> Vec<std::path::PathBuf> {
        let entries = fs::read_dir(of).into_iter().flatten();
        entries.map(|it| it.unwrap().path()).collect()
    };
    let tables = || -> Vec<std::path::PathBuf> {
        let hours = subfolders(folder.as_ref()).into_iter();
        let hours = hours.filter(|it| it.to_string_lossy().contains("/hour="));
        let services = hours.flat_map(|it| subfolders(&it));
        let of_target = services.filter(|it| it.ends_with("service=busy%20shop"));
        of_target.flat_map(|it| subfolders(&it)).collect()
    };
    while tables().len() < 2 {
        thread::sleep(Duration::from_millis(50));
    }
    for table in tables() {
        let name = table.file_name().unwrap().to_string_lossy();
        assert!(
            name.starts_with("part-") && name.ends_with(".parquet"),
            "{name}"
        );
        let content = fs::read(&table).unwrap();
        assert!(content.starts_with(b"PAR1") && content.ends_with(b"PAR1"));
    }
    agent.end();
}

#[test]
fn an_agent_gives_up_what_it_does_not_need_and_says_that_there_is_another_one() {
    let first = Agent::start(&nobody(), &[]);
    let second = Agent::start(&nobody(), &[]);
    assert!(
        second.said.contains("another agent records this machine"),
        "{}",
        second.said
    );
    // Bits of the capabilities in deploy/README.md (linux/capability.h).
    let kept = [2, 19, 23, 24, 34, 38, 39, 40].map(|bit: u64| 1 << bit);
    let mut kept: u64 = kept.iter().sum();
    let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap();
    if paranoid.trim().parse::<i32>().unwrap() > 2 {
        kept |= 1 << 21;
    }
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let capabilities = |status: &str| {
        let line = status.lines().find_map(|it| it.strip_prefix("CapEff:"));
        u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
    };
    let expected = capabilities(&own) & kept;
    let mut threads = 0;
    for thread in fs::read_dir(format!("/proc/{}/task", first.child.id())).unwrap() {
        // It may have ended.
        let Ok(status) = fs::read_to_string(thread.unwrap().path().join("status")) else {
            continue;
        };
        assert_eq!(capabilities(&status), expected, "{status}");
        for line in ["NoNewPrivs:\t1\n", "Seccomp:\t2\n"] {
            assert!(status.contains(line), "{status}");
        }
        threads += 1;
    }
    assert!(threads > 3);
}

#[test]
fn mistakes_in_settings_are_found_before_anything_is_recorded() {
    let scratch = Scratch::new("agent-settings");
    let path = scratch.path("agent.toml");
    let check = |text: &str, environment: &[(&str, &str)], more: &[&str]| {
        fs::write(&path, text).unwrap();
        let arguments = [&["agent", "--config", &path, "--check-config"], more].concat();
        let mut command = command(&arguments);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("OTEL") {
                command.env_remove(name);
            }
        }
        command.envs(environment.iter().copied());
        Answer::of(command.output().unwrap())
    };
    let file = "otlp = \"http://file:4317\"\ninterval = 7\n";
    let first = |answer: Answer| answer.expect(0).stdout.lines().next().unwrap().to_owned();
    // Flags take precedence over the environment, and that over the file.
    assert_eq!(
        first(check(file, &[], &[])),
        "collector    http://file:4317 over grpc, every 7 s"
    );
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://variable:4318"),
        ("OTELCTX_AGENT_INTERVAL", "8s"),
    ];
    assert_eq!(
        first(check(file, &environment, &[])),
        "collector    http://variable:4318/v1development/profiles over http/protobuf, every 8 s"
    );
    let flags = ["--otlp", "http://flag:4317", "--interval", "9"];
    assert_eq!(
        first(check(file, &environment, &flags)),
        "collector    http://flag:4317 over grpc, every 9 s"
    );
    for (text, expected) in [
        ("interval = \"5x\"\n", ":1:12: expected a number of seconds"),
        ("\nqueue = 1\n", ":2:1: unknown field `queue`"),
        (
            "otlp = \"localhost:4317\"",
            "starts with neither http:// nor https://",
        ),
    ] {
        let answer = check(text, &[], &[]).expect(2);
        assert!(answer.stderr.contains(expected), "{answer:?}");
    }
    let large = "#".repeat(100 << 20);
    let answer = check(&large, &[], &[]).expect(2);
    assert!(
        answer.stderr.contains("it has more than 1048576 bytes"),
        "{answer:?}"
    );
    let answer = otelctx(&["agent", "--health"]).expect(2);
    assert!(answer.stderr.contains("--listen"), "{answer:?}");
}
