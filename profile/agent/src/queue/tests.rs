use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::directory::tests::Scratch;

fn limits(memory: u64, directory: u64) -> QueueLimits {
    QueueLimits { memory, directory }
}

/// Takes everything that is to be sent, without waiting for more.
fn sent(queue: &Queue) -> Vec<Vec<u8>> {
    queue.stop(Instant::now() + std::time::Duration::from_secs(3600));
    let mut messages = Vec::new();
    loop {
        match queue.next(None) {
            Next::Send(message) => messages.push(message),
            Next::Report(_) | Next::Woken => continue,
            Next::End => break,
        }
        queue.finish(None);
    }
    messages
}

fn volume(messages: u64, samples: u64, bytes: u64) -> Volume {
    Volume {
        messages,
        samples,
        bytes,
    }
}

#[test]
fn without_room_the_oldest_are_dropped_but_not_the_one_that_is_sent() {
    let scratch = Scratch::new("queue-full");
    for queue in [
        Queue::in_memory(limits(10, 0)),
        Queue::in_directory(&scratch.0, limits(0, 10)).unwrap(),
    ] {
        queue.push(b"1111".to_vec(), 1);
        let Next::Send(first) = queue.next(None) else {
            panic!("nothing to send");
        };
        assert_eq!(first, b"1111");
        for (message, samples) in [("2222", 2), ("33", 3), ("4444", 4), ("larger than all", 5)] {
            queue.push(message.as_bytes().to_vec(), samples);
        }
        let counts = queue.counts();
        assert_eq!(counts.added, volume(5, 15, 29));
        assert_eq!(counts.dropped(DropReason::QueueFull), volume(2, 7, 19));
        assert_eq!(counts.queued, volume(3, 8, 10));
        assert!(
            matches!(&queue.next(None), Next::Report(notes) if matches!(notes[..], [Note::Full]))
        );
        queue.finish(None);
        assert_eq!(sent(&queue), [&b"33"[..], b"4444"]);
        let counts = queue.counts();
        assert_eq!(
            (counts.sent, counts.queued),
            (volume(3, 8, 10), volume(0, 0, 0))
        );
    }
    assert_eq!(scratch.names().len(), 0);
}

#[test]
fn a_restart_resumes_in_order() {
    let scratch = Scratch::new("queue-restart");
    let queue = Queue::in_directory(&scratch.0, QueueLimits::default()).unwrap();
    for number in 0..12_u8 {
        queue.push(vec![number; 3], 2);
    }
    assert!(matches!(queue.next(None), Next::Send(_)));
    queue.finish(None);
    assert!(matches!(queue.next(None), Next::Send(_)));
    // Killed while it sends the second one.
    drop(queue);
    let queue = Queue::in_directory(&scratch.0, QueueLimits::default()).unwrap();
    assert_eq!(queue.counts().resumed, volume(11, 22, 33));
    queue.push(vec![12; 3], 2);
    let expected: Vec<_> = (1..13_u8).map(|number| vec![number; 3]).collect();
    assert_eq!(sent(&queue), expected);
    drop(queue);
    // With less room than before.
    let queue = Queue::in_directory(&scratch.0, QueueLimits::default()).unwrap();
    (0..4_u8).for_each(|number| queue.push(vec![number; 3], 2));
    drop(queue);
    let queue = Queue::in_directory(&scratch.0, limits(0, 7)).unwrap();
    assert_eq!(queue.counts().all_dropped(), volume(2, 4, 6));
    assert_eq!(sent(&queue), [[2; 3], [3; 3]]);
}

#[test]
fn damaged_and_missing_files_are_reported_once_and_counted() {
    let scratch = Scratch::new("queue-damaged");
    let queue = Queue::in_directory(&scratch.0, QueueLimits::default()).unwrap();
    (0..5_u8).for_each(|number| queue.push(vec![number; 3], 1));
    drop(queue);
    let names: Vec<_> = scratch.names().into_iter().collect();
    fs::write(scratch.0.join(&names[0]), "x").unwrap();
    fs::write(scratch.0.join("foreign"), "x").unwrap();
    let queue = Queue::in_directory(&scratch.0, QueueLimits::default()).unwrap();
    // After the restart, as another program might.
    fs::write(scratch.0.join(&names[1]), "xyz").unwrap();
    fs::remove_file(scratch.0.join(&names[2])).unwrap();
    let Next::Report(notes) = queue.next(None) else {
        panic!("no report");
    };
    assert!(
        matches!(&notes[..], [Note::Damaged(path, _), Note::Foreign(_, 1)] if path.ends_with(&names[0])),
        "{notes:?}"
    );
    assert_eq!(sent(&queue), [[3; 3], [4; 3]]);
    let counts = queue.counts();
    assert_eq!(counts.dropped(DropReason::Damaged), volume(3, 3, 9));
    assert_eq!(counts.all_dropped(), volume(3, 3, 9));
    assert_eq!(scratch.names().into_iter().collect::<Vec<_>>(), ["foreign"]);
}

#[test]
fn messages_that_cannot_be_written_are_kept_in_memory_and_in_order() {
    let scratch = Scratch::new("queue-unwritable");
    let queue = Queue::in_directory(&scratch.0, limits(6, 100)).unwrap();
    queue.push(vec![0; 3], 1);
    // A directory in place of the file that is written: also root cannot replace it.
    let obstacle = scratch.0.join("unfinished");
    fs::create_dir(&obstacle).unwrap();
    fs::write(obstacle.join("x"), "").unwrap();
    (1..4_u8).for_each(|number| queue.push(vec![number; 3], 1));
    assert_eq!(
        queue.counts().dropped(DropReason::QueueFull),
        volume(1, 1, 3)
    );
    assert!(!queue.is_stored());
    fs::remove_dir_all(&obstacle).unwrap();
    queue.push(vec![4; 3], 1);
    let Next::Report(notes) = queue.next(None) else {
        panic!("no report");
    };
    assert!(
        matches!(&notes[..], [Note::CannotWrite(path, _), Note::Full, Note::WritesAgain] if *path == scratch.0),
        "{notes:?}"
    );
    assert_eq!(sent(&queue), [[0; 3], [2; 3], [3; 3], [4; 3]]);
    let mode = fs::metadata(&scratch.0).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn at_the_end_memory_goes_to_files_or_is_counted() {
    let scratch = Scratch::new("queue-close");
    let queue = Queue::in_memory(QueueLimits::default());
    (0..3_u8).for_each(|number| queue.push(vec![number; 3], 1));
    queue.close();
    assert_eq!(queue.counts().dropped(DropReason::Stopped), volume(3, 3, 9));
    assert_eq!(queue.counts().queued, Volume::default());
    let queue = Queue::in_directory(&scratch.0, limits(9, 100)).unwrap();
    let obstacle = scratch.0.join("unfinished");
    fs::create_dir(&obstacle).unwrap();
    fs::write(obstacle.join("x"), "").unwrap();
    (0..3_u8).for_each(|number| queue.push(vec![number; 3], 1));
    fs::remove_dir_all(&obstacle).unwrap();
    queue.close();
    assert_eq!(queue.counts().all_dropped(), Volume::default());
    drop(queue);
    let queue = Queue::in_directory(&scratch.0, QueueLimits::default()).unwrap();
    assert_eq!(sent(&queue), [[0; 3], [1; 3], [2; 3]]);
}
