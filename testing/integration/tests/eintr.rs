//! 10,000 dumps of threads that sleep in system calls interrupt none of the calls: the program counts
//! every call that returns early.

use std::process::Command;
use std::time::Duration;

use otelctx_fixtures::{Compiler, Target, tier};
use otelctx_reader::{Found, Process};

/// In all tests, and a tenth of them in the usual ones.
const DUMPS: usize = 10_000;
/// Dumps between two pauses in which calls reach their timeouts of 20 ms.
const AT_A_TIME: usize = 500;
/// The calls of sleepers.c; the main thread, in read, is one more thread.
const CALLS: usize = 10;

/// Publishes, and has a variable that is never attached.
fn sleepers() -> Option<Target> {
    let sources = ["sleepers.c", "variable.c", "publish.c"];
    let program = Compiler::gcc().program(&sources, &["-rdynamic"])?;
    Some(Target::spawn(&mut Command::new(program)))
}

#[test]
fn ten_thousand_dumps_interrupt_no_call() {
    let Some(mut target) = sleepers() else {
        return;
    };
    for _ in 0..DUMPS / tier::usual_or_all(10, 1) / AT_A_TIME {
        for _ in 0..AT_A_TIME {
            // Opened again, as `otelctx dump` does.
            let mut process = Process::open(target.pid()).unwrap();
            let threads = process.threads().unwrap();
            assert_eq!(threads.len(), CALLS + 1);
            for thread in threads {
                let outcome = thread.context();
                assert!(matches!(outcome, Ok(Found::Detached)), "{outcome:?}");
            }
        }
        std::thread::sleep(Duration::from_millis(50));
        assert_undisturbed(&mut target);
    }
}

/// Asks the target for the results of its calls since the last time.
fn assert_undisturbed(target: &mut Target) {
    target.lines.clear();
    target.command("report");
    let results = target.lines.iter().filter(|it| it.starts_with("result "));
    let mut calls = 0;
    for result in results {
        let words: Vec<&str> = result.split(' ').collect();
        let [_, call, rounds, failures] = words[..] else {
            panic!("{result}")
        };
        assert_ne!(rounds, "0", "{call} does not go on");
        assert_eq!(failures, "0", "{call} was interrupted in {rounds} rounds");
        calls += 1;
    }
    assert_eq!(calls, CALLS);
}
