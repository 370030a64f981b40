//! The closing lines of `record`: what was recorded, and what is missing.

use std::collections::HashSet;

use otelctx_profile::sample::{
    Counts, Found, Frame, FrameKind, ProcessId, ReadStep, Sample, StackEnd,
};
use otelctx_profile::{Clock, DistinctCount, Kind, Profile};
use otelctx_sampler::{IncompleteStacks, IncompleteSteps};
use serde::Serialize;

use super::gil::GilSamples;
use super::keep::Report;
use super::output::Written;
use super::send::Delivery;
use super::waits::{Waits, WaitsJson};
use crate::command::attribute_filter::DroppedAttributes;
use crate::command::node_contexts::{NodeContexts, has_route};
use crate::command::selection::GivenOption;
use crate::command::without_symbols::{FileJson, WithoutSymbols};
use crate::output::counts::{CountsJson, incomplete_stacks, share};
use crate::output::terminal::escape;
use crate::output::text::{count, grouped};

/// Maximum number of modules that are named in the text.
const MAX_PLACES: usize = 3;

/// Smallest share of the samples, in percent, for which there is a hint about a runtime.
const HINT_SHARE: u64 = 10;

/// Runtimes, the name of their code here, and what announces its functions' names for perf.
const UNNAMED: [(FrameKind, &str, &str); 5] = [
    (FrameKind::V8JS, "JavaScript", "V8's --perf-basic-prof"),
    (
        FrameKind::JVM,
        "Java",
        "jcmd PID Compiler.perfmap before the recording",
    ),
    (FrameKind::BEAM, "Erlang", "erl +JPperf true"),
    (FrameKind::RUBY, "Ruby", "--yjit-perf of Ruby 3.3"),
    (FrameKind::PHP, "PHP", "opcache.jit_debug=16"),
];

#[derive(Default)]
pub(super) struct Summary {
    /// Samples of threads that ran; likewise all other numbers of samples.
    samples: usize,
    /// The waits, if they were asked for.
    pub(super) waits: Option<Waits>,
    attached: usize,
    gil: GilSamples,
    /// Number of samples that the selection has left out.
    not_selected: usize,
    /// The selection: options and their values.
    filter: Vec<GivenOption>,
    dropped_attributes: DroppedAttributes,
    node_contexts: NodeContexts,
    /// Samples whose innermost function has no name, by its runtime.
    unnamed: [usize; UNNAMED.len()],
    /// Processes by ID, start time and program.
    processes: DistinctCount,
    pub(super) without_symbols: WithoutSymbols,
    duration_ns: u64,
    period_ns: u64,
    /// `ebpf` or `ptrace`.
    method: &'static str,
    /// Counters of all samples, including those dropped by a filter.
    counts: Counts,
    /// The ends of incomplete stacks, most samples first.
    incomplete_stacks: Vec<IncompleteStacks>,
    /// The reasons why samples lack the parts of runtimes, most samples first.
    incomplete_steps: Vec<IncompleteSteps>,
}

/// What was removed from a part of a recording.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Removed {
    /// The states of its samples before `--gil` removed any.
    pub(super) gil: GilSamples,
    /// The number of samples that the selection has left out, and that of samples of waits.
    pub(super) not_selected: usize,
    pub(super) not_selected_waits: usize,
    /// The attributes that were left out.
    pub(super) attributes: DroppedAttributes,
}

impl Summary {
    pub(super) fn new(
        method: &'static str,
        filter: Vec<GivenOption>,
        incomplete_stacks: Vec<IncompleteStacks>,
        incomplete_steps: Vec<IncompleteSteps>,
    ) -> Self {
        Self {
            method,
            filter,
            incomplete_stacks,
            incomplete_steps,
            ..Self::default()
        }
    }

    /// Adds a part of the recording, which took the time of `clock`, and what was removed from it.
    pub(super) fn add(&mut self, part: &Profile, clock: Clock, removed: Removed) {
        self.gil += removed.gil;
        self.not_selected += removed.not_selected;
        self.dropped_attributes.add(removed.attributes);
        let all = || part.groups().flat_map(|it| it.samples);
        let on_cpu = part.groups().filter(|it| it.kind == Kind::OnCpu);
        let catalog = part.catalog();
        for sample in on_cpu.flat_map(|it| it.samples) {
            self.samples += 1;
            let context = match sample.found {
                Found::Attached(id) => Some(has_route(&catalog.context_facts(id).attributes)),
                _ => None,
            };
            self.attached += usize::from(context.is_some());
            if context.is_some() || sample.found == Found::Detached {
                let contexts = &mut self.node_contexts;
                contexts.add(catalog, sample.thread, context, 1);
            }
            let innermost = catalog.frames(sample.user_stack).next();
            if let Some(Frame::Named(frame)) = innermost
                && frame.is_unnamed()
                && let Some(runtime) = UNNAMED.iter().position(|it| it.0 == frame.kind)
            {
                self.unnamed[runtime] += 1;
            }
        }
        let process = |it: &Sample| catalog.thread_facts(it.thread).process;
        let processes: HashSet<ProcessId> = all().map(process).collect();
        for id in processes {
            let facts = catalog.process(id);
            // The program distinguishes a process from itself before an exec.
            let process = (facts.pid, facts.start_ticks, &facts.executable);
            self.processes.add(process);
        }
        if let Some(waits) = &mut self.waits {
            waits.add(part);
            waits.not_selected += removed.not_selected_waits;
        }
        self.duration_ns += clock.duration();
        self.period_ns = part.period().get();
        self.counts += *part.counts();
    }

    /// Returns the number of all samples, those of waits included.
    pub(super) fn kept(&self) -> usize {
        self.samples + self.waits.map_or(0, |waits| waits.samples)
    }

    /// Returns the time that the samples stand for, in nanoseconds.
    fn running_ns(&self) -> u64 {
        (self.samples as u64).saturating_mul(self.period_ns)
    }

    /// Formats what was sampled, of how many processes, and for how long.
    fn head(&self) -> String {
        let processes = format!(
            "{}{} in {:.1} s",
            if self.processes.has_more() {
                "more than "
            } else {
                ""
            },
            count(self.processes.get(), "process", "processes"),
            self.duration_ns as f64 / 1e9,
        );
        if self.waits.is_some_and(|waits| !waits.samples_cpu) {
            return format!("waits of {processes}\n");
        }
        format!(
            "{} of {processes}: {} with a trace context, {} lost\n",
            count(self.samples, "sample", "samples"),
            grouped(self.attached),
            grouped(self.counts.lost as usize),
        )
    }

    /// Returns one line, and others if anything is missing.
    pub(super) fn text(&self) -> String {
        let mut text = self.head();
        if let Some(waits) = &self.waits {
            text += &format!("  {}\n", waits.line(self.running_ns()));
        }
        if let Some(line) = self.gil.line() {
            text += &format!("  {line}\n");
        }
        if self.gil.all() > self.samples as u64 {
            let dropped = self.gil.all() - self.samples as u64;
            text += &format!(
                "  dropped by --gil: {}, {} of them of other threads\n",
                count(dropped as usize, "sample", "samples"),
                grouped(self.gil.none as usize),
            );
        }
        let mut counted = String::new();
        let mut missing = Missing(Vec::new());
        missing.add_contexts(&self.counts);
        missing.add_names_and_stacks(&self.counts);
        if !missing.0.is_empty() {
            counted += &format!("  missing: {}\n", missing.0.join(", "));
        }
        counted += &self.steps();
        counted += &self.stacks();
        text += &self.left_out(!counted.is_empty());
        if let Some(line) = self.dropped_attributes.line() {
            text += &format!("  {line}\n");
        }
        text + &counted + &self.hints()
    }

    /// Formats a line about the samples that the selection has left out, if it has. Lines below may
    /// include those of threads that ran.
    fn left_out(&self, is_included: bool) -> String {
        let waits = self.waits.map_or(0, |waits| waits.not_selected);
        let mut parts = Vec::new();
        if self.not_selected > 0 {
            let samples = count(self.not_selected, "sample", "samples");
            let included = if is_included {
                " (included in the lines below)"
            } else {
                ""
            };
            parts.push(format!("{samples}{included}"));
        }
        if waits > 0 {
            parts.push(count(waits, "sample of a wait", "samples of waits"));
        }
        match parts.is_empty() {
            true => String::new(),
            false => format!("  not selected: {}\n", parts.join(", ")),
        }
    }

    /// Formats lines about what runtimes need for whole stacks and names.
    fn hints(&self) -> String {
        let mut text = String::new();
        let places = self.incomplete_stacks.iter();
        // HotSpot's stacks need no frame pointers: some could not be walked by its own data in time.
        let is_other = |end| !matches!(end, StackEnd::TablesNotReady | StackEnd::GeneratedCode);
        let java = places
            .filter(|it| it.module == "[Java]" && it.end != StackEnd::Limit && is_other(it.end));
        let java: u64 = java.map(|it| it.samples).sum();
        if java > 0 && 100 * java >= HINT_SHARE * self.counts.all_stacks() {
            text += "  Java: run it with -XX:+PreserveFramePointer for whole stacks\n";
        }
        let hint = self.node_contexts.hint();
        if let Some(hint) = hint.filter(|_| self.dropped_attributes.samples == 0) {
            text += &format!("  {hint}\n");
        }
        let mut unnamed = Vec::new();
        for (number, (_, name, remedy)) in self.unnamed.into_iter().zip(UNNAMED) {
            let share = 100.0 * number as f64 / self.samples.max(1) as f64;
            if share >= HINT_SHARE as f64 {
                unnamed.push(format!("{share:.1} % in {name} ({remedy} names them)"));
            }
        }
        if !unnamed.is_empty() {
            text += &format!(
                "  functions without names: {}; see \"Function names\" in docs/profiles.md\n",
                unnamed.join(", ")
            );
        }
        if let Some(line) = self.without_symbols.line(self.samples) {
            text += &format!("  {line}\n");
        }
        text
    }

    /// Formats lines about the most frequent reasons why samples lack what runtimes add.
    fn steps(&self) -> String {
        let line = |step: &IncompleteSteps| {
            let samples = count(step.samples as usize, "sample", "samples");
            let (runtime, reason) = (step.runtime, escape(&step.reason));
            format!("  {samples} without the part of {runtime}: {reason}\n")
        };
        let most = self.incomplete_steps.iter().take(MAX_PLACES);
        most.map(line).collect()
    }

    /// Formats a line about incomplete stacks, if there are any: where most of them ended, and why.
    fn stacks(&self) -> String {
        let all = self.counts.all_stacks();
        let Some(total) = incomplete_stacks(&self.counts) else {
            return String::new();
        };
        let is_counted = |it: &&IncompleteStacks| it.end != StackEnd::Limit;
        let places = self.incomplete_stacks.iter().filter(is_counted);
        let places = places.take(MAX_PLACES).map(|place| {
            let module = match place.module.as_str() {
                "" => "unknown code",
                module => module,
            };
            let (share, module) = (share(place.samples, all), escape(module));
            format!("{share} in {module} ({})", place.end)
        });
        let places = places.collect::<Vec<_>>().join(", ");
        format!("  {total} of stacks incomplete: {places}\n")
    }

    pub(super) fn json<'s>(
        &'s self,
        files: &'s [Written],
        sent: Option<&'s Delivery>,
        kept: Option<&'s Report>,
    ) -> impl Serialize + 's {
        let place = |place: &'s IncompleteStacks| PlaceJson {
            module: &place.module,
            reason: place.end.name(),
            samples: place.samples,
        };
        let step = |step: &'s IncompleteSteps| StepJson {
            runtime: step.runtime,
            reason: &step.reason,
            samples: step.samples,
        };
        SummaryJson {
            samples: self.samples,
            filter: &self.filter,
            not_selected: self.not_selected,
            with_context: self.attached,
            gil: self.gil,
            processes: self.processes.get(),
            duration_ns: self.duration_ns,
            period_ns: self.period_ns,
            waits: self.waits.map(|waits| waits.json(self.running_ns())),
            method: self.method,
            dropped_attributes: self.dropped_attributes,
            counts: self.counts,
            incomplete_stacks: self.incomplete_stacks.iter().map(place).collect(),
            incomplete_steps: self.incomplete_steps.iter().map(step).collect(),
            without_symbols: self.without_symbols.json(),
            files,
            sent,
            kept,
        }
    }
}

/// Descriptions of the counters that are not zero, except those of complete and of lost samples.
struct Missing(Vec<String>);

impl Missing {
    fn add(&mut self, number: u64, one: &str, many: &str) {
        if number > 0 {
            self.0.push(count(number as usize, one, many));
        }
    }

    fn add_contexts(&mut self, counts: &Counts) {
        let unreadable = counts.unreadable.iter().zip(ReadStep::ALL);
        let steps = unreadable.filter(|(number, _)| **number > 0);
        let steps = steps.map(|(number, step)| format!("{step}: {}", grouped(*number as usize)));
        let steps = steps.collect::<Vec<_>>().join(", ");
        self.add(
            counts.unreadable_samples(),
            &format!("unreadable context ({steps})"),
            &format!("unreadable contexts ({steps})"),
        );
        self.add(
            counts.not_traceable,
            "skipped sample of a process that cannot be traced",
            "skipped samples of processes that cannot be traced",
        );
        self.add(
            counts.outside_namespace,
            "skipped sample of a process outside of this PID namespace",
            "skipped samples of processes outside of this PID namespace",
        );
        self.add(counts.invalid, "invalid record", "invalid records");
        self.add(
            counts.truncated_records,
            "truncated record",
            "truncated records",
        );
        self.add(
            counts.unknown_keys,
            "skipped attribute with an unknown key",
            "skipped attributes with an unknown key",
        );
        self.add(
            counts.contested_keys,
            "attribute without a name (its process has publishers that disagree on it)",
            "attributes without a name (their processes have publishers that disagree on it)",
        );
        self.add(
            counts.not_utf8,
            "skipped attribute that is not UTF-8",
            "skipped attributes that are not UTF-8",
        );
        self.add(
            counts.dropped_processes,
            "dropped process beyond 16,384",
            "dropped processes beyond 16,384",
        );
    }

    fn add_names_and_stacks(&mut self, counts: &Counts) {
        self.add(
            counts.lost_mappings,
            "lost report of a mapping",
            "lost reports of mappings",
        );
        self.add(
            counts.dropped_names,
            "dropped name of a generated function",
            "dropped names of generated functions",
        );
        self.add(
            counts.damaged_jit_dumps,
            "damaged jitdump file",
            "damaged jitdump files",
        );
        self.add(
            counts.unread_name_files,
            "unread rest of a file with names of generated functions",
            "unread rests of files with names of generated functions",
        );
        self.add(
            counts.stale_name_files,
            "file with names of an earlier process's functions",
            "files with names of earlier processes' functions",
        );
        self.add(
            counts.dropped_files,
            "dropped file beyond 512",
            "dropped files beyond 512",
        );
        self.add(
            counts.truncated_stacks,
            "truncated stack",
            "truncated stacks",
        );
        self.add(
            counts.truncated_runtime_stacks,
            "truncated stack of a runtime",
            "truncated stacks of a runtime",
        );
        self.add(
            counts.unnamed_functions,
            "frame without its function's name",
            "frames without their functions' names",
        );
        self.add(
            counts.missing_stacks,
            "sample without its stack",
            "samples without their stacks",
        );
        self.add(
            counts.incomplete_steps,
            "sample without a runtime's part",
            "samples without a runtime's part",
        );
        self.add(
            counts.unresolved_threads,
            "sample of a thread without a known state yet",
            "samples of threads without a known state yet",
        );
        self.add(
            counts.context_conflicts,
            "sample whose native context and runtime's context differ",
            "samples whose native context and runtime's context differ",
        );
    }
}

#[derive(Serialize)]
struct SummaryJson<'s> {
    samples: usize,
    filter: &'s [GivenOption],
    not_selected: usize,
    with_context: usize,
    gil: GilSamples,
    processes: usize,
    duration_ns: u64,
    period_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    waits: Option<WaitsJson>,
    method: &'static str,
    dropped_attributes: DroppedAttributes,
    #[serde(with = "CountsJson")]
    counts: Counts,
    incomplete_stacks: Vec<PlaceJson<'s>>,
    incomplete_steps: Vec<StepJson<'s>>,
    without_symbols: Vec<FileJson<'s>>,
    files: &'s [Written],
    sent: Option<&'s Delivery>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<&'s Report>,
}

#[derive(Serialize)]
struct PlaceJson<'s> {
    module: &'s str,
    reason: &'static str,
    samples: u64,
}

#[derive(Serialize)]
struct StepJson<'s> {
    runtime: &'static str,
    reason: &'s str,
    samples: u64,
}

#[cfg(test)]
mod tests {
    use crate::command::filter::ROUTE;
    use std::num::NonZeroU64;

    use otelctx_profile::sample::format::record::DecodedContext;
    use otelctx_profile::sample::{
        Catalog, Event, GilState, NamedFrame, OffCpu, OffCpuState, ProcessFacts,
    };
    use otelctx_profile::{NoSymbols, Recording};

    use super::super::waits::Scans;
    use super::*;
    use crate::command::wall::{Wall, samples_on_cpu};

    fn summary(counts: Counts) -> Summary {
        let mut processes = DistinctCount::default();
        processes.add(7);
        Summary {
            samples: 1234,
            waits: None,
            attached: 1200,
            gil: GilSamples {
                none: 1234,
                ..GilSamples::default()
            },
            not_selected: 0,
            filter: Vec::new(),
            dropped_attributes: DroppedAttributes::default(),
            node_contexts: NodeContexts::default(),
            unnamed: [0; UNNAMED.len()],
            processes,
            duration_ns: 5_040_000_000,
            period_ns: 1_000_000,
            method: "ebpf",
            counts,
            incomplete_stacks: Vec::new(),
            incomplete_steps: Vec::new(),
            without_symbols: WithoutSymbols::default(),
        }
    }

    fn recording(catalog: Catalog, samples: Vec<Sample>) -> Recording {
        Recording {
            catalog,
            samples,
            clock: Clock {
                start: 0,
                end: 9,
                start_unix: 0,
            },
            period: NonZeroU64::MIN,
            counts: Counts::default(),
        }
    }

    #[test]
    fn what_is_missing_is_said_only_where_something_is() {
        let mut counts = Counts::default();
        (counts.attached, counts.detached, counts.not_published) = (1200, 30, 4);
        let first = "1,234 samples of 1 process in 5.0 s: 1,200 with a trace context";
        assert_eq!(summary(counts).text(), format!("{first}, 0 lost\n"));
        counts.lost = 7;
        assert_eq!(summary(counts).text(), format!("{first}, 7 lost\n"));
        (counts.invalid, counts.not_traceable) = (1, 10);
        counts.outside_namespace = 13;
        counts.unreadable[ReadStep::Variable as usize] = 1000;
        counts.unreadable[ReadStep::Record as usize] = 2;
        counts.truncated_records = 3;
        (counts.unknown_keys, counts.contested_keys) = (4, 47);
        counts.not_utf8 = 5;
        counts.truncated_stacks = 6;
        (counts.truncated_runtime_stacks, counts.unnamed_functions) = (15, 16);
        (counts.lost_mappings, counts.dropped_names) = (11, 12);
        (counts.damaged_jit_dumps, counts.unread_name_files) = (17, 18);
        (counts.stale_name_files, counts.dropped_processes) = (1, 2);
        counts.dropped_files = 19;
        counts.missing_stacks = 7;
        (counts.incomplete_steps, counts.unresolved_threads) = (8, 14);
        counts.context_conflicts = 9;
        let second = "  missing: 1,002 unreadable contexts (the variable could not be read: 1,000, \
            the record could not be read: 2), 10 skipped samples of processes that cannot be traced, \
            13 skipped samples of processes outside of this PID namespace, 1 invalid record, \
            3 truncated records, 4 skipped attributes with an unknown key, \
            47 attributes without a name (their processes have publishers that disagree on it), 5 skipped attributes that are not UTF-8, \
            2 dropped processes beyond 16,384, 11 lost reports of mappings, 12 dropped names of generated functions, 17 damaged jitdump files, \
            18 unread rests of files with names of generated functions, 1 file with names of an earlier process's functions, \
            19 dropped files beyond 512, \
            6 truncated stacks, 15 truncated stacks of a runtime, \
            16 frames without their functions' names, 7 samples without their stacks, 8 samples without a runtime's part, \
            14 samples of threads without a known state yet, 9 samples whose native context and runtime's context differ";
        assert_eq!(
            summary(counts).text(),
            format!("{first}, 7 lost\n{second}\n")
        );
        let mut filtered = summary(counts);
        filtered.not_selected = 1;
        let third = "  not selected: 1 sample (included in the lines below)";
        assert_eq!(
            filtered.text(),
            format!("{first}, 7 lost\n{third}\n{second}\n")
        );
    }

    #[test]
    fn incomplete_stacks_are_a_share_with_the_modules_that_they_end_in() {
        let mut counts = Counts::default();
        counts.complete_stacks = 9799;
        counts.incomplete_stacks = [0, 0, 0, 180, 0, 0, 20, 1, 0];
        let mut summary = summary(counts);
        let first = summary.text().lines().count();
        summary.incomplete_stacks = vec![
            IncompleteStacks::new("libfoo.so", StackEnd::NoTables, 180),
            // It is counted as truncated.
            IncompleteStacks::new("bar", StackEnd::Limit, 50),
            IncompleteStacks::new("ba\u{1b}r", StackEnd::Unreadable, 20),
            IncompleteStacks::new("", StackEnd::NotExecutable, 1),
            IncompleteStacks::new("fourth", StackEnd::BadTables, 1),
        ];
        let text = summary.text();
        assert_eq!(
            text.lines().nth(first - 1),
            Some(
                "  2.0 % of stacks incomplete: 1.8 % in libfoo.so (no unwind tables), \
                 0.2 % in ba\\u{1b}r (unreadable memory), \
                 <0.1 % in unknown code (return address is not code)"
            )
        );
        summary.counts.incomplete_stacks = [0; 9];
        assert_eq!(summary.text().lines().count(), first - 1);
    }

    #[test]
    fn runtimes_without_whole_stacks_or_names_have_a_hint() {
        let mut counts = Counts::default();
        counts.complete_stacks = 900;
        counts.incomplete_stacks = [0, 0, 0, 100, 0, 0, 0, 0, 0];
        let hints = |java, unnamed| {
            let mut summary = summary(counts);
            summary.unnamed = unnamed;
            let place =
                |module, samples| IncompleteStacks::new(module, StackEnd::NoTables, samples);
            summary.incomplete_stacks = vec![place("[Java]", java), place("[anon]", 100 - java)];
            assert!(summary.text().ends_with(&summary.hints()));
            summary.hints()
        };
        let frame_pointers = "  Java: run it with -XX:+PreserveFramePointer for whole stacks\n";
        assert_eq!(hints(100, [0; 5]), frame_pointers);
        assert_eq!(hints(99, [123; 5]), "");
        assert_eq!(
            hints(0, [617, 123, 0, 0, 0]),
            "  functions without names: 50.0 % in JavaScript (V8's --perf-basic-prof names them); \
             see \"Function names\" in docs/profiles.md\n"
        );
        assert_eq!(
            hints(0, [617, 124, 124, 0, 0]),
            "  functions without names: 50.0 % in JavaScript (V8's --perf-basic-prof names them), \
             10.0 % in Java (jcmd PID Compiler.perfmap before the recording names them), 10.0 % in Erlang (erl +JPperf true names them); \
             see \"Function names\" in docs/profiles.md\n"
        );
        assert_eq!(
            hints(0, [0, 0, 0, 617, 124]),
            "  functions without names: 50.0 % in Ruby (--yjit-perf of Ruby 3.3 names them), \
             10.0 % in PHP (opcache.jit_debug=16 names them); \
             see \"Function names\" in docs/profiles.md\n"
        );
    }

    #[test]
    fn a_function_is_unnamed_if_the_innermost_frame_is() {
        let mut catalog = Catalog::new();
        let process = catalog.add_process(ProcessFacts::default());
        let thread = catalog.thread(process, 7, "node");
        let frame = |kind, function: &str| {
            let function = function.to_owned();
            Frame::from(NamedFrame {
                kind,
                function,
                ..NamedFrame::default()
            })
        };
        let [script, main] = ["[JavaScript in node]", "main"].map(|it| frame(FrameKind::V8JS, it));
        let stacks = [
            vec![script.clone(), main.clone()],
            vec![main, script],
            vec![frame(FrameKind::JVM, "[Java]")],
            vec![frame(FrameKind::BEAM, "[BEAM]")],
            vec![frame(FrameKind::RUBY, "[Ruby]")],
            vec![frame(FrameKind::PHP, "[PHP]")],
            vec![frame(FrameKind::CPYTHON, "[Python]")],
            vec![Frame::instruction(7)],
            vec![],
        ];
        let sample = |frames: &Vec<Frame>| Sample {
            time: 0,
            cpu: 0,
            thread,
            event: Event::OnCpu,
            found: Found::Detached,
            gil: None,
            user_stack: catalog.stack(frames),
            stack_end: None,
            kernel_stack: catalog.stack(&[]),
        };
        let samples = stacks.iter().map(sample).collect();
        let part = recording(catalog, samples);
        let mut summary = Summary::new("ebpf", Vec::new(), Vec::new(), Vec::new());
        let clock = part.clock;
        let part = Profile::new(part, &mut NoSymbols);
        summary.add(&part, clock, Removed::default());
        assert_eq!(summary.unnamed, [1; 5]);
    }

    #[test]
    fn contexts_of_node_without_any_route_and_none_at_all_have_a_hint() {
        const ATTACHED: Option<Option<&str>> = Some(None);
        let (no_route, no_context) = (Some("hook.mjs"), Some("OTEL_TRACES_EXPORTER=none"));
        for (language, routes, hint) in [
            ("nodejs", &[ATTACHED, None, ATTACHED][..], no_route),
            ("nodejs", &[ATTACHED, Some(Some("/cart"))], None),
            ("nodejs", &[None, None], no_context),
            ("nodejs", &[], None),
            ("python", &[ATTACHED], None),
            ("python", &[None], None),
        ] {
            let mut catalog = Catalog::new();
            let process = catalog.add_process(ProcessFacts {
                resource: vec![("telemetry.sdk.language".into(), language.into())],
                ..ProcessFacts::default()
            });
            let thread = catalog.thread(process, 7, "MainThread");
            let mut sample = |route: &Option<Option<&str>>| {
                let context = route.map(|route| {
                    let route = route.map(|it| (ROUTE.to_owned(), it.to_owned()));
                    let mut context = DecodedContext::default();
                    context.attributes = route.into_iter().collect();
                    catalog.context(&context)
                });
                Sample {
                    time: 0,
                    cpu: 0,
                    thread,
                    event: Event::OnCpu,
                    found: context.map_or(Found::Detached, Found::Attached),
                    gil: None,
                    user_stack: catalog.stack(&[]),
                    stack_end: None,
                    kernel_stack: catalog.stack(&[]),
                }
            };
            let samples = routes.iter().map(&mut sample).collect();
            let part = recording(catalog, samples);
            let mut summary = Summary::new("ebpf", Vec::new(), Vec::new(), Vec::new());
            let clock = part.clock;
            let part = Profile::new(part, &mut NoSymbols);
            summary.add(&part, clock, Removed::default());
            let text = summary.text();
            for known in [no_route, no_context].into_iter().flatten() {
                let has_it = text.contains(known);
                assert_eq!(has_it, hint == Some(known), "{language} {routes:?}: {text}");
            }
        }
    }

    /// They were counted as samples on a CPU, with a context and of the interpreter's lock.
    #[test]
    fn no_sample_of_a_wait_counts_as_one_on_a_cpu() {
        let mut catalog = Catalog::new();
        let process = catalog.add_process(ProcessFacts::default());
        let thread = catalog.thread(process, 7, "worker");
        let context = catalog.context(&DecodedContext::default());
        let frame = NamedFrame {
            kind: FrameKind::V8JS,
            function: "[JavaScript in node]".into(),
            ..NamedFrame::default()
        };
        let stack = catalog.stack(&[Frame::from(frame)]);
        let sample = |event| Sample {
            time: 0,
            cpu: 0,
            thread,
            event,
            found: Found::Attached(context),
            gil: Some(GilState::Held),
            user_stack: stack,
            stack_end: None,
            kernel_stack: stack,
        };
        let wait = Event::OffCpu(OffCpu {
            state: OffCpuState::Asleep,
            nanoseconds: 3_000_000_000,
            since: 0,
            reason: None,
        });
        let samples = vec![sample(Event::OnCpu), sample(wait), sample(wait)];
        let part = recording(catalog, samples);
        let mut summary = Summary::new("ebpf", Vec::new(), Vec::new(), Vec::new());
        let scans = Scans::of(Wall::every(49));
        summary.waits = scans.map(|scans| Waits::new(scans, true, &[]));
        let clock = part.clock;
        let part = Profile::new(part, &mut NoSymbols);
        let gil = GilSamples::of_part(&part, Kind::OnCpu);
        assert_eq!(gil.all(), 1);
        assert_eq!(GilSamples::of_part(&part, Kind::OffCpu).all(), 2);
        assert_eq!(samples_on_cpu(&part), 1);
        let removed = Removed {
            gil,
            not_selected_waits: 1,
            ..Removed::default()
        };
        summary.add(&part, clock, removed);
        assert_eq!((summary.samples, summary.attached), (1, 1));
        assert_eq!(summary.unnamed, [1, 0, 0, 0, 0]);
        assert_eq!(summary.kept(), 3);
        summary.period_ns = 10_000_000;
        let text = summary.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "1 sample of 1 process in 0.0 s: 1 with a trace context, 0 lost"
        );
        let times = "  time of threads: 0.0 s running, 0.0 s queued, 6.0 s waiting (6.0 s of it with a trace context); ";
        assert!(lines[1].starts_with(times), "{text}");
        assert!(
            lines[2].starts_with("  GIL: held in 100.0 % of 1 sample of"),
            "{text}"
        );
        let left_out = |summary: &Summary| {
            let text = summary.text();
            let line = text.lines().find(|it| it.starts_with("  not selected"));
            line.map(str::to_owned)
        };
        let one = "  not selected: 1 sample of a wait";
        assert_eq!(left_out(&summary).as_deref(), Some(one));
        summary.not_selected = 1;
        summary.counts.lost_mappings = 1;
        if let Some(waits) = &mut summary.waits {
            waits.not_selected = 1234;
        }
        let both = "  not selected: 1 sample (included in the lines below), 1,234 samples of waits";
        assert_eq!(left_out(&summary).as_deref(), Some(both));
        let json = serde_json::to_value(summary.json(&[], None, None)).unwrap();
        assert_eq!(json["samples"], 1);
        assert_eq!(json["not_selected"], 1);
        assert_eq!(json["waits"]["not_selected"], 1234);
        assert_eq!(json["waits"]["samples"], 2);
        assert_eq!(json["waits"]["running_ns"], 10_000_000);
        assert_eq!(json["waits"]["asleep_ns"], 6_000_000_000_u64);
        // Without samples on a CPU, the first line has no number of them.
        if let Some(waits) = &mut summary.waits {
            waits.samples_cpu = false;
        }
        assert!(
            summary
                .text()
                .starts_with("waits of 1 process in 0.0 s\n  time of threads: 0.0 s queued, ")
        );
    }

    #[test]
    fn the_gil_has_a_line_where_there_is_one() {
        let mut summary = summary(Counts::default());
        summary.gil = GilSamples {
            held: 743,
            waiting: 240,
            released: 217,
            none: 34,
        };
        let line = "  GIL: held in 61.9 % of 1,200 samples of interpreter threads on a CPU, \
            waited for in 20.0 %, released in 18.1 %\n";
        let text = summary.text();
        assert_eq!(text.split_once('\n').unwrap().1, line);
        // The others are dropped, and accounted for.
        summary.samples = 743;
        let dropped = "  dropped by --gil: 491 samples, 34 of them of other threads\n";
        let text = summary.text();
        assert_eq!(text.split_once('\n').unwrap().1, format!("{line}{dropped}"));
    }

    #[test]
    fn json_has_every_counter() {
        let mut counts = Counts::default();
        (counts.attached, counts.detached, counts.not_published) = (1, 2, 3);
        (counts.invalid, counts.lost) = (4, 5);
        for (index, counter) in counts.unreadable.iter_mut().enumerate() {
            *counter = 10 + index as u64;
        }
        (counts.truncated_records, counts.unknown_keys) = (20, 21);
        (counts.not_utf8, counts.truncated_stacks) = (22, 23);
        (counts.truncated_runtime_stacks, counts.unnamed_functions) = (38, 39);
        (counts.missing_stacks, counts.incomplete_steps) = (24, 25);
        (counts.context_conflicts, counts.not_traceable) = (26, 27);
        (counts.lost_mappings, counts.dropped_names) = (28, 34);
        (counts.damaged_jit_dumps, counts.unread_name_files) = (40, 41);
        (counts.stale_name_files, counts.dropped_processes) = (43, 44);
        (counts.outside_namespace, counts.unresolved_threads) = (35, 37);
        (counts.complete_stacks, counts.incomplete_stacks) =
            (32, [36, 42, 45, 29, 34, 30, 31, 33, 48]);
        (counts.dropped_files, counts.contested_keys) = (46, 47);
        let mut summary = summary(counts);
        summary.gil = GilSamples {
            held: 1000,
            waiting: 200,
            released: 30,
            none: 4,
        };
        let place = IncompleteStacks::new("libfoo.so", StackEnd::NoTables, 33);
        summary.incomplete_stacks.push(place);
        let step = IncompleteSteps::new("nodejs", "not supported", 25);
        summary.incomplete_steps.push(step);
        summary.filter = vec![GivenOption::new("trace", "4b")];
        summary.not_selected = 5;
        let json = serde_json::to_value(summary.json(&[], None, None)).unwrap();
        // The macro does not take all at once.
        let incomplete_stacks = serde_json::json!({
            "frame_pointers": 36, "too_many_mappings": 42, "too_many_tables": 45, "no_tables": 29,
            "tables_not_ready": 34, "bad_tables": 30, "unreadable": 31,
            "not_executable": 33, "generated_code": 48,
        });
        let expected = serde_json::json!({
            "samples": 1234, "filter": [{"option": "trace", "value": "4b"}], "not_selected": 5, "with_context": 1200,
            "gil": {"held": 1000, "waiting": 200, "released": 30, "none": 4}, "processes": 1,
            "duration_ns": 5_040_000_000_u64, "period_ns": 1_000_000, "method": "ebpf",
            "dropped_attributes": {"samples": 0, "resources": 0},
            "counts": {
                "attached": 1, "detached": 2, "not_published": 3, "invalid": 4,
                "unreadable": {
                    "resolve": 10, "access": 11, "thread": 12, "memory": 13, "variable": 14,
                    "record": 15, "verify": 16, "process": 17,
                },
                "lost": 5, "not_traceable": 27, "outside_namespace": 35, "truncated_records": 20,
                "unknown_keys": 21, "contested_keys": 47, "not_utf8": 22, "lost_mappings": 28, "dropped_names": 34,
                "damaged_jit_dumps": 40, "unread_name_files": 41, "stale_name_files": 43, "dropped_processes": 44,
                "dropped_files": 46,
                "complete_stacks": 32,
                "incomplete_stacks": incomplete_stacks,
                "truncated_stacks": 23, "truncated_runtime_stacks": 38, "unnamed_functions": 39,
                "missing_stacks": 24, "incomplete_steps": 25,
                "unresolved_threads": 37, "context_conflicts": 26,
            },
            "incomplete_stacks": [{"module": "libfoo.so", "reason": "no_tables", "samples": 33}],
            "incomplete_steps": [{"runtime": "nodejs", "reason": "not supported", "samples": 25}],
            "without_symbols": [],
            "files": [], "sent": null,
        });
        assert_eq!(json, expected);
    }
}
