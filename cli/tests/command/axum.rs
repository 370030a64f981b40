//! `top` beside the service of `examples/axum`, under load.

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use otelctx_fixtures::cargo_built;
use otelctx_fixtures::http::request_all;
use serde_json::Value;

use crate::run::{given_time, top};

/// Requests, and the routes that handle them.
const REQUESTS: [(&str, &str); 2] = [
    ("/cart/7", "/cart/{id}"),
    ("/search/shoes", "/search/{words}"),
];
/// The least number of traces to compare.
const TRACES: usize = 20;

/// The service. Dropping it kills it.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends requests until `stop`.
fn send(address: &str, stop: &AtomicBool) {
    let requests = REQUESTS.iter().cycle();
    let requests = requests.take_while(|_| !stop.load(Ordering::Relaxed));
    request_all(address, requests.map(|(path, _)| path));
}

/// The named rows of some seconds of `top`, by trace and by route.
fn rows(pid: &str, seconds: &str) -> Result<[Vec<Value>; 2], String> {
    let [traces, routes] = ["trace", "attribute"].map(|group| {
        let picture = top(pid, group, seconds);
        assert_eq!(picture["by"], group);
        let rows = picture["rows"].as_array().unwrap().iter();
        rows.filter(|row| !row["name"].is_null())
            .cloned()
            .collect::<Vec<_>>()
    });
    if routes.len() < REQUESTS.len() || traces.len() < TRACES {
        return Err(format!("{routes:#?}, {} traces", traces.len()));
    }
    Ok([traces, routes])
}

/// The view shows the requests that are in the service's own log.
#[test]
fn top_shows_the_routes_and_traces_of_the_axum_service() {
    let Some(program) = cargo_built(&["--bin", "shop"], "shop") else {
        return;
    };
    let mut command = Command::new(program);
    command
        .args(["--log", "127.0.0.1:0"])
        .stdout(Stdio::piped());
    let mut service = Service(command.spawn().unwrap());
    let mut lines = BufReader::new(service.0.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let pid = service.0.id().to_string();
    let start = format!("pid {pid}, http://");
    let address = first
        .strip_prefix(&start)
        .unwrap_or_else(|| panic!("{first}"));

    let stop = AtomicBool::new(false);
    let (shown, log) = std::thread::scope(|scope| {
        let log = scope.spawn(move || lines.map(Result::unwrap).collect::<Vec<_>>());
        let clients = [(); 4].map(|()| scope.spawn(|| send(address, &stop)));
        // Whatever happens, the threads end.
        let shown = std::panic::catch_unwind(|| given_time(|seconds| rows(&pid, seconds)));
        stop.store(true, Ordering::Relaxed);
        let sent = clients.map(|client| client.join());
        drop(service);
        let log = log.join().unwrap();
        assert!(sent.iter().all(Result::is_ok));
        (shown, log)
    });
    let [traces, routes] = shown.unwrap_or_else(|panic| std::panic::resume_unwind(panic));

    let log: HashMap<&str, &str> = log
        .iter()
        .map(|line| line.split_once(' ').unwrap())
        .collect();
    let named: BTreeSet<_> = routes
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        named,
        REQUESTS.map(|(_, route)| route).into(),
        "{routes:#?}"
    );
    for row in &routes {
        assert_eq!(row["service"], "shop", "{row:#}");
        let route = log.get(row["trace_id"].as_str().unwrap());
        assert_eq!(route.copied(), row["name"].as_str(), "{row:#}");
    }
    for row in &traces {
        assert_eq!(row["name"], row["trace_id"], "{row:#}");
        assert_eq!(row["service"], "shop", "{row:#}");
        let route = log.get(row["name"].as_str().unwrap());
        assert_eq!(route.copied(), row["value"].as_str(), "{row:#}");
    }
    println!("{} traces of {}", traces.len(), log.len());
}
