//! Turns what was read into rows of Parquet files.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use foldhash::fast::RandomState;
use indexmap::{IndexMap, IndexSet};
use otelctx_sample::format::process_context::Value;
use otelctx_sample::{GilState, OffCpuState};

use super::select::resource_text;
use super::tables::{Group, Id, Kind, Known, NONE, Process, Sink, Tables, known};
use crate::attributes::{CALL, GIL, SERVICE_NAME};
use crate::write::parquet::{Columns, File, Part, Store, Values};
use crate::write::utc;

/// Limits of a row group, at which it ends.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Number of samples in memory, of all files.
    rows: usize,
    frames: usize,
    /// Size of texts in bytes, counted for each stack and each sample that has them.
    texts: usize,
}

const LIMITS: Limits = Limits {
    rows: 1 << 20,
    frames: 32 << 20,
    texts: 256 << 20,
};

/// Attributes with columns of their own: the maps leave them out.
const ROUTE: &str = "http.route";
pub(super) const HOST: &str = "host.name";
const PID: &str = "process.pid";

const HOUR: u64 = 3_600_000_000_000;

/// Collects samples, and writes them.
#[derive(Debug)]
pub(super) struct Rows {
    store: Store,
    /// Name of the machine of processes that do not publish one.
    host: Option<String>,
    by: Partitioning,
    limits: Limits,
    parts: IndexMap<Key, PartRows, RandomState>,
    /// Samples that are not written yet.
    rows: usize,
    contexts: IndexSet<RowContext, RandomState>,
    /// What rows stand for: kind, number of samples, and nanoseconds.
    costs: IndexSet<(Kind, u64, u64), RandomState>,
    /// Names of services' folders, and that of each thread.
    folders: IndexSet<String, RandomState>,
    folder_of: Known<usize>,
    /// Sizes of the texts of contexts' attributes.
    text_sizes: Known<usize>,
    problem: Option<io::Error>,
}

/// Maximum number of files of a folder.
const MAX_PARTS: usize = 4096;

/// Whether samples are divided into several files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Partitioning {
    None,
    /// By hour and service.
    Folders,
}

/// Hours after 1970-01-01 UTC, and the service's folder, an index of [`Rows::folders`].
type Key = (u64, usize);

/// A file, and its rows that are not written yet.
#[derive(Debug)]
struct PartRows {
    file: File,
    part: Part,
    rows: Vec<Row>,
    /// Their stacks.
    stacks: HashSet<Id, RandomState>,
    frames: usize,
    texts: usize,
}

/// A context with the state of the interpreter's lock, and what keeps the thread off the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct RowContext {
    context: Id,
    gil: Option<GilState>,
    wait: Id,
}

/// A sample.
#[derive(Clone, Copy, Debug)]
struct Row {
    time: u64,
    stack: Id,
    thread: Id,
    /// Indexes of [`Rows::contexts`] and [`Rows::costs`].
    context: u32,
    cost: u32,
}

impl Rows {
    pub(super) fn new(store: Store, host: Option<String>, by: Partitioning) -> Self {
        Self {
            store,
            host,
            by,
            limits: LIMITS,
            parts: IndexMap::default(),
            rows: 0,
            contexts: IndexSet::default(),
            costs: IndexSet::default(),
            folders: IndexSet::default(),
            folder_of: Vec::new(),
            text_sizes: Vec::new(),
            problem: None,
        }
    }

    /// Returns true if no sample was collected.
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Writes all rows: others that follow may refer to other tables.
    pub(super) fn end_tables(&mut self, tables: &Tables) {
        for index in 0..self.parts.len() {
            self.write_part(tables, index);
        }
        self.folder_of.clear();
        self.text_sizes.clear();
    }

    /// Writes what is left, and returns all files, which are in the store. A single one is there also
    /// without samples.
    ///
    /// # Errors
    /// Returns the first error of writing.
    pub(super) fn finish(&mut self, tables: &Tables) -> io::Result<Vec<Part>> {
        self.end_tables(tables);
        if let Some(problem) = &self.problem {
            return Err(io::Error::new(problem.kind(), problem.to_string()));
        }
        if self.parts.is_empty() && self.by == Partitioning::None {
            let part = PartRows::new(&mut self.store, String::new())?;
            self.parts.insert((0, 0), part);
        }
        let mut parts = Vec::new();
        for rows in self.parts.values() {
            let mut part = rows.part.clone();
            self.store.add(&mut part, |writer| rows.file.end(writer))?;
            parts.push(part);
        }
        self.store.flush()?;
        Ok(parts)
    }

    /// Returns where the files are.
    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the position of the part with samples of this time and thread.
    fn part(&mut self, tables: &Tables, time: u64, thread: Id) -> io::Result<usize> {
        let key = match self.by {
            Partitioning::None => (0, 0),
            Partitioning::Folders => (time / HOUR, self.folder(tables, thread)),
        };
        if let Some(index) = self.parts.get_index_of(&key) {
            return Ok(index);
        }
        if self.parts.len() >= MAX_PARTS {
            return Err(io::Error::other(format!(
                "it has more than {MAX_PARTS} hours of services: choose some with --time or --filter"
            )));
        }
        let folder = match self.by {
            Partitioning::None => String::new(),
            Partitioning::Folders => format!("{}/{}", hour_folder(key.0), self.folders[key.1]),
        };
        let part = PartRows::new(&mut self.store, folder)?;
        Ok(self.parts.insert_full(key, part).0)
    }

    fn folder(&mut self, tables: &Tables, thread: Id) -> usize {
        if let Some(known) = known(&mut self.folder_of, thread) {
            return *known;
        }
        let service = tables.process_of(thread).1.service(tables);
        let folder = format!("service={}", folder_name(&service));
        let added = self.folders.insert_full(folder).0;
        *known(&mut self.folder_of, thread).insert(added)
    }

    fn add_row(&mut self, tables: &Tables, row: Row, texts: usize) -> io::Result<()> {
        let index = self.part(tables, row.time, row.thread)?;
        let part = &mut self.parts[index];
        let stack = &tables.stacks[row.stack as usize];
        part.rows.push(row);
        part.frames += stack.len();
        part.texts += texts;
        if part.stacks.insert(row.stack) {
            part.texts += tables
                .frames(row.stack)
                .map(|line| {
                    let function = &tables.functions[line.function as usize];
                    tables.text(function.name).len() + tables.text(function.file).len()
                })
                .sum::<usize>();
        }
        self.rows += 1;
        if part.frames >= self.limits.frames || part.texts >= self.limits.texts {
            self.write_part(tables, index);
        } else if self.rows >= self.limits.rows {
            let largest = (0..self.parts.len()).max_by_key(|it| self.parts[*it].rows.len());
            self.write_part(tables, largest.unwrap_or(index));
        }
        Ok(())
    }

    /// Writes a row group with the rows of a part.
    fn write_part(&mut self, tables: &Tables, index: usize) {
        let part = &mut self.parts[index];
        let mut rows = std::mem::take(&mut part.rows);
        if rows.is_empty() || self.problem.is_some() {
            return;
        }
        self.rows -= rows.len();
        let stacks = sorted_stacks(tables, &std::mem::take(&mut part.stacks));
        // Compression finds equal stacks that are next to each other. Their times go up and down in
        // turn, so that differences of times have no jumps.
        let place = |row: &Row| match stacks[&row.stack] {
            stack if stack.is_multiple_of(2) => (stack, row.time),
            stack => (stack, !row.time),
        };
        rows.sort_unstable_by_key(place);
        (part.frames, part.texts) = (0, 0);
        let mut writing = Writing {
            tables,
            rows: &rows,
            contexts: &self.contexts,
            costs: &self.costs,
            host: self.host.as_deref(),
        };
        let file = &mut part.file;
        let written = self.store.add(&mut part.part, |writer| {
            let mut columns = file.group(rows.len(), writer);
            writing.write(&mut columns)?;
            columns.end();
            Ok(())
        });
        self.problem = written.err();
        if self.rows == 0 {
            self.contexts.clear();
            self.costs.clear();
        }
    }
}

impl Sink for Rows {
    fn add(&mut self, tables: &Tables, group: &Group<'_>) {
        if self.problem.is_some() {
            return;
        }
        let start = tables.span.map_or(0, |(start, _)| start);
        let attributes = tables.contexts[group.context as usize].attributes;
        let texts = *known(&mut self.text_sizes, attributes).get_or_insert_with(|| {
            let all = tables.attributes[attributes as usize].iter();
            let size =
                |(key, value): &(Id, Id)| tables.text(*key).len() + tables.text(*value).len();
            all.map(size).sum()
        });
        group.each(|time, samples, nanoseconds| {
            // For each row: both sets are empty after a row group was written.
            let context = RowContext {
                context: group.context,
                gil: group.gil,
                wait: group.wait,
            };
            let cost = (group.kind, samples, nanoseconds);
            let row = Row {
                time: time.unwrap_or(start),
                stack: group.stack,
                thread: group.thread,
                context: self.contexts.insert_full(context).0 as u32,
                cost: self.costs.insert_full(cost).0 as u32,
            };
            let added = self.add_row(tables, row, texts);
            self.problem = self.problem.take().or(added.err());
        });
    }

    fn hides_idle(&self) -> bool {
        false
    }

    fn needs_start(&self) -> bool {
        true
    }
}

impl PartRows {
    fn new(store: &mut Store, folder: String) -> io::Result<Self> {
        let mut part = Part::in_folder(folder);
        Ok(Self {
            file: store.add(&mut part, File::start)?,
            part,
            rows: Vec::new(),
            stacks: HashSet::default(),
            frames: 0,
            texts: 0,
        })
    }
}

/// Returns the folder of an hour after 1970-01-01 UTC, such as `hour=2026-11-29T14`.
fn hour_folder(hour: u64) -> String {
    let time = utc(hour * (HOUR / 1_000_000_000));
    let hour = time.split_once(':').map_or(&time[..], |(hour, _)| hour);
    format!("hour={}", hour.replace(' ', "T"))
}

/// What stands for an empty value.
const NO_VALUE: &str = "__HIVE_DEFAULT_PARTITION__";

/// Maximum size of an encoded value in the name of a folder, in bytes: names of files have at most
/// 255.
const MAX_FOLDER_NAME: usize = 200;

/// Encodes a value for the name of a folder, as Hive and all engines do.
fn folder_name(value: &str) -> String {
    if value.is_empty() {
        return NO_VALUE.to_owned();
    }
    let mut name = String::new();
    for byte in value.bytes() {
        let is_plain = byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let encoded = if is_plain && value != NO_VALUE {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        };
        // The sum keeps apart what starts alike.
        if name.len() + encoded.len() > MAX_FOLDER_NAME {
            return format!("{name}~{:016x}", fnv1a(value.as_bytes()));
        }
        name += &encoded;
    }
    name
}

/// FNV-1a (<http://www.isthe.com/chongo/tech/comp/fnv/>): names of folders do not depend on the build.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Returns the positions of stacks when they are sorted from the root on.
fn sorted_stacks(
    tables: &Tables,
    stacks: &HashSet<Id, RandomState>,
) -> HashMap<Id, u32, RandomState> {
    let mut sorted: Vec<Id> = stacks.iter().copied().collect();
    tables.sort_from_root(&mut sorted);
    sorted.into_iter().zip(0..).collect()
}

/// What the columns of a row group are written from.
struct Writing<'r> {
    tables: &'r Tables,
    rows: &'r [Row],
    contexts: &'r IndexSet<RowContext, RandomState>,
    costs: &'r IndexSet<(Kind, u64, u64), RandomState>,
    host: Option<&'r str>,
}

impl<'r> Writing<'r> {
    /// Writes all columns, in the order of the schema.
    fn write(&mut self, columns: &mut Columns<'_>) -> io::Result<()> {
        let clamped = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        columns.times(self.rows.iter().map(|row| clamped(row.time)))?;
        self.write_threads(columns)?;
        let costs = self.costs;
        let cost = |key: u32| costs[key as usize];
        let kind = |key| match cost(key).0 {
            Kind::Running => "running",
            Kind::Queued => "queued",
            Kind::Waiting => "waiting",
        };
        self.column(columns, |row| row.cost, |key| [Cow::from(kind(key))])?;
        self.write_waits(columns)?;
        self.column(columns, |row| row.cost, |key| [clamped(cost(key).2)])?;
        self.column(columns, |row| row.cost, |key| [clamped(cost(key).1)])?;
        self.write_contexts(columns)?;
        let tables = self.tables;
        self.pairs(
            columns,
            |row| tables.thread(row.thread).process,
            |process| resource(&tables.processes[process as usize]),
        )?;
        let function = |line: &super::tables::Line| &tables.functions[line.function as usize];
        let name = move |line| Cow::from(tables.text(function(line).name));
        let file = move |line| Cow::from(tables.text(function(line).file));
        let line = |line: &super::tables::Line| i32::try_from(line.line).unwrap_or(i32::MAX);
        self.column(columns, |row| row.stack, |it| tables.frames(it).map(name))?;
        self.column(columns, |row| row.stack, |it| tables.frames(it).map(file))?;
        self.column(columns, |row| row.stack, |it| tables.frames(it).map(line))
    }

    fn write_threads(&self, columns: &mut Columns<'_>) -> io::Result<()> {
        let tables = self.tables;
        let process = |thread| tables.process_of(thread).1;
        let host = |thread| {
            let published = resource_text(process(thread), HOST).map(Cow::from);
            published.or(self.host.map(Cow::from))
        };
        let name = |thread| Cow::from(tables.text(tables.thread(thread).name));
        let service = |thread| process(thread).service(tables);
        self.column(columns, |row| row.thread, host)?;
        self.column(columns, |row| row.thread, |it| [service(it)])?;
        self.column(columns, |row| row.thread, |it| process(it).pid)?;
        self.column(columns, |row| row.thread, |it| tables.thread(it).tid)?;
        self.column(columns, |row| row.thread, |it| [name(it)])
    }

    fn write_waits(&self, columns: &mut Columns<'_>) -> io::Result<()> {
        let tables = self.tables;
        let contexts = self.contexts;
        let wait = |key: u32| tables.waits[contexts[key as usize].wait as usize];
        let state = |key| Some(wait(key).state).filter(|it| *it != OffCpuState::Unknown);
        let state = |key| state(key).map(|it| Cow::from(it.name()));
        let reason = |key| match wait(key).reason {
            NONE => None,
            text => Some(Cow::from(tables.text(text))),
        };
        self.column(columns, |row| row.context, state)?;
        self.column(columns, |row| row.context, reason)
    }

    fn write_contexts(&self, columns: &mut Columns<'_>) -> io::Result<()> {
        let tables = self.tables;
        let contexts = self.contexts;
        let context = |key: u32| &tables.contexts[contexts[key as usize].context as usize];
        let trace = |key| match context(key).trace {
            NONE => None,
            trace => Some(tables.traces[trace as usize]),
        };
        let span = |key| Some(context(key).span).filter(|span| *span != [0; 8]);
        let route = |key| {
            let route = tables.attribute(context(key).attributes, tables.find_text(ROUTE)?)?;
            Some(Cow::from(tables.text(route)))
        };
        self.column(columns, |row| row.context, trace)?;
        self.column(columns, |row| row.context, span)?;
        self.column(columns, |row| row.context, route)?;
        self.pairs(
            columns,
            |row| row.context,
            |key| {
                let RowContext { gil, wait, .. } = contexts[key as usize];
                let call = tables.text(tables.waits[wait as usize].call);
                attributes(tables, context(key).attributes, gil, call)
            },
        )
    }

    /// Writes a column: each row has the values of its key.
    fn column<V: crate::write::parquet::Plain, I: IntoIterator<Item = V>>(
        &self,
        columns: &mut Columns<'_>,
        key: impl Fn(&Row) -> u32,
        of: impl Fn(u32) -> I,
    ) -> io::Result<()> {
        let mut values = Values::new();
        for row in self.rows {
            let key = key(row);
            values.add(key, || of(key));
        }
        columns.values(&values, self.rows.iter().map(key))
    }

    /// Writes the columns of a map: its keys, and its values.
    fn pairs(
        &self,
        columns: &mut Columns<'_>,
        key: impl Fn(&Row) -> u32,
        of: impl Fn(u32) -> Vec<(Cow<'r, str>, Cow<'r, str>)>,
    ) -> io::Result<()> {
        self.column(columns, &key, |it| of(it).into_iter().map(|pair| pair.0))?;
        self.column(columns, &key, |it| of(it).into_iter().map(|pair| pair.1))
    }
}

/// Sorts by name, and keeps the first of several values: readers differ in the one that they take.
fn unique<'t>(mut pairs: Vec<(Cow<'t, str>, Cow<'t, str>)>) -> Vec<(Cow<'t, str>, Cow<'t, str>)> {
    pairs.sort_by(|one, other| one.0.cmp(&other.0));
    pairs.dedup_by(|one, other| one.0 == other.0);
    pairs
}

/// Returns the attributes of a context that have no column, with the state of the lock and the call of
/// a wait.
fn attributes<'t>(
    tables: &'t Tables,
    attributes: Id,
    gil: Option<GilState>,
    call: &'t str,
) -> Vec<(Cow<'t, str>, Cow<'t, str>)> {
    let gil = gil.map(|state| (GIL.into(), state.name().into()));
    let call = (!call.is_empty()).then(|| (CALL.into(), call.into()));
    let all = tables.attributes[attributes as usize].iter();
    let all = all.map(|(name, value)| (tables.text(*name).into(), tables.text(*value).into()));
    unique(
        gil.into_iter()
            .chain(call)
            .chain(all.filter(|(name, _)| name != ROUTE))
            .collect(),
    )
}

/// Returns the attributes of a resource that have no column.
fn resource(process: &Process) -> Vec<(Cow<'_, str>, Cow<'_, str>)> {
    let has_column = |name: &str| [SERVICE_NAME, HOST, PID].contains(&name);
    let all = process
        .resource
        .iter()
        .filter(|(name, _)| !has_column(name));
    let pairs = all.filter_map(|(name, value)| {
        let value = match value {
            Value::String(text) => Cow::from(&text[..]),
            _ => resource_text(process, name)?.into(),
        };
        Some((name.into(), value))
    });
    unique(pairs.collect())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::text;
    use super::*;

    /// The number of pieces of a file: its start, its row groups, and its footer.
    fn pieces(limits: Limits) -> usize {
        let store = Store::beside(Path::new("rows.parquet")).unwrap();
        let mut rows = Rows::new(store, None, Partitioning::None);
        rows.limits = limits;
        let mut tables = Tables::default();
        let lines = "main;a 1\nmain;b 1\nmain;a 1\nmain;a;b;c 1\nmain;a 1\n";
        text::read_folded(lines, &mut tables, &mut rows).unwrap();
        let parts = rows.finish(&tables).unwrap();
        assert_eq!((parts.len(), rows.rows), (1, 0));
        parts[0].pieces()
    }

    #[test]
    fn a_row_group_ends_at_each_limit() {
        assert_eq!(pieces(LIMITS), 3);
        assert_eq!(pieces(Limits { rows: 2, ..LIMITS }), 5);
        let frames = 3;
        assert_eq!(pieces(Limits { frames, ..LIMITS }), 5);
        // Those of the first stack and of each other one.
        let texts = 6;
        assert_eq!(pieces(Limits { texts, ..LIMITS }), 5);
    }

    #[test]
    fn any_name_is_one_folder() {
        for (name, expected) in [
            ("shop", "shop"),
            ("", "__HIVE_DEFAULT_PARTITION__"),
            ("a/b", "a%2Fb"),
            ("..", ".."),
            ("a=b c\n", "a%3Db%20c%0A"),
            ("é%", "%C3%A9%25"),
        ] {
            assert_eq!(folder_name(name), expected);
        }
        assert_ne!(folder_name(NO_VALUE), NO_VALUE);
        assert_eq!(hour_folder(480_000), "hour=2024-10-04T00");
        let long = |last: &str| folder_name(&("é".repeat(30_000) + last));
        assert!(long("a").len() < 255 - "service=".len());
        assert_ne!(long("a"), long("b"));
    }
}
