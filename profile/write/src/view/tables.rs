//! What samples of a recording refer to, stored once over all its messages and files.

use std::borrow::Cow;
use std::collections::HashMap;

use foldhash::fast::RandomState;
use indexmap::IndexSet;
use otelctx_sample::format::process_context::Value;
use otelctx_sample::{GilState, OffCpuState};

use crate::attributes::{CALL, REASON, RECORDED, STATE, UNKNOWN_SERVICE};
use crate::report::{Cost, LANGUAGES, Selection, TimeKind};
use crate::wait::{self, FRAME_KIND};
use crate::write::FrameRules;

/// An index into one of the tables.
pub(super) type Id = u32;

/// The [`Id`] of the empty text, of no context's trace, and of an empty stack.
pub(super) const NONE: Id = 0;

/// Nanoseconds that a sample stands for in other formats if its recording does not tell.
pub(super) const UNKNOWN_TIME: u64 = 1_000_000;

/// For each entry of a table, what stands for it elsewhere, once that is needed.
pub(super) type Known<T> = Vec<Option<T>>;

/// Returns the place of an entry.
pub(super) fn known<T: Copy>(known: &mut Known<T>, id: Id) -> &mut Option<T> {
    let index = id as usize;
    if known.len() <= index {
        known.resize(index + 1, None);
    }
    &mut known[index]
}

/// A set whose entries have the numbers of their order.
type Table<T> = IndexSet<T, RandomState>;

/// The kind of time that a sample stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Kind {
    /// On a CPU.
    Running,
    /// Ready to run, without a CPU.
    Queued,
    /// Off-CPU for another reason.
    Waiting,
}

impl From<Kind> for TimeKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Running => Self::Running,
            Kind::Queued => Self::Queued,
            Kind::Waiting => Self::Waiting,
        }
    }
}

/// What keeps a thread off the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Wait {
    pub(super) state: OffCpuState,
    pub(super) call: Id,
    pub(super) reason: Id,
}

impl Wait {
    /// Nothing is known: also that of samples on a CPU.
    pub(super) const UNKNOWN: Self = Self {
        state: OffCpuState::Unknown,
        call: NONE,
        reason: NONE,
    };

    pub(super) fn kind(self) -> Kind {
        match self.state {
            OffCpuState::Queued => Kind::Queued,
            _ => Kind::Waiting,
        }
    }
}

/// A function of a program. Those of the same name in different files are different.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Function {
    pub(super) name: Id,
    /// The name before it was demangled or shortened.
    pub(super) system_name: Id,
    pub(super) file: Id,
    /// The kind of its frames, such as `cpython`.
    pub(super) kind: Id,
}

/// A function at an address, and the line in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Line {
    pub(super) function: Id,
    /// From 1; 0 if unknown.
    pub(super) line: u32,
    /// From 1; 0 if unknown.
    pub(super) column: u32,
}

impl Line {
    /// Returns a function at an unknown line.
    pub(super) fn of(function: Id) -> Self {
        Self {
            function,
            line: 0,
            column: 0,
        }
    }
}

/// A part of memory that code was mapped to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(super) struct Mapping {
    pub(super) start: u64,
    pub(super) limit: u64,
    pub(super) offset: u64,
    pub(super) file: Id,
    /// Hexadecimal digits.
    pub(super) build_id: Id,
    /// Hexadecimal digits.
    pub(super) htlhash: Id,
}

/// A frame of a stack, with the functions that are inlined there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Location {
    pub(super) mapping: Id,
    pub(super) address: u64,
    /// Value of `profile.frame.type`.
    pub(super) kind: Id,
    /// Innermost first; one that stands for the file if no function is known.
    pub(super) lines: Box<[Line]>,
    /// The functions are known.
    pub(super) is_named: bool,
}

/// What a thread was working on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Context {
    /// [`NONE`] without a trace.
    pub(super) trace: Id,
    pub(super) span: [u8; 8],
    /// Index of its attributes.
    pub(super) attributes: Id,
}

/// A thread of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Thread {
    pub(super) process: Id,
    /// `None` if the recording does not tell.
    pub(super) tid: Option<i64>,
    pub(super) name: Id,
}

/// A process, or whatever a resource stands for.
#[derive(Clone, Debug, Default)]
pub(super) struct Process {
    pub(super) resource: Vec<(String, Value)>,
    pub(super) pid: Option<i64>,
    /// Name of its service; empty if there is none.
    service: String,
    /// The service's name comes from the environment: it was not published.
    pub(super) is_detected: bool,
    /// The name of its program, if it has no name of a service.
    pub(super) program: Option<String>,
    /// The name of its first thread, and the message that has it.
    pub(super) command: Option<(usize, Id)>,
}

/// Name of the resource attribute with the service.
const SERVICE: &str = crate::attributes::SERVICE_NAME;

impl Process {
    pub(super) fn new(resource: Vec<(String, Value)>) -> Self {
        let find = |key: &str| resource.iter().position(|(name, _)| name == key);
        let pid = find("process.pid").and_then(|at| match resource[at].1 {
            Value::Int(pid) => Some((at, pid)),
            _ => None,
        });
        let service = find(SERVICE).and_then(|at| match &resource[at].1 {
            Value::String(text) => Some((at, text.clone())),
            _ => None,
        });
        // The recorder adds the name after the process ID.
        let is_by_recorder =
            matches!((&service, pid), (Some((name, _)), Some((id, _))) if *name > id);
        let service = service.map(|(_, service)| service).unwrap_or_default();
        let unnamed = service.strip_prefix(UNKNOWN_SERVICE);
        let program = unnamed.and_then(|rest| rest.strip_prefix(':'));
        Self {
            pid: pid.map(|(_, pid)| pid),
            program: program.filter(|_| is_by_recorder).map(str::to_owned),
            is_detected: find(crate::attributes::DETECTED).is_some(),
            service,
            resource,
            command: None,
        }
    }

    /// Returns the service's name, in parentheses if it was not published; without one, the name of
    /// the command, or of the program.
    pub(super) fn service<'t>(&'t self, tables: &'t Tables) -> Cow<'t, str> {
        if let Some(program) = &self.program {
            let command = self.command.map(|(_, name)| tables.text(name));
            return command.unwrap_or(program).into();
        }
        match &self.service[..] {
            "" => UNKNOWN_SERVICE.into(),
            name if self.is_detected => format!("({name})").into(),
            name => name.into(),
        }
    }

    /// Returns [`Self::service`] with the process's ID, if that is known.
    pub(super) fn name(&self, tables: &Tables) -> String {
        let service = self.service(tables);
        match self.pid {
            Some(pid) => format!("{service} {pid}"),
            None => service.into_owned(),
        }
    }
}

/// Samples that differ only in their time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group<'g> {
    pub(super) kind: Kind,
    pub(super) thread: Id,
    pub(super) context: Id,
    pub(super) stack: Id,
    /// What keeps the thread off the CPU; [`NONE`] on a CPU.
    pub(super) wait: Id,
    /// The stack, which ends in a frame for what the thread waits for, if it does.
    pub(super) shown_stack: Id,
    /// The same with frames of all languages.
    pub(super) whole_stack: Id,
    pub(super) gil: Option<GilState>,
    pub(super) cpu: u32,
    /// In nanoseconds after 1970-01-01 UTC; empty if the recording has no times.
    pub(super) times: &'g [u64],
    /// Values of the samples; empty if each stands for 1.
    pub(super) values: &'g [u64],
    /// Numbers of samples, where values are times; empty if each is one.
    pub(super) counts: &'g [u64],
    /// The time that a value of 1 stands for, in nanoseconds.
    pub(super) unit: u64,
    /// Each value is a number of samples.
    pub(super) counts_samples: bool,
}

impl Group<'_> {
    /// Calls `add` with time, number of samples, and nanoseconds of each entry.
    pub(super) fn each(&self, mut add: impl FnMut(Option<u64>, u64, u64)) {
        for index in 0..self.times.len().max(self.values.len()) {
            let value = self.values.get(index).copied().unwrap_or(1);
            let samples = match self.counts.get(index) {
                Some(count) => *count,
                None if self.counts_samples => value,
                None => 1,
            };
            let time = self.times.get(index).copied();
            add(time, samples, value.saturating_mul(self.unit));
        }
    }

    /// Returns the value of an attribute that is of waits: empty if there is none, and `None` for
    /// other attributes.
    pub(super) fn of_wait<'t>(&self, tables: &'t Tables, name: &str) -> Option<&'t str> {
        let wait = &tables.waits[self.wait as usize];
        match (name, self.kind) {
            (STATE, Kind::Running) => Some("running"),
            (STATE, _) => Some(wait.state.name()),
            (CALL, _) => Some(tables.text(wait.call)),
            (REASON, _) => Some(tables.text(wait.reason)),
            _ => None,
        }
    }

    pub(super) fn cost(&self) -> Cost {
        let mut cost = Cost::default();
        self.each(|_, samples, nanoseconds| {
            cost.add(Cost {
                samples,
                nanoseconds,
            });
        });
        cost
    }
}

/// Takes the samples of a recording, in the order in which they are read.
pub(super) trait Sink {
    fn add(&mut self, tables: &Tables, group: &Group<'_>);

    /// Returns true if waits without a context are left out unless they are asked for.
    fn hides_idle(&self) -> bool;

    /// Returns true if the start of the recording has to be known before its first sample.
    fn needs_start(&self) -> bool;
}

/// Reads a recording for its tables alone.
pub(super) struct NoSink;

impl Sink for NoSink {
    fn add(&mut self, _: &Tables, _: &Group<'_>) {}

    fn hides_idle(&self) -> bool {
        false
    }

    fn needs_start(&self) -> bool {
        false
    }
}

/// All tables of a recording.
#[derive(Debug)]
pub(super) struct Tables {
    texts: Table<Box<str>>,
    pub(super) processes: Vec<Process>,
    process_ids: HashMap<Box<[u8]>, Id, RandomState>,
    pub(super) threads: Table<Thread>,
    pub(super) traces: Table<[u8; 16]>,
    /// Attributes of contexts, in the order of the recording.
    pub(super) attributes: Table<Box<[(Id, Id)]>>,
    pub(super) contexts: Table<Context>,
    pub(super) functions: Table<Function>,
    /// The first line of each function that is known: of its start, else the lowest one seen.
    lines: Vec<(bool, u32)>,
    pub(super) mappings: Table<Mapping>,
    pub(super) locations: Table<Location>,
    /// Locations, innermost first.
    pub(super) stacks: Table<Box<[Id]>>,
    pub(super) waits: Table<Wait>,
    /// Stacks with a frame for a wait, by the stack without it and the wait.
    waiting_stacks: HashMap<(Id, Id), Id, RandomState>,
    /// Kinds of the frames to keep; empty for all.
    kinds: Vec<&'static str>,
    /// By stack, the stack with these frames alone.
    kept_stacks: Known<Id>,
    /// The first and the last recorded time, in nanoseconds after 1970-01-01 UTC.
    pub(super) span: Option<(u64, u64)>,
    /// The start of the recording that is being read.
    pub(super) start: Option<u64>,
    /// False if times are after the machine's start, and no date is known.
    pub(super) has_date: bool,
    /// Some samples stand for time on a CPU or off-CPU.
    pub(super) has_cpu_time: bool,
    /// No wait is one of an idle thread: each is for something that another thread holds or does.
    pub(super) has_no_idle: bool,
    /// A sentence that names what other samples stand for.
    pub(super) other_type: Option<String>,
    /// Nanoseconds that a sample on a CPU stands for, as the first profile says.
    pub(super) period: u64,
    /// What a profile of pprof says of its frames.
    pub(super) frame_rules: FrameRules,
    /// Number of messages that were read.
    pub(super) messages: usize,
    /// All names of commands are known: the recording is read again.
    pub(super) has_names: bool,
}

impl Default for Tables {
    fn default() -> Self {
        let none = Context {
            trace: NONE,
            span: [0; 8],
            attributes: NONE,
        };
        Self {
            texts: Table::from_iter([Box::default()]),
            processes: Vec::new(),
            process_ids: HashMap::default(),
            threads: Table::default(),
            traces: Table::from_iter([[0; 16]]),
            attributes: Table::from_iter([Box::default()]),
            contexts: Table::from_iter([none]),
            functions: Table::default(),
            lines: Vec::new(),
            mappings: Table::from_iter([Mapping::default()]),
            locations: Table::default(),
            stacks: Table::from_iter([Box::default()]),
            waits: Table::from_iter([Wait::UNKNOWN]),
            waiting_stacks: HashMap::default(),
            kinds: Vec::new(),
            kept_stacks: Vec::new(),
            span: None,
            start: None,
            has_date: true,
            has_cpu_time: false,
            has_no_idle: false,
            other_type: None,
            period: 0,
            frame_rules: FrameRules::default(),
            messages: 0,
            has_names: false,
        }
    }
}

/// Adds an entry to a table, and returns its number.
pub(super) fn add<T: std::hash::Hash + Eq>(table: &mut Table<T>, entry: T) -> Result<Id, String> {
    id(table.insert_full(entry).0)
}

fn id(index: usize) -> Result<Id, String> {
    Id::try_from(index).map_err(|_| "it refers to more than 4 billion things".to_owned())
}

impl Tables {
    /// Creates the tables of a recording, whose stacks have frames of the selected languages alone.
    pub(super) fn of(selection: &Selection) -> Self {
        let kind_of = |language: &String| {
            let mut all = LANGUAGES.into_iter();
            all.find(|(name, _)| name == language).map(|(_, kind)| kind)
        };
        Self {
            kinds: selection.languages.iter().filter_map(kind_of).collect(),
            ..Self::default()
        }
    }

    pub(super) fn text(&self, id: Id) -> &str {
        &self.texts[id as usize]
    }

    pub(super) fn add_text(&mut self, text: &str) -> Result<Id, String> {
        match self.texts.get_index_of(text) {
            Some(index) => id(index),
            None => add(&mut self.texts, text.into()),
        }
    }

    /// Returns the number of a text, if the recording has it.
    pub(super) fn find_text(&self, text: &str) -> Option<Id> {
        Id::try_from(self.texts.get_index_of(text)?).ok()
    }

    /// Adds a process, unless one with the same encoded resource is known.
    pub(super) fn add_process(
        &mut self,
        encoded: &[u8],
        make: impl FnOnce() -> Result<Process, String>,
    ) -> Result<Id, String> {
        if let Some(known) = self.process_ids.get(encoded) {
            return Ok(*known);
        }
        let new = id(self.processes.len())?;
        self.processes.push(make()?);
        self.process_ids.insert(encoded.into(), new);
        Ok(new)
    }

    pub(super) fn add_thread(&mut self, thread: Thread) -> Result<Id, String> {
        let message = self.messages;
        let process = &mut self.processes[thread.process as usize];
        let is_first = thread.tid.is_some() && thread.tid == process.pid;
        // A sample from before an exec may have the next program's facts, not its name.
        let is_known = process.command.is_some_and(|(seen, _)| seen == message);
        if is_first && thread.name != NONE && !is_known && !self.has_names {
            process.command = Some((message, thread.name));
        }
        add(&mut self.threads, thread)
    }

    /// Adds a function with the line of its start, or 0.
    pub(super) fn add_function(&mut self, function: Function, start: u32) -> Result<Id, String> {
        let (index, is_new) = self.functions.insert_full(function);
        if is_new {
            self.lines.push((start > 0, start));
        } else if start > 0 && !self.lines[index].0 {
            self.lines[index] = (true, start);
        }
        id(index)
    }

    fn add_location(&mut self, location: Location) -> Result<Id, String> {
        for line in &location.lines {
            let (is_start, known) = &mut self.lines[line.function as usize];
            if !*is_start && line.line > 0 && (*known == 0 || line.line < *known) {
                *known = line.line;
            }
        }
        add(&mut self.locations, location)
    }

    /// Adds a location with the functions that are known there, innermost first.
    pub(super) fn complete(
        &mut self,
        mapping: Id,
        address: u64,
        kind: Id,
        mut lines: Vec<Line>,
    ) -> Result<Id, String> {
        let is_named = !lines.is_empty();
        if !is_named {
            let function = self.unnamed(mapping, kind)?;
            lines.push(Line::of(function));
        }
        self.add_location(Location {
            mapping,
            address,
            kind,
            lines: lines.into(),
            is_named,
        })
    }

    /// Returns what stands for the functions of a file that are not known.
    fn unnamed(&mut self, mapping: Id, kind: Id) -> Result<Id, String> {
        let name = match self.text(self.mappings[mapping as usize].file) {
            "" => "[unknown]",
            // The kernel's name for memory without a file, such as generated code.
            "//anon" => "[anon]",
            file => file,
        };
        let name = name.to_owned();
        let function = Function {
            name: self.add_text(&name)?,
            system_name: NONE,
            file: NONE,
            kind,
        };
        self.add_function(function, 0)
    }

    pub(super) fn add_stack(&mut self, locations: &[Id]) -> Result<Id, String> {
        match self.stacks.get_index_of(locations) {
            Some(index) => id(index),
            None => add(&mut self.stacks, locations.into()),
        }
    }

    /// Returns the frames of a stack to keep.
    pub(super) fn kept_stack(&mut self, stack: Id) -> Result<Id, String> {
        if self.kinds.is_empty() {
            return Ok(stack);
        }
        if let Some(known) = known(&mut self.kept_stacks, stack) {
            return Ok(*known);
        }
        let is_kept = |location: &Id| {
            let kind = self.locations[*location as usize].kind;
            self.kinds.contains(&self.text(kind))
        };
        let all = self.stacks[stack as usize].iter().copied();
        let kept: Vec<Id> = all.filter(is_kept).collect();
        let added = self.add_stack(&kept)?;
        Ok(*known(&mut self.kept_stacks, stack).insert(added))
    }

    /// Returns stacks with a frame at their end for what the thread waits for.
    pub(super) fn waiting_stacks(&mut self, stacks: [Id; 2], wait: Id) -> Result<[Id; 2], String> {
        let [one, other] = stacks;
        let waiting = self.waiting_stack(one, wait)?;
        match one == other {
            true => Ok([waiting; 2]),
            false => Ok([waiting, self.waiting_stack(other, wait)?]),
        }
    }

    fn waiting_stack(&mut self, stack: Id, wait: Id) -> Result<Id, String> {
        if let Some(known) = self.waiting_stacks.get(&(stack, wait)) {
            return Ok(*known);
        }
        let facts = self.waits[wait as usize];
        let frame = wait::Wait {
            state: facts.state,
            call: self.text(facts.call),
            reason: self.text(facts.reason),
        };
        let (name, kind) = (frame.frame(), self.add_text(FRAME_KIND)?);
        let function = Function {
            name: self.add_text(&name)?,
            system_name: NONE,
            file: NONE,
            kind,
        };
        let function = self.add_function(function, 0)?;
        let location = self.complete(NONE, 0, kind, vec![Line::of(function)])?;
        let mut locations = vec![location];
        locations.extend(&self.stacks[stack as usize]);
        let added = self.add_stack(&locations)?;
        self.waiting_stacks.insert((stack, wait), added);
        Ok(added)
    }

    /// Returns the line at which a function starts, or the lowest one that was seen; 0 if unknown.
    pub(super) fn line_of(&self, function: Id) -> u32 {
        self.lines[function as usize].1
    }

    /// Extends the recorded time.
    pub(super) fn add_span(&mut self, start: u64, end: u64) {
        self.start = Some(self.start.map_or(start, |known| known.min(start)));
        let (first, last) = self.span.unwrap_or((start, end));
        self.span = Some((first.min(start), last.max(end)));
    }

    pub(super) fn thread(&self, id: Id) -> &Thread {
        &self.threads[id as usize]
    }

    pub(super) fn process_of(&self, thread: Id) -> (Id, &Process) {
        let process = self.thread(thread).process;
        (process, &self.processes[process as usize])
    }

    /// Returns the lines of a stack's frames, innermost first.
    pub(super) fn frames(&self, stack: Id) -> impl DoubleEndedIterator<Item = &Line> {
        let locations = self.stacks[stack as usize].iter();
        locations.flat_map(|location| &self.locations[*location as usize].lines)
    }

    /// Sorts stacks by their locations, from the root on.
    pub(super) fn sort_from_root(&self, stacks: &mut [Id]) {
        stacks.sort_unstable_by(|one, other| {
            let from_root = |id: &Id| self.stacks[*id as usize].iter().rev();
            from_root(one).cmp(from_root(other))
        });
    }

    /// Returns true if a context or a resource has an attribute with this name, or samples may have one.
    pub(super) fn has_attribute(&self, name: &str) -> bool {
        let is_known = |name: Id| {
            let mut all = self.attributes.iter();
            all.any(|attributes| attributes.iter().any(|(key, _)| *key == name))
        };
        let mut resources = self.processes.iter().flat_map(|it| &it.resource);
        RECORDED.contains(&name)
            || self.find_text(name).is_some_and(is_known)
            || resources.any(|(key, _)| key == name)
    }

    /// Returns the value of an attribute of a context.
    pub(super) fn attribute(&self, attributes: Id, name: Id) -> Option<Id> {
        let mut all = self.attributes[attributes as usize].iter();
        all.find(|(key, _)| *key == name).map(|(_, value)| *value)
    }
}
