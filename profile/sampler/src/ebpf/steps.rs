//! The configurations of runtimes' steps: `step_configurations` in `steps.h`.

use std::collections::BTreeMap;

use aya::maps::{HashMap, MapData};
use otelctx_reader::runtime::Present;

use super::abi::{StepConfiguration, StepKey};

/// Maximum number of steps of a target: `steps` in `target.h` has a byte for each.
const MAX_STEPS: usize = size_of::<u32>();

pub(super) struct Step {
    pub(super) number: u32,
    pub(super) configuration: StepConfiguration,
}

/// Returns the steps of a process's runtimes. Without its step in the object, a runtime is read by
/// the ptrace sampler alone.
pub(super) fn steps_of(runtimes: &[Present], numbers: &BTreeMap<String, u32>) -> Vec<Step> {
    let step = |present: &Present| {
        let step = present.process.as_ref().ok()?.kernel_step()?;
        let number = *numbers.get(step.name)?;
        let mut configuration = [0; size_of::<StepConfiguration>()];
        let room = configuration.get_mut(..step.configuration.len())?;
        room.copy_from_slice(&step.configuration);
        Some(Step {
            number,
            configuration,
        })
    };
    runtimes.iter().filter_map(step).take(MAX_STEPS).collect()
}

/// Configures a process's steps. Returns their numbers for a target: the first in the lowest byte.
pub(super) fn configure_steps(
    configurations: &mut HashMap<MapData, StepKey, StepConfiguration>,
    pid: u32,
    steps: &[Step],
) -> u32 {
    for step in steps {
        let key = StepKey {
            pid,
            step: step.number,
        };
        // If the map is full, samples get `step_outcome::UNCONFIGURED`.
        let _ = configurations.insert(key, step.configuration, 0);
    }
    let numbers = steps.iter().rev().map(|step| step.number);
    numbers.fold(0, |all, number| all << 8 | number)
}

pub(super) fn forget_steps(
    configurations: &mut HashMap<MapData, StepKey, StepConfiguration>,
    steps: &BTreeMap<String, u32>,
    pid: u32,
) {
    for &step in steps.values() {
        // Most processes have none.
        let _ = configurations.remove(&StepKey { pid, step });
    }
}
