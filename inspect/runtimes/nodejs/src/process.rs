//! Node.js in one process.

use std::sync::Arc;

use otelctx_reader::format::Schema;
use otelctx_reader::format::process_context::{Attributes, Value};
use otelctx_reader::format::record;
use otelctx_reader::remote::tls::TlsVariable;
use otelctx_reader::remote::{Memory, Target};
use otelctx_reader::runtime::{
    self, KernelStep, RuntimeError, RuntimeProcess, RuntimeThread, Source, ThreadView,
};
use otelctx_reader::sample::Found;

use crate::step::{self, MAX_ADDONS, Part};
use crate::walk::{Broken, RecordPlace, Walked, walk};

#[derive(Debug)]
pub(crate) struct NodeProcess {
    /// The variables of its addons, at most [`MAX_ADDONS`].
    addons: Vec<TlsVariable>,
    /// Number of other addons.
    skipped: usize,
    place: RecordPlace,
    version: Option<String>,
    step: KernelStep,
}

impl NodeProcess {
    pub(crate) fn new(
        mut addons: Vec<TlsVariable>,
        place: RecordPlace,
        version: Option<String>,
    ) -> Self {
        let skipped = addons.len().saturating_sub(MAX_ADDONS);
        addons.truncate(MAX_ADDONS);
        let step = step::kernel_step(&addons, place);
        Self {
            addons,
            skipped,
            place,
            version,
            step,
        }
    }

    /// Reads a thread's context from one addon. `None` if the thread executes no JavaScript, or the
    /// addon publishes nothing now.
    fn read(
        &self,
        memory: &dyn Memory,
        addon: &TlsVariable,
        thread: ThreadView,
    ) -> Result<Option<RuntimeThread>, RuntimeError> {
        let Some(address) = addon.address(memory, thread.thread_pointer)? else {
            return Ok(None);
        };
        let walked = walk(memory, address, self.place).map_err(Broken::into_error)?;
        let mut name = walked.name();
        let mut found = RuntimeThread::new(Found::Invalid, Source::Runtime);
        match walked {
            Walked::Unpublished => return Ok(None),
            Walked::NoFrame | Walked::NotInFrame | Walked::Detached => {
                found.context = Found::Detached;
            }
            Walked::TornDown => {}
            Walked::Record(address) => {
                // Up to the size that OTEP 4947 recommends.
                let mut record = vec![0; record::RECOMMENDED_SIZE];
                let size = runtime::read_record(memory, address, &mut record)?;
                record.truncate(size);
                match record::decode(&record) {
                    Ok(_) => found.record = Some(record),
                    Err(_) => name = "invalid",
                }
            }
        }
        // A record is being changed, or the garbage collector has moved a key but not updated all
        // references to it.
        found.is_settled = !matches!(name, "not_in_frame" | "invalid");
        if found.record.is_none() {
            found.facts = vec![("state".into(), Value::String(name.into()))];
        }
        Ok(Some(found))
    }
}

impl RuntimeProcess for NodeProcess {
    fn facts(&self) -> Attributes {
        let version = self.version.clone().map(Value::String);
        let skipped = (self.skipped > 0).then_some(Value::Int(self.skipped as i64));
        let facts = [("version", version), ("skipped_addons", skipped)].into_iter();
        facts
            .filter_map(|(name, value)| Some((name.into(), value?)))
            .collect()
    }

    fn with_context(&self, attributes: &Attributes) -> Option<Arc<dyn RuntimeProcess>> {
        let place = RecordPlace::announced(attributes);
        let new = || Self {
            skipped: self.skipped,
            ..Self::new(self.addons.clone(), place, self.version.clone())
        };
        (place != self.place).then(|| Arc::new(new()) as _)
    }

    fn reads_schema(&self, schema: &Schema) -> bool {
        schema.is_nodejs()
    }

    /// Prefers the first addon with a valid record to the first one that publishes.
    fn thread(
        &self,
        target: &dyn Target,
        thread: ThreadView,
    ) -> Result<Option<RuntimeThread>, RuntimeError> {
        let mut first = Ok(None);
        for addon in &self.addons {
            let read = self.read(target, addon, thread);
            if matches!(&read, Ok(Some(thread)) if thread.record.is_some()) {
                return read;
            }
            if matches!(first, Ok(None)) {
                first = read;
            }
        }
        first
    }

    fn kernel_step(&self) -> Option<&KernelStep> {
        Some(&self.step)
    }

    fn decode(&self, _: &dyn Target, part: &[u8]) -> Result<Option<RuntimeThread>, RuntimeError> {
        let context = match Part::read(part)? {
            Part::Nothing => return Ok(None),
            Part::NoFrame | Part::NotInFrame | Part::Detached => Found::Detached,
            Part::TornDown | Part::Invalid => Found::Invalid,
            Part::Record(record) => {
                let mut found = RuntimeThread::new(Found::Invalid, Source::Runtime);
                found.record = Some(record.to_vec());
                return Ok(Some(found));
            }
        };
        Ok(Some(RuntimeThread::new(context, Source::Runtime)))
    }
}

#[cfg(test)]
mod tests {
    use otelctx_reader::remote::Machine;

    use super::*;

    /// Addons beyond the limit are counted, whatever the process announces about them.
    #[test]
    fn addons_beyond_the_limit_are_counted() {
        let addons = |count: usize| {
            let addon = |at: usize| TlsVariable::at_offset(Machine::own(), -32 * at as i64);
            let addons = (1..=count).map(addon).collect();
            NodeProcess::new(addons, RecordPlace::Published, Some("24.0.0".into()))
        };
        let version: (String, Value) = ("version".into(), Value::String("24.0.0".into()));
        let all = addons(MAX_ADDONS).facts();
        assert_eq!(all, vec![version.clone()]);
        let skipped = ("skipped_addons".into(), Value::Int(2));
        let process = addons(MAX_ADDONS + 2);
        assert_eq!(process.facts(), [version.clone(), skipped.clone()]);
        let key = "threadlocal.js_object_record_offset".into();
        let other = process.with_context(&vec![(key, Value::Int(24))]).unwrap();
        assert_eq!(other.facts(), [version, skipped]);
    }
}
