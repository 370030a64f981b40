//! The encoding of samples and catalogs in the spool, which only its writer reads. Numbers are
//! little-endian; strings and lists follow their length.

use std::io;

use otelctx_sample::format::process_context::Payload;
use otelctx_sample::format::record::DecodedContext;
use otelctx_sample::format::{SpanId, TraceFlags, TraceId};
use otelctx_sample::{
    Catalog, ContextId, Event, Found, Frame, FrameKind, GilState, Mapping, Module, ModuleId,
    NamedFrame, OffCpu, OffCpuState, ProcessFacts, ReadStep, Reason, ReasonId, Sample, StackEnd,
    StackId, ThreadId,
};

pub(super) const SAMPLE_SIZE: usize = 8 + 4 + 4 + EVENT_SIZE + 1 + 4 + 1 + 4 + 1 + 4;
const EVENT_SIZE: usize = 1 + 8 + 8 + 4;

/// The IDs of a segment's entries in the part, by position.
#[derive(Debug)]
pub(super) struct Ids {
    pub(super) threads: Vec<ThreadId>,
    pub(super) contexts: Vec<ContextId>,
    pub(super) stacks: Vec<StackId>,
    pub(super) reasons: Vec<ReasonId>,
}

mod outcome {
    pub(super) const ATTACHED: u8 = 0;
    pub(super) const DETACHED: u8 = 1;
    pub(super) const NOT_PUBLISHED: u8 = 2;
    pub(super) const INVALID: u8 = 3;
    /// To which the step is added.
    pub(super) const UNREADABLE: u8 = 4;
}

pub(super) fn write_sample(out: &mut Vec<u8>, sample: &Sample) {
    let before = out.len();
    let (outcome, context) = match sample.found {
        Found::Attached(id) => (outcome::ATTACHED, id.index()),
        Found::Detached => (outcome::DETACHED, 0),
        Found::Invalid => (outcome::INVALID, 0),
        Found::Unreadable(step) => (outcome::UNREADABLE + step as u8, 0),
        _ => (outcome::NOT_PUBLISHED, 0),
    };
    out.extend(sample.time.to_le_bytes());
    out.extend(sample.cpu.to_le_bytes());
    number(out, sample.thread.index());
    write_event(out, sample.event);
    out.push(outcome);
    number(out, context);
    out.push(sample.gil.map_or(0, |state| 1 + state as u8));
    number(out, sample.user_stack.index());
    out.push(sample.stack_end.map_or(0, |end| 1 + end as u8));
    number(out, sample.kernel_stack.index());
    debug_assert_eq!(out.len() - before, SAMPLE_SIZE);
}

/// Adds the state from 1, 0 on a CPU, and its data.
fn write_event(out: &mut Vec<u8>, event: Event) {
    let Event::OffCpu(off) = event else {
        out.extend([0; EVENT_SIZE]);
        return;
    };
    out.push(1 + off.state as u8);
    out.extend(off.nanoseconds.to_le_bytes());
    out.extend(off.since.to_le_bytes());
    number(out, off.reason.map_or(0, |reason| 1 + reason.index()));
}

/// All states, in the order of their numbers.
const STATES: [OffCpuState; 5] = {
    let [queued, asleep, disk, stopped] = OffCpuState::ALL;
    [queued, asleep, disk, stopped, OffCpuState::Unknown]
};

fn read_event(bytes: &mut &[u8], ids: &Ids) -> io::Result<Event> {
    let state = take_choice(bytes, &STATES)?;
    let (nanoseconds, since) = (take_u64(bytes)?, take_u64(bytes)?);
    let reason = take_number(bytes)?.checked_sub(1);
    let reason = reason.map(|index| ids.reasons.get(index).copied().ok_or_else(damaged));
    let reason = reason.transpose()?;
    Ok(state.map_or(Event::OnCpu, |state| {
        Event::OffCpu(OffCpu {
            state,
            nanoseconds,
            since,
            reason,
        })
    }))
}

/// Reads a sample of a segment with these IDs.
pub(super) fn read_sample(bytes: &mut &[u8], ids: &Ids) -> io::Result<Sample> {
    let time = take_u64(bytes)?;
    let cpu = take_u32(bytes)?;
    let thread = take_entry(bytes, &ids.threads)?;
    let event = read_event(bytes, ids)?;
    let (outcome, context) = (take::<1>(bytes)?[0], take_number(bytes)?);
    let found = match outcome {
        outcome::ATTACHED => Found::Attached(*ids.contexts.get(context).ok_or_else(damaged)?),
        outcome::DETACHED => Found::Detached,
        outcome::NOT_PUBLISHED => Found::NotPublished,
        outcome::INVALID => Found::Invalid,
        step => {
            let step = usize::from(step - outcome::UNREADABLE);
            Found::Unreadable(*ReadStep::ALL.get(step).ok_or_else(damaged)?)
        }
    };
    Ok(Sample {
        time,
        cpu,
        thread,
        event,
        found,
        gil: take_choice(bytes, &GilState::ALL)?,
        user_stack: take_entry(bytes, &ids.stacks)?,
        stack_end: take_choice(bytes, &StackEnd::ALL)?,
        kernel_stack: take_entry(bytes, &ids.stacks)?,
    })
}

/// Adds a catalog. Kinds of named frames are encoded by their position in `kinds`.
pub(super) fn write_catalog(out: &mut Vec<u8>, catalog: &Catalog, kinds: &mut Vec<FrameKind>) {
    number(out, catalog.modules().len());
    for (_, module) in catalog.modules() {
        text(out, &module.path);
        block(out, &module.build_id);
        out.extend(module.device.to_le_bytes());
        out.extend(module.inode.to_le_bytes());
    }
    number(out, catalog.processes().len());
    for (_, facts) in catalog.processes() {
        write_process(out, facts);
    }
    number(out, catalog.threads().len());
    for (_, facts) in catalog.threads() {
        number(out, facts.process.index());
        out.extend(facts.tid.to_le_bytes());
        text(out, &facts.name);
    }
    number(out, catalog.contexts().len());
    for (_, context) in catalog.contexts() {
        out.extend(context.trace_id.to_bytes());
        out.extend(context.span_id.to_bytes());
        out.push(context.trace_flags.0);
        number(out, context.attributes.len());
        for (name, value) in &context.attributes {
            text(out, name);
            text(out, value);
        }
    }
    number(out, catalog.frame_count());
    for frame in catalog.all_frames() {
        write_frame(out, frame, kinds);
    }
    number(out, catalog.stack_count());
    for stack in catalog.stacks() {
        number(out, stack.len());
        for frame in stack {
            number(out, frame.index());
        }
    }
    number(out, catalog.reasons().len());
    for reason in catalog.reasons() {
        text(out, &reason.call);
        text(out, &reason.text);
    }
}

fn write_process(out: &mut Vec<u8>, facts: &ProcessFacts) {
    out.extend(facts.pid.to_le_bytes());
    out.extend(facts.start_ticks.to_le_bytes());
    text(out, &facts.comm);
    text(out, &facts.executable);
    text(out, facts.container_id.as_deref().unwrap_or_default());
    text(out, facts.pod_uid.as_deref().unwrap_or_default());
    out.push(u8::from(facts.opted_out));
    let mut payload = Payload::default();
    payload.resource.clone_from(&facts.resource);
    block(out, &payload.encode());
    out.push(u8::from(facts.published));
    number(out, facts.mappings.len());
    for mapping in &facts.mappings {
        for value in [mapping.start, mapping.end, mapping.offset, mapping.since] {
            out.extend(value.to_le_bytes());
        }
        number(out, mapping.module.index());
    }
}

fn write_frame(out: &mut Vec<u8>, frame: &Frame, kinds: &mut Vec<FrameKind>) {
    match frame {
        Frame::Native {
            address,
            is_return_address,
        } => {
            out.push(u8::from(*is_return_address));
            out.extend(address.to_le_bytes());
        }
        Frame::Named(named) => {
            let at = kinds.iter().position(|kind| *kind == named.kind);
            let at = at.unwrap_or_else(|| {
                kinds.push(named.kind);
                kinds.len() - 1
            });
            out.push(2);
            number(out, at);
            text(out, &named.function);
            text(out, &named.qualified_name);
            text(out, &named.file);
            out.extend(named.line.to_le_bytes());
        }
    }
}

pub(super) fn read_module(bytes: &mut &[u8]) -> io::Result<Module> {
    Ok(Module {
        path: take_text(bytes)?,
        build_id: take_block(bytes)?.to_vec(),
        device: take_u64(bytes)?,
        inode: take_u64(bytes)?,
    })
}

/// Reads a process, whose mappings refer to these modules by position.
pub(super) fn read_process(bytes: &mut &[u8], modules: &[ModuleId]) -> io::Result<ProcessFacts> {
    let mut facts = ProcessFacts {
        pid: take_u32(bytes)?.cast_signed(),
        start_ticks: take_u64(bytes)?,
        comm: take_text(bytes)?,
        executable: take_text(bytes)?,
        ..ProcessFacts::default()
    };
    facts.container_id = Some(take_text(bytes)?).filter(|id| !id.is_empty());
    facts.pod_uid = Some(take_text(bytes)?).filter(|uid| !uid.is_empty());
    facts.opted_out = take::<1>(bytes)?[0] != 0;
    let payload = Payload::decode(take_block(bytes)?);
    facts.resource = payload.map_err(|_| damaged())?.resource;
    facts.published = take::<1>(bytes)?[0] != 0;
    facts.mappings = take_list(bytes, |bytes| {
        Ok(Mapping {
            start: take_u64(bytes)?,
            end: take_u64(bytes)?,
            offset: take_u64(bytes)?,
            since: take_u64(bytes)?,
            module: take_entry(bytes, modules)?,
        })
    })?;
    Ok(facts)
}

pub(super) fn read_context(bytes: &mut &[u8]) -> io::Result<DecodedContext> {
    let mut context = DecodedContext::default();
    context.trace_id = TraceId::from_bytes(take(bytes)?);
    context.span_id = SpanId::from_bytes(take(bytes)?);
    context.trace_flags = TraceFlags(take::<1>(bytes)?[0]);
    context.attributes = take_list(bytes, |bytes| Ok((take_text(bytes)?, take_text(bytes)?)))?;
    Ok(context)
}

pub(super) fn read_frame(bytes: &mut &[u8], kinds: &[FrameKind]) -> io::Result<Frame> {
    let kind = take::<1>(bytes)?[0];
    if kind < 2 {
        return Ok(Frame::Native {
            address: take_u64(bytes)?,
            is_return_address: kind != 0,
        });
    }
    Ok(Frame::from(NamedFrame {
        kind: take_entry(bytes, kinds)?,
        function: take_text(bytes)?,
        qualified_name: take_text(bytes)?,
        file: take_text(bytes)?,
        line: take_u32(bytes)?,
    }))
}

pub(super) fn read_reason(bytes: &mut &[u8]) -> io::Result<Reason> {
    Ok(Reason {
        call: take_text(bytes)?,
        text: take_text(bytes)?,
    })
}

/// Adds a number below 2^32: a catalog contains fewer entries of a kind.
fn number(out: &mut Vec<u8>, number: usize) {
    out.extend((number as u32).to_le_bytes());
}

fn block(out: &mut Vec<u8>, bytes: &[u8]) {
    number(out, bytes.len());
    out.extend(bytes);
}

fn text(out: &mut Vec<u8>, text: &str) {
    block(out, text.as_bytes());
}

/// Creates the error for a file that another process has changed.
pub(super) fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the spool file was changed")
}

fn take<const N: usize>(bytes: &mut &[u8]) -> io::Result<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk::<N>().ok_or_else(damaged)?;
    *bytes = rest;
    Ok(*first)
}

/// Reads the position of one of `all`, from 1; 0 for none.
fn take_choice<T: Copy>(bytes: &mut &[u8], all: &[T]) -> io::Result<Option<T>> {
    let [number] = take::<1>(bytes)?;
    let index = number.checked_sub(1).map(usize::from);
    let chosen = index.map(|index| all.get(index).copied().ok_or_else(damaged));
    chosen.transpose()
}

/// Reads entries that follow their number.
pub(super) fn take_list<T>(
    bytes: &mut &[u8],
    mut read: impl FnMut(&mut &[u8]) -> io::Result<T>,
) -> io::Result<Vec<T>> {
    (0..take_number(bytes)?).map(|_| read(bytes)).collect()
}

/// Reads the position of one of `all`.
pub(super) fn take_entry<T: Copy>(bytes: &mut &[u8], all: &[T]) -> io::Result<T> {
    all.get(take_number(bytes)?).copied().ok_or_else(damaged)
}

pub(super) fn take_u32(bytes: &mut &[u8]) -> io::Result<u32> {
    take(bytes).map(u32::from_le_bytes)
}

fn take_u64(bytes: &mut &[u8]) -> io::Result<u64> {
    take(bytes).map(u64::from_le_bytes)
}

pub(super) fn take_number(bytes: &mut &[u8]) -> io::Result<usize> {
    take_u32(bytes).map(|number| number as usize)
}

fn take_block<'b>(bytes: &mut &'b [u8]) -> io::Result<&'b [u8]> {
    let length = take_number(bytes)?;
    let (block, rest) = bytes.split_at_checked(length).ok_or_else(damaged)?;
    *bytes = rest;
    Ok(block)
}

pub(super) fn take_text(bytes: &mut &[u8]) -> io::Result<String> {
    let block = take_block(bytes)?.to_vec();
    String::from_utf8(block).map_err(|_| damaged())
}
