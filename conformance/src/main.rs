//! `cargo run -p otelctx-conformance -- generate` writes `vectors/` anew.

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::args().skip(1).ne(["generate"]) {
        eprintln!("usage: otelctx-conformance generate");
        return ExitCode::from(2);
    }
    for (name, content) in otelctx_conformance::files() {
        let path = otelctx_conformance::directory().join(name);
        if let Err(error) = std::fs::write(&path, content) {
            eprintln!("{} could not be written: {error}", path.display());
            return ExitCode::FAILURE;
        }
        println!("{}", path.display());
    }
    ExitCode::SUCCESS
}
