//! Publishes a process context and updates it continuously; the first argument limits the updates per
//! second (0: no limit). Every payload carries its own checksum.

use std::io::Write;
use std::time::{Duration, Instant};

use otelctx::ProcessContext;
use otelctx_integration::checksum;

fn context(number: i64) -> ProcessContext {
    // Lengths differ from one update to the next, so that a torn payload shows.
    let filler = "x".repeat(number as usize * 37 % 500);
    ProcessContext::new()
        .with_service_name("updating")
        .with_attribute("number", number)
        .with_attribute("checksum", checksum(number, &filler))
        .with_attribute("filler", filler)
}

fn main() {
    let rate: u32 = std::env::args()
        .nth(1)
        .and_then(|rate| rate.parse().ok())
        .unwrap_or(0);
    let mut published = context(0)
        .publish()
        .expect("nothing else is published here");
    println!("ready");
    std::io::stdout().flush().expect("standard output is open");
    let start = Instant::now();
    for number in 1.. {
        published
            .replace(context(number))
            .expect("an update needs nothing that can fail");
        if rate > 0 {
            let due = start + Duration::from_secs(1) * number as u32 / rate;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }
}
