//! Writes a recording of a million samples, for what is measured by scripts:
//!
//!     cargo run --release -p otelctx-bench --example recording -- FILE PROCESSES THREADS

#[path = "../src/recording.rs"]
mod recording;

use otelctx_profile::{NoSymbols, Options, Profile};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, processes, threads] = &arguments[..] else {
        panic!("give a file, the number of processes, and that of each one's threads");
    };
    let number = |text: &str| text.parse().expect("not a number");
    let recording = recording::recording(number(processes), number(threads), recording::TRACES);
    let profile = Profile::new(recording, &mut NoSymbols);
    let written = profile.write_file(file.as_ref(), &Options::default());
    written.expect("cannot write the file");
}
