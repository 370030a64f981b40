//! `dump --last`: has a running `record --keep` write what it keeps.

use std::io::{BufRead, BufReader, Read, Write};
use std::time::Duration;

use crate::Status;
use crate::command::recorders::{Answer, MAX_ANSWER, Recorder, Request, directories, running};
use crate::error::Error;
use crate::output::json;
use crate::output::terminal::{self, escape};
use crate::output::text::count;

/// Asks recorder `pid`, or the only one that runs, to write the last `time`. Prints the files.
pub(super) fn run(time: Duration, pid: Option<i32>, as_json: bool) -> Result<Status, Error> {
    let recorder = choose(running(&directories()), pid)?;
    let id = recorder.pid;
    let answer = ask(recorder, time).map_err(|why| Error::RecorderSilent { pid: id, why })?;
    let is_written = !answer.files.is_empty();
    let text = if as_json {
        json::render(&answer)
    } else if is_written {
        let samples = count(answer.samples, "sample", "samples");
        let seconds = answer.duration_ns as f64 / 1e9;
        let paths = answer.files.iter().map(|it| it.to_string_lossy());
        let lines = paths.map(|path| format!("  {}\n", escape(&path)));
        format!("{samples} of the last {seconds:.1} s\n") + &lines.collect::<String>()
    } else {
        String::new()
    };
    terminal::print(&text).map_err(Error::Output)?;
    for why in &answer.failed {
        terminal::complain(&format!("recorder {id}: {why}"), None);
    }
    Ok(if answer.failed.is_empty() {
        Status::Done
    } else {
        Status::CouldNotRun
    })
}

/// Returns the recorder with this ID, or the only one.
fn choose(mut running: Vec<Recorder>, pid: Option<i32>) -> Result<Recorder, Error> {
    let Some(pid) = pid else {
        return match running.len() {
            0 => Err(Error::NoRecorder),
            1 => Ok(running.remove(0)),
            _ => Err(Error::ManyRecorders(ids(&running))),
        };
    };
    let others = ids(&running);
    let found = running.into_iter().find(|it| it.pid == pid);
    found.ok_or(Error::NoSuchRecorder { pid, others })
}

fn ids(running: &[Recorder]) -> Vec<i32> {
    running.iter().map(|it| it.pid).collect()
}

/// Sends a request, and waits until the recorder has written.
fn ask(recorder: Recorder, time: Duration) -> std::io::Result<Answer> {
    let last_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let mut request = serde_json::to_vec(&Request { last_ns })?;
    request.push(b'\n');
    let mut stream = recorder.stream;
    stream.write_all(&request)?;
    let mut line = String::new();
    BufReader::new(stream.take(MAX_ANSWER)).read_line(&mut line)?;
    if line.is_empty() {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_str(&line)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn recorders(pids: &[i32]) -> Vec<Recorder> {
        let recorder = |pid: &i32| Recorder {
            pid: *pid,
            stream: UnixStream::pair().unwrap().0,
        };
        pids.iter().map(recorder).collect()
    }

    #[test]
    fn the_only_recorder_is_asked_or_the_chosen_one() {
        let chosen = |pids: &[i32], pid| match choose(recorders(pids), pid) {
            Ok(recorder) => recorder.pid.to_string(),
            Err(error) => error.to_string(),
        };
        assert_eq!(chosen(&[7], None), "7");
        assert_eq!(chosen(&[7, 12], Some(12)), "12");
        let none = "no recorder of this user keeps samples";
        assert_eq!(chosen(&[], None), none);
        assert_eq!(
            chosen(&[7, 12], None),
            "several recorders keep samples: choose one with --recorder: 7, 12"
        );
        assert_eq!(
            chosen(&[7, 12], Some(8)),
            "process 8 is no recorder of this user that keeps samples; these are: 7, 12"
        );
        assert_eq!(
            chosen(&[], Some(8)),
            "process 8 is no recorder of this user that keeps samples"
        );
    }

    #[test]
    fn a_recorder_that_ends_is_an_error() {
        let (own, other) = UnixStream::pair().unwrap();
        drop(other);
        let recorder = Recorder {
            pid: 7,
            stream: own,
        };
        assert!(ask(recorder, Duration::from_secs(1)).is_err());
    }
}
