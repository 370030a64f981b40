//! A second publisher in a tracked process.

use std::process::Command;

use otelctx_fixtures::{Compiler, Target};
use otelctx_track::{Options, ThreadStatus, Tracker};

/// Otherwise samples have wrong names until the next regular scan.
#[test]
fn a_second_publisher_is_noticed_by_the_memory_that_it_maps() {
    let gcc = Compiler::gcc();
    let library = |keys| gcc.library(&["publisher.c", "variable.c"], &[keys]);
    let program = gcc.program::<&str>(&["publishers.c"], &[]);
    let (Some(program), Some(one), Some(other)) = (
        program,
        library("-DKEYS=\"a\",\"b\""),
        library("-DKEYS=\"a\",\"x\""),
    ) else {
        return;
    };
    let mut target = Target::spawn(&mut Command::new(program));
    for library in [one, other] {
        target.command(&format!("load {}", library.display()));
    }
    target.command("publish 0");
    let mut options = Options::default();
    options.threads = true;
    let mut tracker: Tracker<()> = Tracker::new(options);
    tracker.add(target.pid()).unwrap();
    let pid = target.pid();
    let mut names = || {
        let mut changes = 0;
        tracker.poll(pid, &mut |_| changes += 1);
        let process = &tracker.get(pid).unwrap().process;
        let ThreadStatus::Readable(variables) = process.threads() else {
            panic!("{process:?}")
        };
        (variables.keys.all().names().to_vec(), changes > 0)
    };
    assert_eq!(names().0, ["a", "b"]);
    // The scan after the first one, if its memory has changed since.
    names();
    assert_eq!(names(), (vec!["a".into(), "b".into()], false));
    target.command("publish 1");
    assert_eq!(names(), (vec!["a".into(), "#1".into()], true));
}
