//! Processes that are watched: they come, publish late, update, execute, and go.

use std::process::Command;
use std::time::{Duration, Instant};

use otelctx_fixtures::{Compiler, Target};
use otelctx_reader::ProcessContext;
use otelctx_reader::format::process_context::Value;
use otelctx_track::{Change, Event, Watch};

fn start() -> Option<Target> {
    let program = Compiler::gcc().program::<&str>(&["mappings.c"], &[])?;
    Some(Target::spawn(&mut Command::new(program)))
}

fn service(context: &ProcessContext) -> String {
    match context.payload.resource_attribute("service.name") {
        Some(Value::String(name)) => name.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Events in short.
fn reported(events: Vec<Event>) -> Vec<(i32, String)> {
    let short = |change| match change {
        Change::Published(context) => format!("published {}", service(&context)),
        Change::Updated(context) => format!("updated {}", service(&context)),
        Change::Broken(why) => format!("broken {why}"),
        Change::Withdrawn => "withdrawn".into(),
        Change::Ended => "ended".into(),
        other => format!("{other:?}"),
    };
    events
        .into_iter()
        .map(|event| (event.pid, short(event.change)))
        .collect()
}

/// One target, and a watch of it alone that never rescans periodically.
struct Watched {
    target: Target,
    watch: Watch,
}

impl Watched {
    fn start() -> Option<Self> {
        let target = start()?;
        let watch = Watch::default().rescan_interval(Duration::MAX);
        Some(Self { target, watch })
    }

    /// The events of the first poll that has any, after the target has executed this command: on a
    /// busy machine, a process is not scanned in each poll.
    fn after(&mut self, command: &str) -> Vec<String> {
        self.target.command(command);
        self.reported()
    }

    fn reported(&mut self) -> Vec<String> {
        let deadline = Instant::now() + otelctx_fixtures::HANG_TIMEOUT;
        loop {
            let reported = self.poll();
            if !reported.is_empty() {
                return reported;
            }
            assert!(Instant::now() < deadline, "nothing was reported");
        }
    }

    fn poll(&mut self) -> Vec<String> {
        let events = reported(self.watch.poll_these(&[self.target.pid()]));
        events.into_iter().map(|(_, what)| what).collect()
    }
}

const NOTHING: [&str; 0] = [];

#[test]
fn a_context_is_followed_from_its_first_day_to_its_last() {
    let Some(mut it) = Watched::start() else {
        return;
    };
    assert_eq!(it.poll(), NOTHING);
    assert_eq!(it.poll(), NOTHING);
    assert_eq!(it.after("publish shop"), ["published shop"]);
    assert_eq!(it.poll(), NOTHING);
    assert_eq!(it.after("update bank"), ["updated bank"]);
    assert_eq!(it.poll(), NOTHING);
    assert_eq!(it.after("withdraw"), ["withdrawn"]);
    assert_eq!(it.poll(), NOTHING);
    assert_eq!(it.after("publish zoo"), ["published zoo"]);
    let broken = it.after("damage");
    assert!(broken[0].starts_with("broken ") && broken[0].contains("version 3"));
    assert_eq!(it.poll(), NOTHING);
    assert_eq!(it.after("withdraw"), ["withdrawn"]);
    assert_eq!(it.poll(), NOTHING);
}

#[test]
fn a_context_that_comes_after_a_poll_that_saw_other_changes_is_found() {
    let Some(mut it) = Watched::start() else {
        return;
    };
    for _ in 0..3 {
        assert_eq!(it.poll(), NOTHING);
        it.target.command("map memory 3");
        assert_eq!(it.poll(), NOTHING);
    }
    assert_eq!(it.after("publish shop"), ["published shop"]);
}

#[test]
fn another_program_in_the_same_process_is_another_publisher() {
    let Some(mut it) = Watched::start() else {
        return;
    };
    assert_eq!(it.after("publish shop"), ["published shop"]);
    it.target.command("execute");
    it.target.command("publish shop");
    assert_eq!(it.reported(), ["published shop"]);
    assert_eq!(it.after("execute"), ["withdrawn"]);
    assert_eq!(it.after("publish bank"), ["published bank"]);
}

#[test]
fn a_process_whose_leader_has_exited_is_still_watched() {
    let Some(mut it) = Watched::start() else {
        return;
    };
    assert_eq!(it.poll(), NOTHING);
    it.target.command("leave");
    assert_eq!(it.poll(), NOTHING);
    assert_eq!(it.poll(), NOTHING);
    assert_eq!(it.after("publish shop"), ["published shop"]);
    assert_eq!(it.after("update bank"), ["updated bank"]);
    assert_eq!(it.after("withdraw"), ["withdrawn"]);
}

#[test]
fn a_process_that_has_ended_is_reported_once() {
    let Some(mut it) = Watched::start() else {
        return;
    };
    assert_eq!(it.after("publish shop"), ["published shop"]);
    let Watched {
        mut target,
        mut watch,
    } = it;
    let pid = target.pid();
    target.child().kill().unwrap();
    // Not waited for: a zombie is in the listing still.
    let mut all = Vec::new();
    while all.is_empty() {
        all = reported(watch.poll_these(&[pid]));
    }
    assert_eq!(all, [(pid, "ended".to_owned())]);
    assert_eq!(reported(watch.poll_these(&[pid])), []);
    drop(target);
    assert_eq!(reported(watch.poll_these(&[pid])), []);
    assert_eq!(reported(watch.poll_these(&[])), []);
    assert!(watch.is_empty());
}

#[test]
fn one_that_is_gone_from_the_listing_has_ended() {
    let Some(mut it) = Watched::start() else {
        return;
    };
    assert_eq!(it.after("publish shop"), ["published shop"]);
    let pid = it.target.pid();
    assert_eq!(
        reported(it.watch.poll_these(&[])),
        [(pid, "ended".to_owned())]
    );
}

#[test]
fn a_second_context_shows_when_it_is_searched() {
    let Some(target) = start() else { return };
    let mut watch = Watch::default().rescan_interval(Duration::ZERO);
    let mut it = Watched { target, watch };
    assert_eq!(it.after("publish shop"), ["published shop"]);
    // The later one may lie before the first in memory and so be the first.
    let pid = it.target.pid();
    it.target.command("publish bank");
    watch = it.watch;
    let mut events = Vec::new();
    while events.is_empty() {
        events = watch.poll_these(&[pid]);
    }
    let [
        Event {
            change: Change::Updated(context),
            ..
        },
    ] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(context.others.len(), 1);
    assert!(watch.poll_these(&[pid]).is_empty());
}

#[test]
fn the_whole_machine_is_watched() {
    let Some(mut target) = start() else { return };
    let mut watch = Watch::default();
    let of_target = |events: Vec<Event>, pid| -> Vec<_> {
        reported(events)
            .into_iter()
            .filter(|reported| reported.0 == pid)
            .collect()
    };
    let pid = target.pid();
    assert_eq!(of_target(watch.poll().unwrap(), pid), []);
    assert!(watch.len() > 1);
    target.command("publish shop");
    let mut all = Vec::new();
    while all.is_empty() {
        all = of_target(watch.poll().unwrap(), pid);
    }
    assert_eq!(all, [(pid, "published shop".to_owned())]);
    let process = watch.process(pid).unwrap();
    assert_eq!(process.pid(), Some(pid));
    drop(target);
    assert_eq!(
        of_target(watch.poll().unwrap(), pid),
        [(pid, "ended".to_owned())]
    );
    assert!(watch.process(pid).is_none());
}
