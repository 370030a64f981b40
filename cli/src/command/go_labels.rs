//! `--go-labels`: which labels of goroutines are a trace and a span.

use std::sync::Arc;

use clap::Args;
use otelctx_go::{Go, LabelNames};

use super::help;
use crate::Setup;

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct GoLabels {
    /// Labels of goroutines that are a trace and a span ID, instead of those with usual names (docs/go.md):
    /// trace_id=NAME,span_id=NAME
    #[arg(help_heading = help::PROCESSES, long, value_name = "ID=NAME,…")]
    go_labels: Option<LabelNames>,
}

impl GoLabels {
    /// The runtimes with these names.
    pub(crate) fn of(&self, setup: &Setup) -> Setup {
        let mut setup = setup.clone();
        if let Some(names) = &self.go_labels {
            let runtime = Arc::new(Go::with_names(names.clone()));
            setup.runtimes = setup.runtimes.with(runtime);
        }
        setup
    }
}
