//! Several threads that use a key for the first time at the same moment.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

use std::sync::Barrier;
use std::thread;

use otelctx::{visible_to_readers, Context, Key, ProcessContext};

const THREADS: usize = 4;
/// Fewer than the 256 that a process can have.
const KEYS: usize = 200;

#[test]
fn each_thread_that_uses_a_key_first_publishes_its_attribute() {
    let published = ProcessContext::new().with_service_name("first").publish();
    let published = published.unwrap();
    let start = Barrier::new(THREADS);
    let name = |at: usize| format!("key.{at}");
    let missed: usize = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let start = &start;
                scope.spawn(move || {
                    let mut missed = 0;
                    for at in 0..KEYS {
                        // Registered by the first; the others find it.
                        let key = Key::from_string(name(at)).unwrap();
                        start.wait();
                        let value = number.to_string();
                        let context = Context::new([1; 16], [1; 8]).unwrap();
                        let mut context = context.with_attribute(&key, &value);
                        let _guard = context.attach();
                        let seen = visible_to_readers().unwrap().attributes;
                        missed += usize::from(seen != [(name(at), value)]);
                        // All have used it before the next one is registered.
                        start.wait();
                    }
                    missed
                })
            })
            .collect();
        threads.into_iter().map(|it| it.join().unwrap()).sum()
    });
    assert_eq!(missed, 0, "of {}", THREADS * KEYS);
    drop(published);
}
