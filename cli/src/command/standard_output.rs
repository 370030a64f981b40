//! `-o -`: a file of any format on standard output.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use otelctx_profile::{Format, Options, Profile};

use crate::command::help;
use crate::error::Error;
use crate::output::terminal;

/// The format of standard output.
#[derive(Debug, clap::Args)]
pub(super) struct StandardOutput {
    /// Format for -o -, which writes to standard output; binary ones are not written to a terminal
    #[arg(help_heading = help::OUTPUT, long, value_name = "FORMAT", value_parser = names())]
    format: Option<Format>,
}

fn names() -> impl TypedValueParser<Value = Format> {
    let names = PossibleValuesParser::new(Format::ALL.map(Format::name));
    names.try_map(|name| Format::from_name(&name).ok_or("no format has this name"))
}

/// Returns true if a path stands for standard output.
pub(super) fn is_meant(path: &Path) -> bool {
    path.as_os_str() == "-"
}

impl StandardOutput {
    /// Returns the format to write to standard output, if `outputs` has it.
    pub(super) fn chosen(&self, outputs: &[PathBuf]) -> Result<Option<Format>, Error> {
        let number = outputs.iter().filter(|path| is_meant(path)).count();
        match (number, self.format) {
            (0, None) => Ok(None),
            (0, Some(_)) => Err(Error::FormatOfFile),
            (1, None) => Err(Error::NoFormat),
            (1, Some(format)) if format.is_binary() && io::stdout().is_terminal() => {
                Err(Error::BinaryToTerminal(format.name()))
            }
            (1, Some(format)) => Ok(Some(format)),
            _ => Err(Error::OutputTwice("-".into())),
        }
    }
}

/// OTLP messages of a recording's parts. A single one is written as it is, several each after its
/// size, as the OpenTelemetry Collector's file exporter does.
#[derive(Default)]
pub(super) struct Messages {
    /// The last message, which is not written before it is known if another one follows.
    last: Vec<u8>,
    is_followed: bool,
}

impl Messages {
    pub(super) fn add(&mut self, part: &Profile, options: &Options) -> Result<(), Error> {
        if !self.last.is_empty() {
            self.is_followed = true;
            self.write()?;
        }
        self.last.clear();
        part.write(Format::Otlp, options, &mut self.last)
            .map_err(Error::Output)
    }

    /// Writes the last message.
    pub(super) fn write(&self) -> Result<(), Error> {
        let size = u32::try_from(self.last.len());
        let size = size.map_err(|_| Error::Output(io::ErrorKind::FileTooLarge.into()))?;
        let size = if self.is_followed {
            &size.to_be_bytes()[..]
        } else {
            &[]
        };
        terminal::write(|stdout| {
            stdout.write_all(size)?;
            stdout.write_all(&self.last)
        })
        .map_err(Error::Output)
    }
}
