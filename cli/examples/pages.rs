//! Writes the command's shell completions and man pages into a folder, for packages:
//! `cargo run -p otelctx-cli --example pages FOLDER`.

use std::fs;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args_os().nth(1).ok_or("usage: pages FOLDER")?;
    let folder = Path::new(&folder);
    fs::create_dir_all(folder)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut without_hidden(), "otelctx", folder)?;
    }
    // `help` would have a page for each subcommand again.
    let mut command = otelctx_cli::arguments().disable_help_subcommand(true);
    command.build();
    let shown = command.get_subcommands().filter(|it| !it.is_hide_set());
    for command in shown.chain([&command]) {
        let page = Man::new(command.clone()).source(format!("otelctx {VERSION}"));
        let mut text = Vec::new();
        page.render(&mut text)?;
        let text = with_examples(&String::from_utf8(text)?);
        fs::write(folder.join(page.get_filename()), text)?;
    }
    Ok(())
}

/// Returns the command without hidden subcommands, which `clap_complete` would offer.
fn without_hidden() -> Command {
    let all = otelctx_cli::arguments();
    let shown = all.get_subcommands().filter(|it| !it.is_hide_set());
    Command::new("otelctx")
        .version(VERSION)
        .args(all.get_arguments())
        .subcommands(shown)
}

/// Gives the text after the options the sections that it is about, without filling its lines.
fn with_examples(page: &str) -> String {
    let Some((page, extra)) = page.split_once(".SH EXTRA\n") else {
        return page.to_owned();
    };
    let (extra, version) = extra.split_once(".SH VERSION").unwrap_or((extra, ""));
    let (examples, status) = extra.split_once("\nExit status: ").unwrap_or((extra, ""));
    // The first line is the heading.
    let examples = examples.split_once('\n').map_or("", |(_, lines)| lines);
    let mut page = format!("{page}.SH EXAMPLES\n.nf\n{examples}\n.fi\n");
    if !status.is_empty() {
        page += &format!(".SH EXIT STATUS\n{status}");
    }
    if !version.is_empty() {
        page += &format!(".SH VERSION{version}");
    }
    page
}
