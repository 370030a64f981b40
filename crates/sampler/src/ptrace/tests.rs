//! Tests of what cannot be observed from outside.

use std::process::Command;
use std::time::Instant;

use otelctx_fixtures::Target;

use super::*;
use crate::INTERVAL;

/// Long enough for everything to happen, even on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Its mappings used to be scanned at each tick.
#[test]
fn a_process_that_publishes_nothing_is_scanned_less_and_less_often() {
    let script = "echo ready; while :; do :; done";
    let target = Target::spawn(Command::new("sh").args(["-c", script]));
    let options = Options::new(Targets::Processes(vec![target.pid()]));
    let mut recorder = Recorder::start(&options, reader::Options::default(), None).unwrap();
    let (mut catalog, start) = (Catalog::new(), Instant::now());
    while recorder.counts().not_published < 50 {
        assert!(start.elapsed() < TIMEOUT, "{:?}", recorder.counts());
        std::thread::sleep(INTERVAL);
        recorder.drain(&mut catalog, &mut |_| {});
    }
    assert_eq!(recorder.counts().samples(), recorder.counts().not_published);
    // At the start, after 40, 80, 160, 320, 640 ms and 1.28 s, and then every 2 s.
    let polls = recorder.processes.polls();
    let most = 8 + (monotonic() - recorder.started()) / 2_000_000_000;
    assert!(polls <= most, "{polls}");
}
