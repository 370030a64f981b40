//! Finds and reads the process context (OTEP 4719, "Reading Protocol").

use std::sync::Arc;
use std::time::Duration;

use otelctx_format::process_context::{
    COPY_MARK, DESCRIPTOR_OFFSET, HEADER_SIZE, Header, HeaderError, MAPPING_PREFIXES, Payload,
    PayloadError, Problem, SIGNATURE,
};
use otelctx_format::{KeyMap, KeyMapError, Schema};
use otelctx_remote::mappings::NamedMapping;
use otelctx_remote::{Memory, MemoryError};

mod past_keys;

pub(crate) use past_keys::PastKeys;

/// Maximum number of mappings with the name of a process context to read; normally there is one.
pub(crate) const MAX_PLACES: usize = 64;

/// Maximum number of contexts in addition to the first whose key maps are read. Of more, it is
/// assumed that they agree on nothing.
const MAX_OTHERS: usize = 8;

/// A header as stored in memory.
pub(crate) type HeaderBytes = [u8; HEADER_SIZE];

/// Delays between attempts to read a context that is being updated, which takes microseconds.
const BACK_OFF: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_micros(20),
    Duration::from_micros(200),
    Duration::from_millis(2),
];

/// The context that a process publishes about itself.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ProcessContext {
    /// The mapping's name in `/proc/PID/maps`; empty if a core file does not contain it.
    pub mapping: String,
    /// The address of the header in the process.
    pub address: u64,
    /// When this was published, in nanoseconds of the publisher's `CLOCK_BOOTTIME`, which may
    /// differ from the reader's (time namespaces): it distinguishes versions.
    pub monotonic_published_at_ns: u64,
    /// The resource and the context's own attributes, each name once.
    pub payload: Payload,
    /// Attributes that were removed from `payload`.
    pub problems: Vec<Problem>,
    /// The announced schema of its threads' contexts, if any.
    pub schema: Option<Schema>,
    /// The names that records refer to; an error if the attribute exists but is not a key map. If
    /// the process has [others](Self::others), only the names on which all key maps agree, because
    /// a record does not say to which publisher it belongs: see [`KeyMap::agreed`]. Contexts that
    /// this reader has seen, and that are gone, count as well: [`KeyMap::contested_by`].
    pub keys: Result<Option<KeyMap>, KeyMapError>,
    /// Addresses of other valid contexts in the same process, of which readers use nothing but the
    /// key maps. Contexts published after this one was found are not included.
    pub others: Vec<u64>,
    /// The contexts of the process that announce contexts of threads.
    pub(crate) publishers: Vec<Publisher>,
}

/// A context that announces contexts of threads.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Publisher {
    /// The address of its header.
    pub(crate) address: u64,
    /// An address in the module that has published it, if that is a copy of otelctx.
    pub(crate) descriptor: Option<u64>,
    pub(crate) schema: Option<Schema>,
    /// Without the names that former publishers contest; `None` if its key map is unknown.
    pub(crate) keys: Option<KeyMap>,
}

impl ProcessContext {
    /// The key map of the context with its header at `address`, of several in the process.
    pub(crate) fn keys_at(&self, address: u64) -> Option<&KeyMap> {
        let mut publishers = self.publishers.iter();
        let publisher = publishers.find(|publisher| publisher.address == address)?;
        publisher.keys.as_ref()
    }

    /// The names in records that a runtime finds where a publisher of one of its schemas has them, on
    /// which all such publishers agree. Copies of otelctx count as well: the one that publishes has the
    /// names of all, under its own schema.
    pub(crate) fn keys_of_schemas(&self, is_own: impl Fn(&Schema) -> bool) -> KeyMap {
        let is_possible = |publisher: &&Publisher| {
            publisher.descriptor.is_some() || publisher.schema.as_ref().is_none_or(&is_own)
        };
        let possible = self.publishers.iter().filter(is_possible);
        let mut maps = possible.map(|publisher| publisher.keys.as_ref()).peekable();
        if maps.peek().is_none() && !self.publishers.is_empty() {
            // Its publisher has no process context.
            return KeyMap::agreed([None]);
        }
        KeyMap::agreed(maps)
    }
}

/// The result of reading a process context.
#[derive(Clone, Debug, PartialEq)]
pub enum ContextState {
    /// The process publishes this.
    Published(Arc<ProcessContext>),
    /// The process publishes none.
    Absent,
    /// It has a mapping with that name, but without a readable context.
    Broken(Broken),
}

/// The reason why a published context could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// The header is not one of this format and version.
    #[error("{0}")]
    Header(HeaderError),
    /// The memory of the header cannot be read.
    #[error("its header cannot be read: {0}")]
    HeaderUnreadable(MemoryError),
    /// In every attempt, the context was being published or updated.
    #[error(
        "it was being written at each of {tries} attempts; if this persists, its publisher ended \
         in the middle of an update"
    )]
    BeingUpdated {
        /// Number of attempts.
        tries: usize,
    },
    /// The process ended during an update: this is its core file.
    #[error("it was being updated when the core file was written, so it cannot be relied on")]
    LeftInUpdate,
    /// The core file lacks memory that may contain a process context, and has none elsewhere.
    #[error(
        "none was found, and {mappings} unnamed mappings that it may be in are not in the core file"
    )]
    NotInCore {
        /// Number of missing mappings without a name.
        mappings: usize,
    },
    /// The payload is larger than the limit.
    #[error(
        "its payload has {size} bytes, more than the limit of {limit}; raise the limit to read it"
    )]
    TooLarge {
        /// Its size in bytes.
        size: u32,
        /// The limit in bytes.
        limit: usize,
    },
    /// The memory of the payload cannot be read.
    #[error("its payload cannot be read: {0}")]
    PayloadUnreadable(MemoryError),
    /// The payload is malformed.
    #[error("{0}")]
    Payload(PayloadError),
}

/// Returns true if a mapping has the name of a process context.
pub(crate) fn is_named(name: &[u8]) -> bool {
    let mut prefixes = MAPPING_PREFIXES.iter();
    prefixes.any(|prefix| name.starts_with(prefix))
}

/// Returns true if memory at `address` has the signature of a context; `None` if it is missing.
pub(crate) fn is_signed(memory: &dyn Memory, address: u64) -> Option<bool> {
    let mut start = [0; SIGNATURE.len()];
    memory.read(address, &mut start).ok()?;
    Some(start == SIGNATURE)
}

/// A context that was found, with the data for detecting changes.
#[derive(Debug)]
pub(crate) struct Found {
    place: Place,
    header: HeaderBytes,
    pub(crate) context: Arc<ProcessContext>,
    others: Vec<Other>,
    pub(crate) past: PastKeys,
}

/// Another context in the same process, or memory for one to which nothing was written yet.
#[derive(Debug)]
struct Other {
    place: Place,
    header: HeaderBytes,
    schema: Option<Schema>,
    keys: OtherKeys,
}

/// The names that records of a publisher refer to.
#[derive(Debug)]
enum OtherKeys {
    /// It announces no contexts of threads.
    Absent,
    Known(KeyMap),
    /// Its context or its key map cannot be read.
    Unknown,
}

pub(crate) enum Polled {
    Unchanged,
    Changed(Found),
    /// It can no longer be read; this is the header.
    Broken(HeaderBytes, Broken),
    /// There is no longer a valid header at its address, or the memory cannot be read.
    Gone,
}

impl Found {
    /// Polls the context: one read of the whole header if it has not changed, and one for each
    /// other context.
    pub(crate) fn poll(&self, memory: &dyn Memory, limit: usize) -> Polled {
        // Zeroes: other memory has replaced a withdrawn context.
        let first = match read_header(memory, self.context.address) {
            None | Some([0, ..]) => return Polled::Gone,
            Some(header) if header == self.header && self.others_are_same(memory) => {
                return Polled::Unchanged;
            }
            Some(header) => header,
        };
        match self.place.read(memory, limit) {
            Ok((header, context)) => {
                let others = self.others.iter().map(|other| &other.place);
                let others = read_others(others, memory, limit);
                let new = Self::new(&self.place, header, context, others, &self.past, memory);
                if new.context.others.is_empty()
                    && !new.past.continues(&self.past, self.place.address)
                {
                    // Because of a second publisher, which must be searched for, or because this is
                    // another publisher's.
                    return Polled::Gone;
                }
                Polled::Changed(new)
            }
            Err(Broken::Header(_) | Broken::HeaderUnreadable(_)) => Polled::Gone,
            Err(broken) => Polled::Broken(first, broken),
        }
    }

    fn others_are_same(&self, memory: &dyn Memory) -> bool {
        let is_same =
            |other: &Other| read_header(memory, other.place.address) == Some(other.header);
        self.others.iter().all(is_same)
    }

    fn new(
        place: &Place,
        header: HeaderBytes,
        mut context: ProcessContext,
        others: Vec<Other>,
        past: &PastKeys,
        memory: &dyn Memory,
    ) -> Self {
        let valid = others.iter().filter(|other| other.is_valid());
        context.others = valid.map(|other| other.place.address).collect();
        let own_keys = OtherKeys::of(&context);
        let own = (place.address, &context.schema, &own_keys);
        let others_keys = others.iter();
        let others_keys = others_keys.map(|it| (it.place.address, &it.schema, &it.keys));
        let all = [own].into_iter().chain(others_keys);
        let all = all.filter_map(|(address, schema, keys)| Some((address, schema, keys.map()?)));
        let all: Vec<(u64, &Option<Schema>, Option<&KeyMap>)> = all.collect();
        let past = past.with(all.iter().map(|(address, _, keys)| (*address, *keys)));
        let publishers = all.into_iter().map(|(address, schema, keys)| Publisher {
            address,
            descriptor: read_descriptor(memory, address),
            schema: schema.clone(),
            keys: keys.map(|keys| past.contest(keys.clone())),
        });
        context.publishers = publishers.collect();
        if let Ok(keys) = &context.keys {
            let other_maps = others.iter().filter_map(|other| other.keys.map());
            let mut maps = keys.iter().map(Some).chain(other_maps).peekable();
            let agreed = maps.peek().is_some().then(|| KeyMap::agreed(maps));
            context.keys = Ok(agreed.map(|keys| past.contest(keys)));
        }
        Self {
            place: place.clone(),
            header,
            context: Arc::new(context),
            others,
            past,
        }
    }
}

/// A mapping with the name of a process context.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    name: String,
    pub(crate) address: u64,
    /// The process is not running: retrying is pointless.
    is_saved: bool,
}

impl Place {
    pub(crate) fn new(mapping: &NamedMapping) -> Self {
        Self {
            is_saved: false,
            ..Self::saved(&mapping.name, mapping.start)
        }
    }

    /// A mapping of a process that is not running; a core file may not contain its name.
    pub(crate) fn saved(name: &[u8], address: u64) -> Self {
        Self {
            name: String::from_utf8_lossy(name).into_owned(),
            address,
            is_saved: true,
        }
    }

    /// Reads until the header is the same before and after the payload.
    fn read(
        &self,
        memory: &dyn Memory,
        limit: usize,
    ) -> Result<(HeaderBytes, ProcessContext), Broken> {
        if self.is_saved {
            return self.try_read(memory, limit)?.ok_or(Broken::LeftInUpdate);
        }
        for wait in BACK_OFF {
            if let Some(read) = self.try_read(memory, limit)? {
                return Ok(read);
            }
            std::thread::sleep(wait);
        }
        let tries = 1 + BACK_OFF.len();
        let read = self.try_read(memory, limit)?;
        read.ok_or(Broken::BeingUpdated { tries })
    }

    /// One attempt; `None` if the context was being published or updated. Errors only count if the
    /// header is the same before and after; otherwise the payload was being replaced.
    fn try_read(
        &self,
        memory: &dyn Memory,
        limit: usize,
    ) -> Result<Option<(HeaderBytes, ProcessContext)>, Broken> {
        let mut before = [0; HEADER_SIZE];
        memory
            .read(self.address, &mut before)
            .map_err(Broken::HeaderUnreadable)?;
        // A publisher names its mapping before writing to it.
        if before == [0; HEADER_SIZE] {
            return Ok(None);
        }
        let header = Header::decode(&before).map_err(Broken::Header)?;
        if header.monotonic_published_at_ns == 0 {
            return Ok(None);
        }
        // System calls order the reads, as the protocol's fences do.
        let payload = if header.payload_size as usize > limit {
            Err(Broken::TooLarge {
                size: header.payload_size,
                limit,
            })
        } else {
            let mut bytes = vec![0; header.payload_size as usize];
            memory
                .read(header.payload_address, &mut bytes)
                .map(|()| bytes)
                .map_err(Broken::PayloadUnreadable)
        };
        let mut after = [0; HEADER_SIZE];
        memory
            .read(self.address, &mut after)
            .map_err(Broken::HeaderUnreadable)?;
        if before != after {
            return Ok(None);
        }
        let mut payload = Payload::decode(&payload?).map_err(Broken::Payload)?;
        let mut problems = payload.take_problems();
        problems.extend(KeyMap::take_excess(&mut payload));
        let context = ProcessContext {
            mapping: self.name.clone(),
            address: self.address,
            monotonic_published_at_ns: header.monotonic_published_at_ns,
            schema: Schema::of(&payload),
            keys: KeyMap::of(&payload),
            payload,
            problems,
            others: Vec::new(),
            publishers: Vec::new(),
        };
        Ok(Some((before, context)))
    }
}

/// Reads the bytes of the header at `address`; `None` if they cannot be read.
pub(crate) fn read_header(memory: &dyn Memory, address: u64) -> Option<HeaderBytes> {
    let mut header = [0; HEADER_SIZE];
    memory.read(address, &mut header).ok()?;
    Some(header)
}

/// Reads the address of the descriptor (docs/publishing.md) behind the header at `address`. `None` if
/// its publisher is no copy of otelctx.
fn read_descriptor(memory: &dyn Memory, address: u64) -> Option<u64> {
    let at = address.checked_add(DESCRIPTOR_OFFSET as u64)?;
    let mut mark = [0; COPY_MARK.len()];
    memory.read(at.checked_add(8)?, &mut mark).ok()?;
    (mark == COPY_MARK).then(|| memory.read_u64(at).ok())?
}

/// Reads the contexts among `places`.
fn read_others<'p>(
    places: impl Iterator<Item = &'p Place>,
    memory: &dyn Memory,
    limit: usize,
) -> Vec<Other> {
    let mut others: Vec<Other> = Vec::new();
    let mut valid = 0;
    for place in places {
        let Some(header) = read_header(memory, place.address) else {
            continue;
        };
        let mut other = Other {
            place: place.clone(),
            header,
            schema: None,
            keys: OtherKeys::Absent,
        };
        if other.is_valid() {
            valid += 1;
            other.keys = OtherKeys::Unknown;
            if valid <= MAX_OTHERS
                && let Ok((header, context)) = place.read(memory, limit)
            {
                (other.header, other.keys) = (header, OtherKeys::of(&context));
                other.schema = context.schema;
            }
        }
        others.push(other);
    }
    others
}

impl Other {
    fn is_valid(&self) -> bool {
        Header::decode(&self.header).is_ok()
    }
}

impl OtherKeys {
    fn of(context: &ProcessContext) -> Self {
        match &context.keys {
            // Its key map may come later.
            Ok(None) if context.schema.is_some() => Self::Known(KeyMap::default()),
            Ok(None) => Self::Absent,
            Ok(Some(keys)) => Self::Known(keys.clone()),
            Err(_) => Self::Unknown,
        }
    }

    /// The key map, `Some(None)` if it cannot be read; `None` if there is none.
    fn map(&self) -> Option<Option<&KeyMap>> {
        match self {
            Self::Absent => None,
            Self::Known(keys) => Some(Some(keys)),
            Self::Unknown => Some(None),
        }
    }
}

/// Reads the first context among `places` that announces contexts of threads, or else the first
/// readable one; `Ok(None)` if there are none. If none is readable, returns the error of the first
/// one with a valid header, or else of the first one. `past` are the key maps of earlier reads.
pub(crate) fn read_first(
    places: &[Place],
    memory: &dyn Memory,
    limit: usize,
    past: &PastKeys,
) -> Result<Option<Found>, Broken> {
    let mut why: Option<Broken> = None;
    let mut first: Option<(usize, HeaderBytes, ProcessContext)> = None;
    for (index, place) in places.iter().enumerate() {
        match place.read(memory, limit) {
            Ok((header, context)) => {
                let announces = context.schema.is_some();
                if announces || first.is_none() {
                    first = Some((index, header, context));
                }
                if announces {
                    break;
                }
            }
            Err(broken) => {
                let foreign =
                    |why: &Broken| matches!(why, Broken::Header(_) | Broken::HeaderUnreadable(_));
                let is_better = |why: &Broken| foreign(why) && !foreign(&broken);
                if why.as_ref().is_none_or(is_better) {
                    why = Some(broken);
                }
            }
        }
    }
    let Some((index, header, context)) = first else {
        return why.map_or(Ok(None), Err);
    };
    let others = places[..index].iter().chain(&places[index + 1..]);
    let others = read_others(others, memory, limit);
    let found = Found::new(&places[index], header, context, others, past, memory);
    Ok(Some(found))
}

#[cfg(test)]
mod tests;
