//! A copy of `otelctx` that executes commands, in a program or in a library.

use std::sync::Mutex;

use otelctx::{Key, ProcessContext, PublishError, Published, TraceFlags};

static PUBLISHED: Mutex<Option<Published>> = Mutex::new(None);

/// Executes a command, its words separated by tabs:
///
/// - `publish SERVICE`, `update SERVICE`, `modify SERVICE`, `drop`
/// - `large`: publishes a context that is too large
/// - `key NAME`: registers a key
/// - `attach NAME VALUE`: attaches a record with this attribute on the calling thread
///
/// Returns 0, or why it failed: 1 another publisher, 2 not published, 3 anything else.
pub(crate) fn execute(command: &str) -> i32 {
    let words: Vec<&str> = command.split('\t').collect();
    let mut published = PUBLISHED.lock().expect("nobody panics");
    let context = |service: &str| ProcessContext::new().with_service_name(service);
    let result = match words[..] {
        ["publish", service] => context(service).publish().map(|guard| {
            // An earlier one that another copy has withdrawn.
            drop(published.replace(guard));
        }),
        ["update", service] => {
            let guard = published.as_mut().expect("published before");
            guard.replace(context(service))
        }
        // More than readers accept.
        ["large"] => {
            let large = ProcessContext::new().with_attribute("large", "x".repeat(1 << 17));
            large.publish().map(drop)
        }
        ["modify", service] => ProcessContext::modify(|context| context.with_service_name(service)),
        ["drop"] => {
            *published = None;
            Ok(())
        }
        ["key", name] => {
            Key::from_string(name.into()).expect("registered");
            Ok(())
        }
        ["attach", name, value] => {
            let key = Key::from_string(name.into()).expect("registered");
            otelctx::thread_context()
                .set_with([1; 16], [2; 8], TraceFlags::SAMPLED, |to| {
                    to.append(&key, value);
                })
                .unwrap();
            Ok(())
        }
        _ => panic!("unknown command {command:?}"),
    };
    match result {
        Ok(()) => 0,
        Err(PublishError::Foreign { .. }) => 1,
        Err(PublishError::NotPublished) => 2,
        Err(_) => 3,
    }
}
