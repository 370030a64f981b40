//! speedscope's own format (<https://www.speedscope.app/file-format-schema.json>): a profile for each
//! thread.

use std::collections::HashMap;
use std::io::{self, Write};

use foldhash::fast::RandomState;
use indexmap::{IndexMap, IndexSet};
use otelctx_sample::ThreadId;
use serde::Serialize;
use serde::ser::SerializeSeq;

use super::room::{OTHER, Room};
use super::start_and_time;
use crate::wait::Wait;
use crate::{Clock, LocationIndex, Options, Profile};

/// Maximum number of samples in a file: of a longer recording, each represents several.
const MAX_SAMPLES: u64 = 500_000;
/// Maximum number of frames of all samples: the format has the whole stack of each, and a browser
/// loads files of some hundred MiB.
const MAX_FRAMES: usize = 40_000_000;
/// Maximum memory of threads, stacks and the text of functions, in bytes (estimated).
const MAX_MEMORY: usize = 64 << 20;
/// Estimated memory of a thread without samples, in bytes.
const THREAD: usize = 256;

/// Process ID, start time and thread ID; `None` for threads without room. With true for time off the
/// CPU.
type ThreadKey = (Option<(i32, u64, i32)>, bool);

/// A profile to which the parts of a recording are added.
#[derive(Debug)]
pub(super) struct Speedscope {
    /// Lines by function and file: the lowest that was sampled.
    frames: IndexMap<(String, String), u32, RandomState>,
    /// Frames from the outermost on.
    stacks: IndexSet<Box<[u32]>, RandomState>,
    threads: IndexMap<ThreadKey, Thread, RandomState>,
    room: Room,
    clock: Clock,
    /// Number of a thread's samples that each one represents.
    stride: usize,
    with_idle: bool,
}

#[derive(Debug, Default)]
struct Thread {
    name: String,
    /// In the order of time.
    samples: Vec<Sample>,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Nanoseconds after the recording's start.
    time: u64,
    nanoseconds: u64,
    stack: u32,
}

impl Speedscope {
    /// Creates a profile of a recording with this many samples, in all its parts.
    pub(super) fn new(options: &Options, clock: Clock, samples: u64) -> Self {
        Self {
            frames: IndexMap::default(),
            stacks: IndexSet::default(),
            threads: IndexMap::default(),
            room: Room::new(MAX_MEMORY),
            clock,
            stride: samples.div_ceil(MAX_SAMPLES).max(1) as usize,
            with_idle: options.with_idle,
        }
    }

    pub(super) fn add(&mut self, part: &Profile) {
        let mut known: HashMap<_, u32, RandomState> = HashMap::default();
        let mut threads: Vec<((ThreadId, bool), Vec<Sample>)> = Vec::new();
        let period = part.period().get();
        let with_idle = self.with_idle;
        let groups = part.groups();
        for group in groups.filter(|group| with_idle || !super::is_idle(group)) {
            let wait = part.wait(&group);
            let stack = known.entry((group.stack, wait));
            let stack = *stack.or_insert_with(|| self.stack(part, group.stack, wait));
            let samples = group.samples.iter().map(|sample| {
                let (start, nanoseconds) = start_and_time(sample, period);
                Sample {
                    time: start.saturating_sub(self.clock.start),
                    nanoseconds,
                    stack,
                }
            });
            let thread = (group.thread, wait.is_some());
            match threads.last_mut() {
                Some((last, known)) if *last == thread => known.extend(samples),
                _ => threads.push((thread, samples.collect())),
            }
        }
        for ((thread, is_off_cpu), mut samples) in threads {
            samples.sort_unstable_by_key(|sample| sample.time);
            let chunks = samples.chunks(self.stride).map(|chunk| Sample {
                nanoseconds: sum(chunk),
                ..chunk[0]
            });
            self.thread(part, thread, is_off_cpu).samples.extend(chunks);
        }
    }

    fn thread(&mut self, part: &Profile, id: ThreadId, is_off_cpu: bool) -> &mut Thread {
        let thread = part.thread(id);
        let facts = part.process(thread.process);
        let key = (Some((facts.pid, facts.start_ticks, thread.tid)), is_off_cpu);
        let is_known = self.threads.contains_key(&key);
        let kind = if is_off_cpu { ", off the CPU" } else { "" };
        let size = THREAD + thread.name.len() + facts.comm.len();
        if !is_known && !self.room.take(size) {
            let others = self.threads.entry((None, is_off_cpu)).or_default();
            others.name = format!("{OTHER}{kind}");
            return others;
        }
        let known = self.threads.entry(key).or_default();
        let (process, tid) = (super::name_of(facts), thread.tid);
        known.name = format!("{process} {}: {} {tid}{kind}", facts.pid, thread.name);
        known
    }

    /// Returns the number of a stack, or of the one for those without room.
    fn stack(&mut self, part: &Profile, stack: &[LocationIndex], wait: Option<Wait<'_>>) -> u32 {
        let mut frames = Some(Vec::new());
        let mut add = |name: &str, file: &str, [line, _]: [u32; 2]| {
            let frame = frames.as_ref().and_then(|_| self.frame(name, file, line));
            match (frame, &mut frames) {
                (Some(frame), Some(frames)) => frames.push(frame),
                (_, frames) => *frames = None,
            }
        };
        for index in stack.iter().rev() {
            part.each_function(part.location(*index), &mut add);
        }
        if let Some(wait) = wait {
            add(&wait.frame(), "", [0; 2]);
        }
        let known = |frames: &Vec<u32>| self.stacks.contains(&frames[..]);
        let frames = match frames {
            Some(frames) if known(&frames) => frames,
            Some(frames) if self.room.take(size_of_val(&frames[..])) => frames,
            _ => {
                let other = (OTHER.to_owned(), String::new());
                vec![self.frames.insert_full(other, 0).0 as u32]
            }
        };
        self.stacks.insert_full(frames.into()).0 as u32
    }

    /// Returns the number of a frame. `None` if there is no room for it.
    fn frame(&mut self, name: &str, file: &str, line: u32) -> Option<u32> {
        let key = (name.to_owned(), file.to_owned());
        let size = size_of::<(String, String, u32)>() + name.len() + file.len();
        if !self.frames.contains_key(&key) && !self.room.take(size) {
            return None;
        }
        let entry = self.frames.entry(key);
        let index = entry.index();
        let known = entry.or_insert(line);
        if line > 0 && (*known == 0 || line < *known) {
            *known = line;
        }
        Some(index as u32)
    }

    pub(super) fn write(&self, subject: &str, writer: &mut dyn Write) -> io::Result<()> {
        let samples = self.threads.values().flat_map(|thread| &thread.samples);
        let frames = samples.map(|sample| self.stacks[sample.stack as usize].len());
        let joined = frames.sum::<usize>().div_ceil(MAX_FRAMES).max(1);
        let mut threads: Vec<(&ThreadKey, &Thread)> = self.threads.iter().collect();
        // speedscope shows the first one.
        let order = |((_, is_off_cpu), thread): &(&ThreadKey, &Thread)| {
            (*is_off_cpu, std::cmp::Reverse(sum(&thread.samples)))
        };
        threads.sort_by_key(order);
        let threads = threads.into_iter().map(|(_, thread)| thread);
        let profiles = threads.map(|thread| self.profile(thread, joined));
        let name = match self.stride * joined {
            1 => subject.to_owned(),
            all => format!("{subject}: one sample stands for {all}"),
        };
        let frame = |((name, file), line): (&'_ (String, String), &u32)| Frame {
            name: name.clone(),
            file: file.clone(),
            line: *line,
        };
        let file = File {
            schema: "https://www.speedscope.app/file-format-schema.json",
            exporter: concat!("otelctx ", env!("CARGO_PKG_VERSION")),
            name,
            shared: Shared {
                frames: self.frames.iter().map(frame).collect(),
            },
            profiles: profiles.collect(),
        };
        Ok(serde_json::to_writer(writer, &file)?)
    }

    /// Returns the profile of a thread. speedscope puts samples one after the other: time in which
    /// the thread did not run is a sample without frames.
    fn profile(&self, thread: &Thread, joined: usize) -> SampledProfile<'_> {
        const NO_FRAMES: &[u32] = &[];
        let (mut stacks, mut weights, mut end) = (Vec::new(), Vec::new(), 0_u64);
        for chunk in thread.samples.chunks(joined) {
            let first = chunk[0];
            if first.time > end {
                stacks.push(NO_FRAMES);
                weights.push(first.time - end);
                end = first.time;
            }
            let nanoseconds = sum(chunk);
            stacks.push(&self.stacks[first.stack as usize]);
            weights.push(nanoseconds);
            end = end.saturating_add(nanoseconds);
        }
        SampledProfile {
            kind: "sampled",
            name: thread.name.clone(),
            unit: "nanoseconds",
            start: 0,
            end: end.max(self.clock.duration()),
            samples: Samples(stacks),
            weights,
        }
    }
}

fn sum(samples: &[Sample]) -> u64 {
    let times = samples.iter().map(|it| it.nanoseconds);
    times.fold(0, u64::saturating_add)
}

#[derive(Serialize)]
struct File<'f> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: &'static str,
    name: String,
    shared: Shared,
    profiles: Vec<SampledProfile<'f>>,
}

#[derive(Serialize)]
struct Shared {
    frames: Vec<Frame>,
}

#[derive(Serialize)]
struct Frame {
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    file: String,
    #[serde(skip_serializing_if = "is_zero")]
    line: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(line: &u32) -> bool {
    *line == 0
}

#[derive(Serialize)]
struct SampledProfile<'f> {
    #[serde(rename = "type")]
    kind: &'static str,
    name: String,
    unit: &'static str,
    #[serde(rename = "startValue")]
    start: u64,
    #[serde(rename = "endValue")]
    end: u64,
    samples: Samples<'f>,
    weights: Vec<u64>,
}

struct Samples<'f>(Vec<&'f [u32]>);

impl Serialize for Samples<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for stack in &self.0 {
            list.serialize_element(stack)?;
        }
        list.end()
    }
}
