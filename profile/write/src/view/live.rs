//! Samples that are in no recording: those of a live view.

use super::select::Selecting;
use super::sums::Sums;
use super::tables::{
    Context, Function, Group, Kind, Line, NONE, Process, Sink, Tables, Thread, add,
};
use crate::report::{LiveFrame, LiveSamples, Report, ReportOptions};

impl Report {
    /// Sums up samples of a live view, as [`Report::read`] does those of a recording. `period` is the
    /// time that each stands for, in nanoseconds. Samples of a stack that is not there have none.
    #[must_use]
    pub fn of_live(
        period: u64,
        stacks: &[Vec<LiveFrame>],
        samples: &[LiveSamples],
        options: &ReportOptions,
    ) -> Self {
        let mut tables = Tables::default();
        tables.period = period;
        let mut sums = Sums::new(options);
        let mut selecting = Selecting::new(&options.selection, &mut sums);
        // Only more than 4 billion entries of a table fail: such samples are not shown.
        let stacks: Result<Vec<_>, String> =
            stacks.iter().map(|it| stack(&mut tables, it)).collect();
        for sample in samples {
            let stack = stacks.as_ref().ok().and_then(|it| it.get(sample.stack));
            let stack = stack.copied().unwrap_or(NONE);
            // It is dropped if it does not fit.
            let _ = add_sample(&mut tables, &mut selecting, stack, sample, period);
        }
        sums.finish(&tables)
    }
}

fn stack(tables: &mut Tables, frames: &[LiveFrame]) -> Result<u32, String> {
    let locations = frames.iter().map(|frame| {
        let kind = tables.add_text(frame.kind)?;
        let function = Function {
            name: tables.add_text(&frame.name)?,
            system_name: NONE,
            file: tables.add_text(&frame.file)?,
            kind,
        };
        let function = tables.add_function(function, 0)?;
        let line = Line {
            function,
            line: frame.line,
            column: 0,
        };
        tables.complete(NONE, 0, kind, vec![line])
    });
    let locations: Vec<u32> = locations.collect::<Result<_, String>>()?;
    tables.add_stack(&locations)
}

fn add_sample(
    tables: &mut Tables,
    sink: &mut dyn Sink,
    stack: u32,
    sample: &LiveSamples,
    period: u64,
) -> Result<(), String> {
    let process = tables.add_process(&[], || Ok(Process::new(Vec::new())))?;
    let thread = tables.add_thread(Thread {
        process,
        tid: Some(sample.thread),
        name: NONE,
    })?;
    let trace = match sample.trace {
        Some(trace) => add(&mut tables.traces, trace)?,
        None => NONE,
    };
    let context = Context {
        trace,
        span: [0; 8],
        attributes: NONE,
    };
    let context = add(&mut tables.contexts, context)?;
    let group = Group {
        kind: Kind::Running,
        thread,
        context,
        stack,
        wait: NONE,
        shown_stack: stack,
        whole_stack: stack,
        gil: None,
        cpu: 0,
        times: &[sample.time],
        values: &[sample.samples.saturating_mul(period)],
        counts: &[sample.samples],
        unit: 1,
        counts_samples: false,
    };
    sink.add(tables, &group);
    Ok(())
}
