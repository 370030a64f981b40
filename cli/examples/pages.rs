//! Writes the command's shell completions and man pages into a folder, for packages:
//! `cargo run -p otelctx-cli --example pages FOLDER`.

use std::fs;

use clap_complete::Shell;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args_os().nth(1).ok_or("usage: pages FOLDER")?;
    fs::create_dir_all(&folder)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        let mut command = otelctx_cli::arguments();
        clap_complete::generate_to(shell, &mut command, "otelctx", &folder)?;
    }
    // `help` would have a page for each subcommand again.
    let command = otelctx_cli::arguments().disable_help_subcommand(true);
    clap_mangen::generate_to(command, &folder)?;
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        fs::write(path, text.replace(".SH EXTRA\n", ".SH EXAMPLES\n"))?;
    }
    Ok(())
}
