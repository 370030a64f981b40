//! Samples one process for a few seconds: `cargo run --release -p otelctx-sampler --example record
//! PID [SECONDS]`. Prints one line a sample: thread, trace, route, depth of its stacks.

use std::time::{Duration, Instant};

use otelctx_sampler::sample::{Catalog, Found};
use otelctx_sampler::{INTERVAL, Options, Sampler, Targets};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "record PID|all [SECONDS [HZ]]";
    let targets = match arguments.next().ok_or(usage)?.as_str() {
        "all" => Targets::All,
        pid => Targets::Processes(vec![pid.parse()?]),
    };
    let seconds = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let mut options = Options::new(targets);
    if let Some(frequency) = arguments.next() {
        options.frequency = frequency.parse()?;
    }
    let start = Instant::now();
    let mut sampler = Sampler::start(&options)?;
    println!("{} after {:?}", sampler.method(), start.elapsed());
    let (mut catalog, mut samples) = (Catalog::new(), Vec::new());
    let mut first = None;
    while sampler.has_targets() && start.elapsed() < Duration::from_secs(seconds) {
        std::thread::sleep(INTERVAL);
        sampler.drain(&mut catalog, &mut |sample| {
            if matches!(sample.found, Found::Attached(_)) {
                first.get_or_insert_with(|| start.elapsed());
            }
            samples.push(sample);
        });
    }
    if let Some((time, runs)) = sampler.kernel_time() {
        println!(
            "{runs} runs of the program, {} ns each",
            time.as_nanos() / u128::from(runs)
        );
    }
    let counts = sampler
        .stop(&mut catalog, &mut |sample| samples.push(sample))
        .counts;
    for sample in &samples {
        let thread = catalog.thread_facts(sample.thread);
        let depth = catalog.frame_ids(sample.user_stack).len();
        let kernel = catalog.frame_ids(sample.kernel_stack).len();
        print!("{} {} {}+{}", thread.tid, thread.name, depth, kernel);
        match sample.found {
            Found::Attached(id) => {
                let context = catalog.context_facts(id);
                let attributes = context.attributes.iter();
                let route = attributes.clone().find(|(key, _)| key == "http.route");
                let route = route.or(attributes.clone().next());
                let route = route.map_or("-", |(_, value)| value);
                println!(" {} {route}", context.trace_id);
            }
            other => println!(" {other:?}"),
        }
    }
    println!("{counts:?}\nfirst context after {first:?}");
    for (_, process) in catalog.processes() {
        println!(
            "{} {} {} mappings, {} attributes, published {}",
            process.pid,
            process.comm,
            process.mappings.len(),
            process.resource.len(),
            process.published
        );
    }
    Ok(())
}
