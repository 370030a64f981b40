//! Queues and senders with OpenTelemetry's own Collector: while it is away, when it restarts, and when the process that
//! sends is killed.

#[path = "../../export/tests/collector/mod.rs"]
mod collector;
mod numbered;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use collector::{Collector, documented, messages};
use numbered::{message, number};
use otelctx_agent::{Backoff, Queue, QueueLimits, Sender};
use otelctx_export::{Endpoint, Exporter};
use otelctx_fixtures::tier::usual_or_all;

const HOUR: Duration = Duration::from_secs(3600);
/// Short delays: the tests wait for what happens, not for them.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(1),
    max: Duration::from_millis(20),
    max_asked: HOUR,
};

fn exporter(url: &str) -> Exporter {
    let mut endpoint = Endpoint::from_environment(Some(url), None, |_| None).unwrap();
    endpoint.timeout = Duration::from_secs(60);
    Exporter::new(&endpoint).unwrap()
}

/// The configuration in the documentation, with a file that a restart continues, and that is written without a buffer: a
/// Collector that has just started loses its buffer on SIGTERM.
fn appending() -> String {
    let rotating = "path: profiles.out\n    rotation: {max_megabytes: 100}";
    documented().replace("path: profiles.out", rotating)
}

/// A directory for a queue, beside the Collector's files.
fn queue_directory(folder: &Path) -> PathBuf {
    let path = folder.join("queue");
    fs::create_dir_all(&path).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
    path
}

#[test]
fn nothing_is_lost_while_the_collector_is_away_and_restarts() {
    for (which, on_disk) in [(0, false), (2, true)] {
        let Some(preparation) = Collector::prepare(which) else {
            return;
        };
        let folder = preparation.folder.clone();
        let queue = if on_disk {
            Queue::in_directory(&queue_directory(&folder), QueueLimits::default()).unwrap()
        } else {
            Queue::in_memory(QueueLimits::default())
        };
        let url = format!("http://{}:4317", preparation.address);
        let (events, received) = channel();
        let on_event = move |event: otelctx_agent::Event| {
            let _ = events.send(event.to_string());
        };
        let sender = Sender::start(queue.clone(), exporter(&url), BACKOFF, on_event).unwrap();
        (0..50).for_each(|number| queue.push(message(number, 3), 3));
        let failing = received.recv().unwrap();
        assert!(failing.contains("Connection refused"), "{failing}");
        let mut collector = preparation.start(&appending());
        let accepted = received.recv().unwrap();
        assert!(accepted.contains("accepts profiles again"), "{accepted}");
        for restart in 1..=3_u64 {
            let from = restart * 50;
            (from..from + 25).for_each(|number| queue.push(message(number, 3), 3));
            collector.restart();
            (from + 25..from + 50).for_each(|number| queue.push(message(number, 3), 3));
        }
        // While it is away, messages in files are left there at the end.
        while queue.counts().queued.messages > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        sender.stop(HOUR);
        let counts = queue.counts();
        assert_eq!((counts.sent.messages, counts.sent.samples), (200, 600));
        assert_eq!(counts.all_dropped().messages, 0);
        let received: Vec<u64> = messages(&collector.written()).iter().map(number).collect();
        // A message whose answer a restart has cut off is sent twice, and each is in order.
        let mut distinct = received.clone();
        distinct.dedup();
        assert_eq!(distinct, (0..200).collect::<Vec<_>>());
        assert!(received.len() <= 203, "{}", received.len());
    }
}

/// Not a test: the process that the next test kills. It adds messages without end, and says the number of each.
#[test]
fn adds_messages_until_it_is_killed() {
    let Ok(directory) = std::env::var("OTELCTX_TEST_QUEUE") else {
        return;
    };
    let variable = |name| std::env::var(name).unwrap();
    let (url, first) = (variable("OTELCTX_TEST_URL"), variable("OTELCTX_TEST_FIRST"));
    let queue = Queue::in_directory(Path::new(&directory), QueueLimits::default()).unwrap();
    let sender = Sender::start(queue.clone(), exporter(&url), BACKOFF, |_| {}).unwrap();
    if let Ok(first) = first.parse::<u64>() {
        for number in first.. {
            queue.push(message(number, 1), 1);
            println!("\nadded {number}");
        }
    }
    // The last one sends what the others have left.
    sender.stop(HOUR);
    let counts = queue.counts();
    assert_eq!(counts.sent, counts.resumed);
}

/// Starts the process, with the number of its first message; without one, it sends what is there.
fn process(directory: &Path, url: &str, first: Option<u64>) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let first = first.map_or(String::new(), |it| it.to_string());
    command
        .args(["--exact", "adds_messages_until_it_is_killed", "--nocapture"])
        .env("OTELCTX_TEST_QUEUE", directory)
        .env("OTELCTX_TEST_URL", url)
        .env("OTELCTX_TEST_FIRST", first)
        .stderr(Stdio::null())
        .stdout(Stdio::piped());
    command
}

#[test]
fn a_killed_process_loses_nothing_and_sends_nothing_twice_but_what_was_in_flight() {
    let Some(preparation) = Collector::prepare(1) else {
        return;
    };
    let directory = queue_directory(&preparation.folder);
    let mut collector = preparation.start(&appending());
    let kills = usual_or_all(25, 100);
    let mut random = fastrand::Rng::with_seed(36);
    let (mut next, mut said, mut unsaid) = (0, BTreeSet::new(), BTreeSet::new());
    for kill in 0..kills {
        let url = [collector.grpc(), collector.http()][kill % 2].clone();
        let mut child = process(&directory, &url, Some(next)).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut added = lines.filter_map(|line| {
            let line = line.unwrap();
            line.strip_prefix("added ")?.parse::<u64>().ok()
        });
        // The process goes on meanwhile: it is killed in any of its steps.
        said.extend(added.by_ref().take(random.usize(1..40)));
        (0..random.u32(0..20_000)).for_each(|_| std::hint::spin_loop());
        child.kill().unwrap();
        child.wait().unwrap();
        // What it said before its end counts, too; the message after that may be there or not.
        said.extend(added);
        next = said.last().unwrap() + 2;
        unsaid.insert(next - 1);
    }
    let last = process(&directory, &collector.grpc(), None);
    let ended = { last }.output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let mut times = BTreeMap::<u64, usize>::new();
    let received: Vec<u64> = messages(&collector.written()).iter().map(number).collect();
    for number in &received {
        *times.entry(*number).or_default() += 1;
    }
    let twice: usize = times.values().map(|times| times - 1).sum();
    let lost: Vec<_> = said.iter().filter(|it| !times.contains_key(it)).collect();
    assert_eq!(lost, [&0; 0], "of {}", said.len());
    let unknown = times
        .keys()
        .filter(|it| !said.contains(it) && !unsaid.contains(it));
    assert_eq!(unknown.collect::<Vec<_>>(), [&0; 0]);
    assert!(twice <= kills, "{twice} of {next} came twice");
    let mut distinct = received.clone();
    distinct.dedup();
    assert!(distinct.is_sorted(), "the order is not kept");
    let left = fs::read_dir(&directory).unwrap();
    let left: Vec<_> = left.map(|it| it.unwrap().file_name()).collect();
    assert_eq!(left, ["lock"]);
}
