//! Executes commands from standard input, one per line, words separated by tabs. Answers each with
//! `done`:
//!
//! - `publish SERVICE`: publishes the process context, or publishes it again at another address
//! - `update SERVICE`
//! - `unpublish`
//! - `attach NAME VALUE`: attaches trace 0x01…, span 0x02… and this attribute on the main thread
//! - `exec`: executes the program again in the same process; nothing is published then

use std::io::BufRead;
use std::os::unix::process::CommandExt;

use otelctx::{Key, ProcessContext, Published, TraceFlags};

fn context(service: &str) -> ProcessContext {
    ProcessContext::new().with_service_name(service)
}

fn main() {
    // A program that replaces this one goes on answering.
    let answer = match std::env::args().nth(1) {
        None => "ready",
        Some(_) => "done",
    };
    println!("{answer}");
    let mut published: Option<Published> = None;
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("commands are UTF-8");
        let words: Vec<&str> = line.split('\t').collect();
        match words[..] {
            ["publish", service] => {
                drop(published.take());
                published = Some(context(service).publish().expect("published"));
            }
            ["update", service] => {
                let published = published.as_mut().expect("published before");
                published.replace(context(service)).expect("updated");
            }
            ["unpublish"] => published = None,
            ["attach", name, value] => {
                let key = Box::leak(Box::new(Key::new(name.to_owned().leak())));
                otelctx::thread_context()
                    .set_with([1; 16], [2; 8], TraceFlags::SAMPLED, |to| {
                        to.append(key, value);
                    })
                    .unwrap();
            }
            ["exec"] => {
                let error = std::process::Command::new("/proc/self/exe")
                    .arg("again")
                    .exec();
                panic!("exec: {error}");
            }
            _ => panic!("unknown command {line:?}"),
        }
        println!("done");
    }
    drop(published);
}
