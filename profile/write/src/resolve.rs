//! Adds functions to a recorded file that has addresses alone.
//! Only dictionaries change. Worker processes decode the file, which may be hostile.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Write};
use std::path::Path;

use foldhash::fast::RandomState;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development as proto;
use otelctx_worker::Limits;
use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, encode_key, encode_varint, skip_field};

use crate::digits;
use crate::messages::Messages;
use crate::recorded_file::{self, LIMITS, decode, in_worker};
use crate::rules::{self, entry, to_index};
use crate::write::SCOPE;
use crate::{Error, Function, Identity, UnnamedModule, file};

/// Maximum size of the file that is written, in bytes.
const MAX_OUTPUT: u64 = 2 << 30;
/// Field number of the dictionary in `ProfilesData`.
const DICTIONARY: u32 = 2;
/// The type of frames whose functions are resolved.
const NATIVE: &str = "native";
/// The type of the kernel's frames.
const KERNEL: &str = "kernel";

/// A recorded file, in memory.
#[derive(Debug)]
pub struct RecordedFile<'p> {
    bytes: Vec<u8>,
    path: &'p Path,
}

/// A module, and the functions at its [`UnnamedModule::offsets`], innermost inlined one first.
pub type NamedModule = (UnnamedModule, Vec<Vec<Function>>);

impl<'p> RecordedFile<'p> {
    /// Reads an OTLP file.
    ///
    /// # Errors
    /// Returns the errors of [`Report::read`](crate::report::Report::read).
    pub fn read(path: &'p Path) -> Result<Self, Error> {
        let bytes = recorded_file::read(path)?;
        Ok(Self { bytes, path })
    }

    /// Takes a message that was read elsewhere, which errors name `path`.
    #[must_use]
    pub fn of(bytes: Vec<u8>, path: &'p Path) -> Self {
        Self { bytes, path }
    }

    /// Returns the files with unknown functions.
    ///
    /// # Errors
    /// Returns [`Error::TooLarge`] and [`Error::Malformed`].
    pub fn unnamed(&self) -> Result<Vec<UnnamedModule>, Error> {
        in_worker(self.path, LIMITS, |pipe| {
            Ok(serde_json::to_writer(pipe, &unnamed_modules(&self.bytes))?)
        })
    }

    /// Writes the recording to `path`, with these functions. If this fails, or this process is
    /// killed, an existing file is unchanged.
    ///
    /// # Errors
    /// Returns [`Error::TooLarge`], [`Error::Malformed`] and [`Error::Write`].
    pub fn write(&self, named: &[NamedModule], path: &Path) -> Result<(), Error> {
        let bytes = self.named(named)?;
        file::write(path, |writer| writer.write_all(&bytes))
    }

    /// Returns the recording with these functions.
    ///
    /// # Errors
    /// Returns [`Error::TooLarge`] and [`Error::Malformed`].
    pub fn named(&self, named: &[NamedModule]) -> Result<Vec<u8>, Error> {
        let limits = Limits {
            output: MAX_OUTPUT,
            ..LIMITS
        };
        let work = |pipe: &mut dyn Write| write_named(&self.bytes, named, pipe);
        recorded_file::run(self.path, limits, work)
    }
}

/// Returns the files with unknown functions in a recording, or a sentence that names its defect.
/// Not in a worker process: for the fuzz target.
#[doc(hidden)]
pub fn unnamed_modules(bytes: &[u8]) -> Result<Vec<UnnamedModule>, String> {
    let data = decode(bytes)?;
    // Other programs' addresses may have another meaning.
    if !data.iter().flat_map(scopes).all(|name| name == SCOPE) {
        return Err("another program than otelctx recorded it".to_owned());
    }
    let mut modules = Modules::default();
    let dictionaries = data.iter().filter_map(|data| data.dictionary.as_ref());
    dictionaries.for_each(|dictionary| modules.add(dictionary));
    Ok(modules.finish())
}

/// Writes a recording with these functions. Not in a worker process: for the fuzz target.
///
/// # Errors
/// Fails if [`unnamed_modules`] refuses the recording, or with the errors of `out`.
#[doc(hidden)]
pub fn write_named(bytes: &[u8], named: &[NamedModule], out: &mut dyn Write) -> io::Result<()> {
    let names = names_of(named);
    let messages = Messages::new(bytes).map(|message| with_names(message?, &names));
    let messages: Vec<_> = messages
        .collect::<Result<_, _>>()
        .map_err(io::Error::other)?;
    if let [single] = &messages[..] {
        return out.write_all(single);
    }
    for message in &messages {
        let size = u32::try_from(message.len()).map_err(io::Error::other)?;
        out.write_all(&size.to_be_bytes())?;
        out.write_all(message)?;
    }
    Ok(())
}

fn scopes(data: &proto::ProfilesData) -> impl Iterator<Item = &str> {
    let resources = data.resource_profiles.iter();
    let scopes = resources.flat_map(|resource| &resource.scope_profiles);
    scopes.map(|scope| scope.scope.as_ref().map_or("", |scope| &scope.name))
}

/// Identifies a module in a recording: path, build ID, head-tail hash.
type ModuleKey = (String, Vec<u8>, Option<[u8; 16]>);

fn key(module: &UnnamedModule) -> ModuleKey {
    let Identity { build_id, htlhash } = &module.identity;
    (module.path.clone(), build_id.clone(), *htlhash)
}

/// Modules with the offsets whose functions are unknown.
#[derive(Default)]
struct Modules(BTreeMap<ModuleKey, HashSet<u64, RandomState>>);

impl Modules {
    fn add(&mut self, dictionary: &proto::ProfilesDictionary) {
        let keys: Vec<_> = (0..dictionary.mapping_table.len())
            .map(|index| module_at(dictionary, index))
            .collect();
        let stacks = dictionary.stack_table.iter();
        for frame in stacks.flat_map(|it| frames(dictionary, it)) {
            if let Some((mapping, offset)) = unresolved_address(dictionary, frame)
                && let Some(Some(key)) = keys.get(mapping)
            {
                match self.0.get_mut(key) {
                    Some(offsets) => drop(offsets.insert(offset)),
                    None => drop(self.0.insert(key.clone(), HashSet::from_iter([offset]))),
                }
            }
        }
    }

    fn finish(self) -> Vec<UnnamedModule> {
        let module = |((path, build_id, htlhash), offsets): (ModuleKey, HashSet<u64, _>)| {
            let mut offsets: Vec<u64> = offsets.into_iter().collect();
            offsets.sort_unstable();
            UnnamedModule {
                path,
                identity: Identity { build_id, htlhash },
                offsets,
            }
        };
        self.0.into_iter().map(module).collect()
    }
}

/// Returns the module of a mapping; `None` for memory without a file.
fn module_at(dictionary: &proto::ProfilesDictionary, mapping: usize) -> Option<ModuleKey> {
    let mapping = dictionary.mapping_table.get(mapping)?;
    let path = entry(&dictionary.string_table, mapping.filename_strindex)?;
    // The kernel's names for memory without a file.
    if path.is_empty() || path.starts_with('[') || path.starts_with("//") {
        return None;
    }
    let attribute = |name: &str| match rules::value(dictionary, &mapping.attribute_indices, name)?
        .value
        .as_ref()?
    {
        Value::StringValue(text) => digits::bytes(text),
        _ => None,
    };
    let build_id = attribute("process.executable.build_id.gnu").unwrap_or_default();
    let htlhash = attribute("process.executable.build_id.htlhash");
    let htlhash = htlhash.and_then(|hash| hash.try_into().ok());
    Some((path.clone(), build_id, htlhash))
}

/// A frame of a stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct FrameKey {
    location: i32,
    /// The frame has called another one: its address is a return address.
    is_caller: bool,
}

/// Returns the frames of a stack, innermost first. The innermost frames of the kernel and of the
/// process are not callers.
fn frames<'d>(
    dictionary: &'d proto::ProfilesDictionary,
    stack: &'d proto::Stack,
) -> impl Iterator<Item = FrameKey> + 'd {
    let mut before = None;
    stack.location_indices.iter().map(move |&location| {
        let found = entry(&dictionary.location_table, location);
        let is_kernel = found.is_some_and(|it| frame_type(dictionary, it) == Some(KERNEL));
        let is_caller = before.replace(is_kernel) == Some(is_kernel);
        FrameKey {
            location,
            is_caller,
        }
    })
}

fn frame_type<'d>(
    dictionary: &'d proto::ProfilesDictionary,
    location: &proto::Location,
) -> Option<&'d str> {
    let value = rules::value(
        dictionary,
        &location.attribute_indices,
        "profile.frame.type",
    );
    rules::text(dictionary, value)
}

/// Returns the mapping of a frame without functions, and the offset in its file.
fn unresolved_address(
    dictionary: &proto::ProfilesDictionary,
    frame: FrameKey,
) -> Option<(usize, u64)> {
    let location = entry(&dictionary.location_table, frame.location)?;
    let is_native = frame_type(dictionary, location) == Some(NATIVE);
    if !location.lines.is_empty() || !is_native || location.mapping_index <= 0 {
        return None;
    }
    let mapping = entry(&dictionary.mapping_table, location.mapping_index)?;
    let address = location.address.checked_sub(frame.is_caller.into())?;
    let within = address.checked_sub(mapping.memory_start)?;
    let offset = within.checked_add(mapping.file_offset)?;
    Some((usize::try_from(location.mapping_index).ok()?, offset))
}

type Names<'n> = HashMap<ModuleKey, HashMap<u64, &'n [Function], RandomState>>;

fn names_of(named: &[NamedModule]) -> Names<'_> {
    let names = named.iter().map(|(module, functions)| {
        let functions = functions.iter().map(Vec::as_slice);
        let offsets = module.offsets.iter().copied().zip(functions);
        (key(module), offsets.collect())
    });
    names.collect()
}

/// Adds names to a message: only its dictionary changes, and comes last.
fn with_names(message: &[u8], names: &Names<'_>) -> Result<Vec<u8>, String> {
    let mut rest = message;
    let mut out = Vec::with_capacity(message.len());
    let mut dictionary = proto::ProfilesDictionary::default();
    while !rest.is_empty() {
        let start = rest;
        let (tag, kind) = decode_key(&mut rest).map_err(|error| error.to_string())?;
        let content = rest;
        let skipped = skip_field(kind, tag, &mut rest, DecodeContext::default());
        skipped.map_err(|error| error.to_string())?;
        if tag == DICTIONARY {
            let content = &content[..content.len() - rest.len()];
            let merged = dictionary.merge_length_delimited(content);
            merged.map_err(|error| error.to_string())?;
        } else {
            out.extend_from_slice(&start[..start.len() - rest.len()]);
        }
    }
    add_names(&mut dictionary, names);
    encode_key(DICTIONARY, WireType::LengthDelimited, &mut out);
    encode_varint(dictionary.encoded_len() as u64, &mut out);
    let encoded = dictionary.encode(&mut out);
    encoded.map_err(|error| error.to_string())?;
    Ok(out)
}

/// The indexes of a dictionary's strings and functions: the data model allows no equal entries.
#[derive(Default)]
struct Interned {
    strings: HashMap<String, i32, RandomState>,
    functions: HashMap<Vec<u8>, i32, RandomState>,
}

fn add_names(dictionary: &mut proto::ProfilesDictionary, names: &Names<'_>) {
    let mut interned = Interned::default();
    for (text, index) in dictionary.string_table.iter().zip(0..) {
        interned.strings.entry(text.clone()).or_insert(index);
    }
    for (function, index) in dictionary.function_table.iter().zip(0..) {
        let key = function.encode_to_vec();
        interned.functions.entry(key).or_insert(index);
    }
    let of_mapping: Vec<_> = (0..dictionary.mapping_table.len())
        .map(|index| names.get(&module_at(dictionary, index)?))
        .collect();
    let zero = dictionary.location_table.first();
    let mut locations: Vec<proto::Location> = zero.into_iter().cloned().collect();
    let mut of_content: HashMap<Vec<u8>, i32, RandomState> = HashMap::default();
    let mut of_frame: HashMap<FrameKey, i32, RandomState> = HashMap::default();
    let mut stacks = std::mem::take(&mut dictionary.stack_table);
    for stack in &mut stacks {
        let frames: Vec<FrameKey> = frames(dictionary, stack).collect();
        for (frame, index) in frames.into_iter().zip(&mut stack.location_indices) {
            if let Some(known) = of_frame.get(&frame) {
                *index = *known;
                continue;
            }
            let Some(location) = entry(&dictionary.location_table, frame.location) else {
                continue;
            };
            let mut location = location.clone();
            let functions = unresolved_address(dictionary, frame).and_then(|(mapping, offset)| {
                let of_module = (*of_mapping.get(mapping)?)?;
                of_module.get(&offset).copied()
            });
            for function in functions.unwrap_or_default() {
                location.lines.push(interned.line(dictionary, function));
            }
            let new = of_content.entry(location.encode_to_vec());
            let new = *new.or_insert_with(|| {
                locations.push(location);
                to_index(locations.len() - 1)
            });
            of_frame.insert(frame, new);
            *index = new;
        }
    }
    (dictionary.stack_table, dictionary.location_table) = (stacks, locations);
}

impl Interned {
    fn line(
        &mut self,
        dictionary: &mut proto::ProfilesDictionary,
        function: &Function,
    ) -> proto::Line {
        let mut string = |text: &str| match self.strings.get(text) {
            Some(index) => *index,
            None => {
                let index = to_index(dictionary.string_table.len());
                dictionary.string_table.push(text.to_owned());
                self.strings.insert(text.to_owned(), index);
                index
            }
        };
        let new = proto::Function {
            name_strindex: string(&function.name),
            system_name_strindex: string(&function.system_name),
            filename_strindex: string(&function.file),
            start_line: 0,
        };
        let table = &mut dictionary.function_table;
        let index = self.functions.entry(new.encode_to_vec());
        let function_index = *index.or_insert_with(|| {
            table.push(new);
            to_index(table.len() - 1)
        });
        proto::Line {
            function_index,
            line: function.line.into(),
            column: function.column.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields that later versions of the format may add were an error unless they had a length.
    #[test]
    fn unknown_fields_are_kept() {
        let mut message = Vec::new();
        for (tag, kind) in [(9, WireType::Varint), (10, WireType::SixtyFourBit)] {
            encode_key(tag, kind, &mut message);
            message.extend([1; 8]);
            if kind == WireType::Varint {
                message.truncate(message.len() - 7);
            }
        }
        encode_key(DICTIONARY, WireType::LengthDelimited, &mut message);
        encode_varint(0, &mut message);
        let written = with_names(&message, &Names::default()).unwrap();
        assert_eq!(written, message);
    }
}
