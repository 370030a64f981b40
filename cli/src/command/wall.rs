//! The options for threads that wait.

use super::help;

/// Looks in a second unless another number is given; fewer where there are many threads.
const FREQUENCY: &str = "49";

/// The options for threads that wait.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
#[command(next_help_heading = help::SAMPLING)]
pub(super) struct Wall {
    /// Also record where threads wait, and how long they are ready without a CPU, by looking at them HZ times in a second
    /// without stopping them; fewer times where there are more than some 200 threads [default: 49]
    #[arg(long, value_name = "HZ", num_args = 0..=1, require_equals = true, default_missing_value = FREQUENCY,
        value_parser = clap::value_parser!(u32).range(1..=1_000))]
    wall: Option<u32>,
    /// Record waits alone, as --wall does
    #[arg(long)]
    wall_only: bool,
}

impl Wall {
    /// Returns how often in a second to look at threads that wait, if they are asked for.
    pub(super) fn frequency(self) -> Option<u32> {
        let default = || FREQUENCY.parse().ok();
        self.wall.or_else(|| self.wall_only.then(default).flatten())
    }

    /// Returns true if threads that run are sampled, too.
    pub(super) fn samples_cpu(self) -> bool {
        !self.wall_only
    }
}
