//! Reads stacks as text: folded ones, and the output of `perf script`.

use otelctx_sample::format::process_context::Value;

use super::pprof::kind_of;
use super::tables::{
    Function, Group, Id, Kind, Line, Mapping, NONE, Process, Sink, Tables, Thread, add,
};
use crate::attributes::SERVICE_NAME;

/// Number of lines by which a text is recognized.
const HEAD: usize = 64;

/// Returns true if lines consist of frames and a number.
pub(super) fn is_folded(text: &str) -> bool {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let mut lines = lines.take(HEAD).peekable();
    lines.peek().is_some() && lines.all(|line| folded(line).is_some())
}

/// Returns true if the first line names a thread and an event, and frames are below it.
pub(super) fn is_perf_script(text: &str) -> bool {
    let mut lines = text
        .lines()
        .filter(|it| !it.trim().is_empty() && !it.starts_with('#'));
    let head = lines.next().is_some_and(|line| Head::of(line).is_some());
    head && lines
        .next()
        .is_none_or(|line| frame(line).is_some() || Head::of(line).is_some())
}

/// Splits a line into its frames and their number.
fn folded(line: &str) -> Option<(&str, u64)> {
    let (frames, number) = line.trim_end().rsplit_once(' ')?;
    let number = number.parse().ok()?;
    (!frames.is_empty()).then_some((frames, number))
}

/// Reads folded stacks: frames from the root, separated by semicolons, and a number of samples.
pub(super) fn read_folded(
    text: &str,
    tables: &mut Tables,
    sink: &mut dyn Sink,
) -> Result<(), String> {
    let mut text_reader = Reader::new(tables)?;
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let number = index + 1;
        let (frames, samples) =
            folded(line).ok_or_else(|| format!("line {number} has no number of samples"))?;
        let mut stack = Vec::new();
        for name in frames.rsplit(';') {
            stack.push(text_reader.location(0, name, "", "", kind_of(false, ""))?);
        }
        let thread = text_reader.thread("", None, "")?;
        text_reader.add(thread, &stack, &[], samples, 0, sink)?;
    }
    Ok(())
}

/// Reads the output of `perf script` with its default fields.
pub(super) fn read_perf_script(
    text: &str,
    tables: &mut Tables,
    sink: &mut dyn Sink,
) -> Result<(), String> {
    let mut reader = Reader::new(tables)?;
    // Times are after the machine's start.
    reader.tables.has_date = false;
    let mut lines = text.lines().enumerate().peekable();
    while let Some((index, line)) = lines.next() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let number = index + 1;
        let head =
            Head::of(line).ok_or_else(|| format!("line {number} names no thread and event"))?;
        let mut stack = Vec::new();
        while let Some((_, line)) = lines.next_if(|(_, line)| !line.trim().is_empty()) {
            let Some((address, name, file)) = frame(line) else {
                continue;
            };
            let is_kernel = file.starts_with("[kernel") || file.starts_with("[guest.kernel");
            stack.push(reader.location(address, name, "", file, kind_of(is_kernel, ""))?);
        }
        let thread = reader.thread(head.command, head.pid, head.command)?;
        let thread = match head.tid {
            Some(tid) => reader.tables.add_thread(Thread {
                tid: Some(tid),
                ..*reader.tables.thread(thread)
            })?,
            None => thread,
        };
        let times: Vec<u64> = head.time.into_iter().collect();
        reader.add(thread, &stack, &times, 1, head.nanoseconds, sink)?;
    }
    Ok(())
}

/// The first line of a sample: `comm PID/TID [CPU] SECONDS.MICROSECONDS: PERIOD EVENT:`.
#[derive(Debug, PartialEq)]
struct Head<'t> {
    command: &'t str,
    pid: Option<i64>,
    tid: Option<i64>,
    time: Option<u64>,
    /// The time that the sample stands for; 0 if its event counts something else.
    nanoseconds: u64,
}

impl<'t> Head<'t> {
    fn of(line: &'t str) -> Option<Self> {
        if line.starts_with(char::is_whitespace) && !line.trim_end().ends_with(':') {
            return None;
        }
        let (before, event) = line.split_once(": ")?;
        let event = event.trim();
        let words: Vec<&str> = before.split_whitespace().collect();
        let is_time = |word: &&str| word.contains('.') && word.parse::<f64>().is_ok();
        let time = words.last().filter(|word| is_time(word))?;
        let rest = &words[..words.len() - 1];
        let rest = match rest.split_last() {
            Some((cpu, rest)) if cpu.starts_with('[') => rest,
            _ => rest,
        };
        let (ids, command) = rest.split_last()?;
        let (pid, tid) = ids.split_once('/').unwrap_or(("", ids));
        let tid: i64 = tid.parse().ok()?;
        let pid = pid.parse().ok();
        // As it stands in the line: a name may have several spaces.
        let first = command.first()?;
        let start = line.find(first)?;
        let end = before.rfind(ids)?;
        let command = line.get(start..end)?.trim_end();
        let mut event = event.split_whitespace();
        let (period, name) = (event.next()?, event.next());
        let period = match name {
            Some(name) if name.contains("cpu-clock") || name.contains("task-clock") => {
                period.parse().unwrap_or(0)
            }
            _ => 0,
        };
        Some(Self {
            command,
            pid: pid.or(Some(tid)),
            tid: Some(tid),
            time: time.parse::<f64>().ok().map(|time| (time * 1e9) as u64),
            nanoseconds: period,
        })
    }
}

/// Splits a frame: `ADDRESS SYMBOL+OFFSET (FILE)`.
fn frame(line: &str) -> Option<(u64, &str, &str)> {
    let line = line.strip_prefix(char::is_whitespace)?.trim();
    let (address, rest) = line.split_once(' ')?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let rest = rest.trim();
    let (name, file) = match rest
        .strip_suffix(')')
        .and_then(|rest| rest.rsplit_once(" ("))
    {
        Some(found) => found,
        None => (rest, ""),
    };
    let name = match name.rsplit_once("+0x") {
        Some((name, offset)) if offset.bytes().all(|it| it.is_ascii_hexdigit()) => name,
        _ => name,
    };
    let file = if file == "inlined" { "" } else { file };
    Some((address, name.trim(), file))
}

struct Reader<'t> {
    tables: &'t mut Tables,
}

impl<'t> Reader<'t> {
    fn new(tables: &'t mut Tables) -> Result<Self, String> {
        tables.messages += 1;
        Ok(Self { tables })
    }

    fn location(
        &mut self,
        address: u64,
        name: &str,
        source: &str,
        file: &str,
        kind: &'static str,
    ) -> Result<Id, String> {
        let kind = self.tables.add_text(kind)?;
        let mapping = match file {
            "" | "[unknown]" => NONE,
            file => {
                let file = self.tables.add_text(file)?;
                let mapping = Mapping {
                    limit: u64::MAX,
                    file,
                    ..Mapping::default()
                };
                add(&mut self.tables.mappings, mapping)?
            }
        };
        let mut lines = Vec::new();
        if name != "[unknown]" || file.is_empty() {
            let function = Function {
                name: self.tables.add_text(name)?,
                system_name: NONE,
                file: self.tables.add_text(source)?,
                kind,
            };
            let function = self.tables.add_function(function, 0)?;
            lines.push(Line::of(function));
        }
        self.tables.complete(mapping, address, kind, lines)
    }

    fn thread(&mut self, command: &str, pid: Option<i64>, name: &str) -> Result<Id, String> {
        let mut resource = Vec::new();
        if let Some(pid) = pid {
            resource.push(("process.pid".to_owned(), Value::Int(pid)));
        }
        if !command.is_empty() {
            resource.push((SERVICE_NAME.to_owned(), Value::String(command.to_owned())));
        }
        // A process has the name that it has first: its threads have names of their own.
        let encoded = format!("text\0{}", pid.unwrap_or(0));
        let process = self
            .tables
            .add_process(encoded.as_bytes(), || Ok(Process::new(resource)))?;
        let name = self.tables.add_text(name)?;
        self.tables.add_thread(Thread {
            process,
            tid: pid,
            name,
        })
    }

    fn add(
        &mut self,
        thread: Id,
        stack: &[Id],
        times: &[u64],
        samples: u64,
        nanoseconds: u64,
        sink: &mut dyn Sink,
    ) -> Result<(), String> {
        for time in times {
            self.tables.add_span(*time, time.saturating_add(1));
        }
        self.tables.has_cpu_time = true;
        let whole = self.tables.add_stack(stack)?;
        let stack = self.tables.kept_stack(whole)?;
        sink.add(
            self.tables,
            &Group {
                kind: Kind::Running,
                thread,
                context: NONE,
                stack,
                wait: NONE,
                shown_stack: stack,
                whole_stack: whole,
                gil: None,
                cpu: 0,
                times,
                values: &[samples],
                counts: &[],
                unit: nanoseconds,
                counts_samples: true,
            },
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_perf_script_names_thread_time_and_event() {
        let head = |command, pid, tid, nanoseconds| {
            Some(Head {
                command,
                pid: Some(pid),
                tid: Some(tid),
                time: Some(1_500_000_000),
                nanoseconds,
            })
        };
        let of = Head::of;
        let line = "python3  4711/4712  [001]     1.500000:   10101010 cpu-clock:ppp: ";
        assert_eq!(of(line), head("python3", 4711, 4712, 10_101_010));
        let line = "my  app 2  77 1.500000:     250000 cycles:u:";
        assert_eq!(of(line), head("my  app 2", 77, 77, 0));
        let frames = "\t    7f00deadbeef _PyEval_EvalFrameDefault+0x3a (/usr/bin/python3.12)";
        assert_eq!(of(frames), None);
        let found = frame(frames).unwrap();
        assert_eq!(
            found,
            (
                0x7f00_dead_beef,
                "_PyEval_EvalFrameDefault",
                "/usr/bin/python3.12"
            )
        );
        assert_eq!(frame(" 10 a b (inlined)"), Some((16, "a b", "")));
        assert_eq!(frame("10 a"), None);
    }
}
