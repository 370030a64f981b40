//! Key maps, by the configuration under which records were read.

use std::time::{Duration, Instant};

use otelctx_reader::RecordKeys;
use otelctx_sample::format::KeyMap;
use otelctx_track::TrackedProcess;
use otelctx_track::schedule::wait_after_slower_than;

/// Maximum number of key maps kept per process: samples of earlier configurations may still arrive.
const MAX_KEY_MAPS: usize = 4;
/// Reading takes longer only while the process updates its context, which may never end.
const SLOW_READ: Duration = Duration::from_millis(1);

/// The result of reading a key map again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Refresh {
    /// It has other names.
    Changed,
    /// It is the same.
    Same,
    /// It was not read, or could not be.
    Unread,
}

#[derive(Debug, Default)]
pub(crate) struct KeyMaps {
    /// By configuration, the newest last.
    maps: Vec<(u32, RecordKeys)>,
    /// Time from which on unknown keys cause another read.
    next_read: Option<Instant>,
}

impl KeyMaps {
    pub(crate) fn set(&mut self, serial: u32, keys: RecordKeys) {
        self.maps.retain(|(known, _)| *known != serial);
        self.contest(keys.all());
        if self.maps.len() >= MAX_KEY_MAPS {
            self.maps.remove(0);
        }
        self.maps.push((serial, keys));
    }

    /// Removes the names on which several publishers do not agree, by these keys, from all key maps:
    /// records that were read before the second publisher was noticed may be its own.
    pub(crate) fn contest(&mut self, keys: &KeyMap) {
        let has_one_publisher = keys.contested().is_empty() && keys.without_provisional() == *keys;
        if !has_one_publisher {
            for (_, earlier) in &mut self.maps {
                *earlier = earlier.agreed(keys);
            }
        }
    }

    pub(crate) fn get(&self, serial: u32) -> Option<&RecordKeys> {
        let mut maps = self.maps.iter().rev();
        maps.find_map(|(known, keys)| (*known == serial).then_some(keys))
    }

    /// Removes all: the process has executed another program.
    pub(crate) fn clear(&mut self) {
        self.maps.clear();
    }

    /// Reads the key map of this configuration again, unless reading it was slow recently.
    pub(crate) fn refresh(&mut self, serial: u32, process: &mut TrackedProcess) -> Refresh {
        let start = Instant::now();
        if self.next_read.is_some_and(|next| start < next) {
            return Refresh::Unread;
        }
        let refresh = self.read(serial, process);
        let took = start.elapsed();
        if refresh == Refresh::Unread || refresh == Refresh::Same && took > SLOW_READ {
            let wait = took.max(SLOW_READ + Duration::from_nanos(1));
            self.next_read = Some(start + wait_after_slower_than(SLOW_READ, wait));
        }
        refresh
    }

    fn read(&mut self, serial: u32, process: &mut TrackedProcess) -> Refresh {
        let Some(context) = process.refresh_context() else {
            return Refresh::Unread;
        };
        let Some(old) = self.get(serial) else {
            return Refresh::Unread;
        };
        let Some(new) = old.updated(context) else {
            return Refresh::Unread;
        };
        if new == *old {
            return Refresh::Same;
        }
        // A publisher's key map only grows. Another one belongs to another program, or to a second
        // publisher: then only names that both have are certain.
        let keys = if new.continue_names_of(old) {
            new
        } else {
            old.agreed(new.all())
        };
        if keys == *old {
            return Refresh::Same;
        }
        self.set(serial, keys);
        Refresh::Changed
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use otelctx_fixtures::{Compiler, Target};
    use otelctx_track::{Options, ThreadStatus, Tracker};

    use super::*;

    /// Otherwise each of its samples would wait for the end of the update.
    #[test]
    fn an_update_that_never_ends_is_not_waited_for_at_each_sample() {
        let sources = ["publish_later.c", "variable.c"];
        let flags = ["-DLINKED", "-rdynamic"];
        let Some(program) = Compiler::gcc().program(&sources, &flags) else {
            return;
        };
        let mut target = Target::spawn(Command::new(program).arg("update"));
        target.command("publish");
        let mut options = Options::default();
        options.threads = true;
        let mut tracker: Tracker<KeyMaps> = Tracker::new(options);
        tracker.add(target.pid()).unwrap();
        tracker.poll(target.pid(), &mut |_| {});
        let tracked = tracker.get_mut(target.pid()).unwrap();
        let ThreadStatus::Readable(variables) = tracked.process.threads() else {
            panic!("{:?}", tracked.process)
        };
        let keys = variables.keys.clone();
        tracked.data.set(7, keys);
        let same = tracked.data.refresh(7, &mut tracked.process);
        assert_eq!(same, Refresh::Same);
        target.command("never end");
        // The machine may have been busy.
        tracked.data.next_read = None;
        let start = Instant::now();
        let unread = tracked.data.refresh(7, &mut tracked.process);
        assert_eq!(unread, Refresh::Unread);
        assert!(tracked.data.next_read.unwrap() >= start + SLOW_READ * 50);
    }

    #[test]
    fn names_that_are_contested_now_are_so_in_earlier_records() {
        let map = |names: [&str; 2]| KeyMap::new(names).unwrap();
        let mut maps = KeyMaps::default();
        maps.set(1, RecordKeys::new(map(["a", "b"])));
        let agreed = KeyMap::agreed([Some(&map(["a", "b"])), Some(&map(["a", "x"]))]);
        maps.set(2, RecordKeys::new(agreed));
        assert_eq!(maps.get(1).unwrap().all().names(), ["a", "#1"]);
        assert_eq!(maps.get(2).unwrap().all().names(), ["a", "#1"]);
    }

    #[test]
    fn the_newest_maps_are_kept() {
        let mut maps = KeyMaps::default();
        for serial in 1..=6 {
            maps.set(serial, RecordKeys::default());
        }
        let known: Vec<u32> = (1..=6)
            .filter(|serial| maps.get(*serial).is_some())
            .collect();
        assert_eq!(known, [3, 4, 5, 6]);
        maps.clear();
        assert!(maps.get(6).is_none());
    }
}
