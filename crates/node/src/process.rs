//! Node.js in one process.

use std::sync::Arc;

use otelctx_reader::format::Schema;
use otelctx_reader::format::process_context::{Attributes, Value};
use otelctx_reader::format::record;
use otelctx_reader::remote::tls::TlsVariable;
use otelctx_reader::remote::{Memory, Target};
use otelctx_reader::runtime::{
    KernelStep, RuntimeError, RuntimeProcess, RuntimeThread, Source, ThreadView,
};
use otelctx_reader::sample::Found;

use crate::step::{self, Part};
use crate::walk::{Broken, RecordPlace, Walked, walk};

/// Node.js in one process, with the variable of its addon.
#[derive(Debug)]
pub(crate) struct NodeProcess {
    pub(crate) variable: TlsVariable,
    pub(crate) place: RecordPlace,
    step: KernelStep,
}

impl NodeProcess {
    pub(crate) fn new(variable: TlsVariable, place: RecordPlace) -> Self {
        let step = step::kernel_step(&variable, place);
        Self {
            variable,
            place,
            step,
        }
    }
}

impl RuntimeProcess for NodeProcess {
    fn facts(&self) -> Attributes {
        Vec::new()
    }

    fn with_context(&self, attributes: &Attributes) -> Option<Arc<dyn RuntimeProcess>> {
        let place = RecordPlace::announced(attributes);
        let is_new = place != self.place;
        is_new.then(|| Arc::new(Self::new(self.variable.clone(), place)) as _)
    }

    fn reads_schema(&self, schema: &Schema) -> bool {
        matches!(schema.as_str(), "nodejs_v1_dev" | "nodejs_v1")
    }

    fn thread(
        &self,
        target: &dyn Target,
        thread: ThreadView,
    ) -> Result<Option<RuntimeThread>, RuntimeError> {
        let memory: &dyn Memory = target;
        let address = self.variable.address(memory, thread.thread_pointer)?;
        let Some(address) = address else {
            return Ok(None);
        };
        let walked = walk(memory, address, self.place).map_err(Broken::into_error)?;
        let context = match walked {
            // It is no thread of JavaScript, or one that does not publish now.
            Walked::Unpublished => return Ok(None),
            Walked::NoFrame | Walked::NotInFrame | Walked::Detached => Found::Detached,
            Walked::TornDown | Walked::Record(_) => Found::Invalid,
        };
        let mut found = RuntimeThread::new(context, Source::Runtime);
        found.facts = vec![("state".into(), Value::String(walked.name().into()))];
        if let Walked::Record(address) = walked {
            found.record = Some(read_record(memory, address)?);
        }
        Ok(Some(found))
    }

    fn kernel_step(&self) -> Option<&KernelStep> {
        Some(&self.step)
    }

    fn decode(&self, _: &dyn Target, part: &[u8]) -> Result<Option<RuntimeThread>, RuntimeError> {
        let context = match Part::read(part)? {
            Part::Nothing => return Ok(None),
            Part::NoFrame | Part::NotInFrame | Part::Detached => Found::Detached,
            Part::TornDown => Found::Invalid,
            Part::Record(record) => {
                let mut found = RuntimeThread::new(Found::Invalid, Source::Runtime);
                found.record = Some(record.to_vec());
                return Ok(Some(found));
            }
        };
        Ok(Some(RuntimeThread::new(context, Source::Runtime)))
    }
}

/// A record, at most of the size that OTEP 4947 recommends.
fn read_record(memory: &dyn Memory, address: u64) -> Result<Vec<u8>, RuntimeError> {
    let mut header = [0; record::HEADER_SIZE];
    memory.read(address, &mut header)?;
    let size = record::Header::decode(&header).attributes_size;
    let size = (record::HEADER_SIZE + usize::from(size)).min(record::RECOMMENDED_SIZE);
    Ok(memory.read_vec(address, size as u64, record::RECOMMENDED_SIZE)?)
}
