//! The processes that the program samples, and where their threads keep their contexts.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::maps::{HashMap, MapData};
use foldhash::fast::RandomState;
use otelctx_reader::remote::tls;

use super::abi::{
    Cpu, FEW_TARGETS, FewTarget, FewTargets, MAX_PLACES, Place, Target, TargetFilter, storage,
};
use super::object::{array, map};
use super::shared::{Shared, member};
use crate::refusal::Refusal;

/// Number of targets that are found by comparing pids: none on aarch64, where the program would
/// need barriers, which its instructions lack, to see writes in their order.
const FEW: usize = if cfg!(target_arch = "x86_64") {
    FEW_TARGETS
} else {
    0
};
/// Time before a slot is used again: no run of the program takes longer.
const SLOT_REUSE_DELAY: Duration = Duration::from_secs(1);

/// The program's map of processes, and what saves it from searching there: the pids of a few of
/// them, and a filter by pid. The program adds children to map and filter, and removes ended
/// processes from the map.
pub(super) struct TargetTable {
    targets: HashMap<MapData, u32, Target>,
    filter: Shared<TargetFilter>,
    few: Shared<FewTargets>,
    cpus: Shared<Cpu>,
    slots: [Slot; FEW],
    /// The processes that pass the filter.
    pids: HashSet<u32, RandomState>,
    /// Number of children that the program has reported.
    forks: u64,
    /// Number of processes that the map had no room for, apart from children that the program adds.
    pub(super) refused: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// 0 for none.
    pid: u32,
    freed: Option<Instant>,
}

impl TargetTable {
    /// `cpus` is the program's map of that name.
    pub(super) fn new(programs: &mut Ebpf, cpus: &MapData) -> Result<Self, Refusal> {
        Ok(Self {
            targets: map(programs, "targets")?,
            filter: Shared::of(array(programs, "target_filter")?).map_err(Refusal::of)?,
            few: Shared::of(array(programs, "few_targets")?).map_err(Refusal::of)?,
            cpus: Shared::of_open(cpus).map_err(Refusal::of)?,
            slots: [Slot::default(); FEW],
            pids: HashSet::default(),
            forks: 0,
            refused: 0,
        })
    }

    /// Adds or updates a process. If the map is full, it is not sampled; if the whole machine is
    /// sampled, it is sampled without contexts, and its samples are marked.
    pub(super) fn insert(&mut self, pid: u32, target: Target) {
        let is_new = self.pass(pid);
        if self.targets.insert(pid, target, 0).is_ok() {
            self.give_slot(pid, target);
            self.update_known_forks();
        } else {
            self.refused += u64::from(is_new);
        }
    }

    /// Notes a child that the program has added.
    pub(super) fn forked(&mut self, pid: u32) {
        self.pass(pid);
        self.forks += 1;
        self.update_known_forks();
    }

    pub(super) fn remove(&mut self, pid: u32) {
        // The program may have removed it.
        let _ = self.targets.remove(&pid);
        self.remove_slot(pid);
        if self.pids.remove(&pid) {
            let entry = filter_entry(pid);
            if self.pids.iter().all(|other| filter_entry(*other) != entry) {
                self.set_filter(pid, 0);
            }
            self.update_known_forks();
        }
    }

    /// Gives slots to targets that had to wait for one.
    pub(super) fn poll(&mut self) {
        if self.pids.len() > FEW {
            return;
        }
        let has_slot = |pid| self.slots.iter().any(|slot| slot.pid == pid);
        let waiting = self.pids.iter().copied().filter(|pid| !has_slot(*pid));
        for pid in waiting.collect::<Vec<u32>>() {
            let Ok(target) = self.targets.get(&pid, 0) else {
                continue;
            };
            self.give_slot(pid, target);
            // The process may have executed another program meanwhile, or ended.
            if self.targets.get(&pid, 0).ok() != Some(target) {
                self.remove_slot(pid);
            }
        }
        self.update_known_forks();
    }

    /// Lets a process pass the filter. Returns true if it is new.
    fn pass(&mut self, pid: u32) -> bool {
        self.set_filter(pid, 1);
        self.pids.insert(pid)
    }

    fn set_filter(&mut self, pid: u32, may_be_target: u8) {
        self.filter
            .write(|filter| filter, filter_entry(pid), &[may_be_target]);
    }

    /// Puts a target into a free slot, if there is one, and frees the one that it had.
    fn give_slot(&mut self, pid: u32, target: Target) {
        let now = Instant::now();
        let is_free = |slot: &Slot| {
            let is_unused = |freed| now.duration_since(freed) >= SLOT_REUSE_DELAY;
            slot.pid == 0 && slot.freed.is_none_or(is_unused)
        };
        let free = self.slots.iter().position(is_free);
        let former = self.slots.iter().position(|slot| slot.pid == pid);
        if let Some(slot) = free {
            let few = FewTarget {
                pid,
                reserved: 0,
                target,
                unused: 0,
            };
            self.few.write(member!(FewTargets, at), slot, &[few]);
            self.announce(slot, pid);
            self.slots[slot].pid = pid;
        }
        if let Some(slot) = former {
            self.free_slot(slot);
        }
    }

    fn remove_slot(&mut self, pid: u32) {
        if let Some(slot) = self.slots.iter().position(|slot| slot.pid == pid) {
            self.free_slot(slot);
        }
    }

    fn free_slot(&mut self, slot: usize) {
        self.announce(slot, 0);
        self.slots[slot] = Slot {
            pid: 0,
            freed: Some(Instant::now()),
        };
    }

    /// Passes the pid of a slot, whose target is written, to each CPU.
    fn announce(&mut self, slot: usize, pid: u32) {
        for cpu in 0..self.cpus.count {
            // SAFETY: `Shared` keeps the value mapped; its member is aligned, and written whole.
            let known = unsafe {
                AtomicU32::from_ptr((&raw mut (*self.cpus.value(cpu)).pids[slot]).cast())
            };
            known.store(pid, Ordering::Release);
        }
    }

    /// Notes for the program whether each target has a slot.
    fn update_known_forks(&mut self) {
        let have_slots = self.slots.iter().filter(|slot| slot.pid != 0).count();
        let known = if have_slots == self.pids.len() {
            self.forks
        } else {
            u64::MAX
        };
        // SAFETY: `Shared` keeps the value mapped; the member is aligned and written here alone.
        let known_forks = unsafe { AtomicU64::from_ptr(&raw mut (*self.few.value(0)).known_forks) };
        known_forks.store(known, Ordering::Release);
    }
}

/// Returns the index of a process in the filter, which others may have, too.
fn filter_entry(pid: u32) -> usize {
    pid as usize % size_of::<TargetFilter>()
}

/// Creates the entry of a process in the program's map.
pub(super) fn target(serial: u32, places: &[Place]) -> Target {
    let mut target = Target {
        serial,
        places: places.len().min(MAX_PLACES) as u32,
        ..Target::default()
    };
    for (to, from) in target.place.iter_mut().zip(places) {
        *to = *from;
    }
    target
}

/// Converts the variables of a process to the program's layout.
pub(super) fn places_of(variables: &[tls::TlsVariable]) -> Vec<Place> {
    let place = |variable: &tls::TlsVariable| {
        let registration = variable.registration();
        let base = Place {
            slot: registration.map_or(0, |it| it.address),
            slot_words: registration.map_or([0; 2], |it| it.words),
            ..Default::default()
        };
        match variable.place() {
            tls::Place::Static(offset) => Place {
                storage: storage::STATIC,
                offset: offset as u64,
                ..base
            },
            tls::Place::Dynamic {
                library,
                module,
                offset,
                generation,
            } => Place {
                storage: match library {
                    tls::CLibrary::Glibc => storage::GLIBC,
                    tls::CLibrary::Musl => storage::MUSL,
                },
                offset,
                module,
                generation: generation.unwrap_or(0),
                ..base
            },
        }
    };
    variables.iter().take(MAX_PLACES).map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    impl TargetTable {
        /// Returns true if the program need not search its map.
        pub(in crate::ebpf) fn all_have_slots(&self) -> bool {
            // SAFETY: `Shared` keeps the value mapped.
            unsafe { (&raw const (*self.few.value(0)).known_forks).read_volatile() == self.forks }
        }

        pub(in crate::ebpf) fn get(&self, pid: u32) -> Option<Target> {
            self.targets.get(&pid, 0).ok()
        }
    }
}
