//! Writes the page of a recording that is made for measurements and pictures:
//! `synthetic PAGE [SAMPLES | shop | hostile]`.

#[path = "../tests/recordings/mod.rs"]
mod recordings;

use std::fs::File;
use std::io::{self, BufWriter};

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let path = arguments.first().map_or("synthetic.html", |path| path);
    let recording = match arguments.get(1).map(|kind| &kind[..]) {
        Some("shop") => recordings::shop::recording(),
        Some("hostile") => recordings::hostile::recording(),
        samples => {
            let samples = samples
                .and_then(|text| text.parse().ok())
                .unwrap_or(1_000_000);
            recordings::synthetic::recording(samples, (samples / 17).max(40), 2_000)
        }
    };
    let started = std::time::Instant::now();
    otelctx_page::write(&recording, &mut BufWriter::new(File::create(path)?))?;
    eprintln!("{path}: written in {:?}", started.elapsed());
    Ok(())
}
