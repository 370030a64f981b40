//! stub
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {}
pub(crate) fn run(_: &Arguments) -> Result<crate::Status, crate::error::Error> {
    Ok(crate::Status::Done)
}
