//! Splits a profile into several messages if one would be larger than the receiver accepts. Each
//! has its own dictionary, with the entries that its samples use. The same tables first determine
//! how many groups fit, and then write the message.

use opentelemetry_proto::tonic::profiles::v1development as proto;
use otelctx_sample::Sample;
use prost::Message;
use prost::encoding::encoded_len_varint;

use super::tables::Tables;
use super::{Order, fill, profile_message, resource_message, scope_message, value, write_groups};
use crate::{Group, Options, Profile};

/// The maximum size of a field's key (a byte up to field 15) and length (32 bits, seven per byte).
const FIELD_HEAD: usize = 1 + 5;

/// The messages of [`Profile::otlp_messages`].
pub struct OtlpMessages<'p> {
    profile: &'p Profile,
    options: &'p Options,
    limit: usize,
    groups: Box<dyn Iterator<Item = Group<'p>> + 'p>,
    /// The group that did not fit into the previous message.
    waiting: Option<Group<'p>>,
    samples: usize,
}

impl OtlpMessages<'_> {
    /// Returns the number of samples in the message that was returned last.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.samples
    }
}

impl Profile {
    /// Encodes this profile as OTLP messages of at most `limit` bytes. Each is a complete
    /// `ProfilesData`, which is also an `ExportProfilesServiceRequest`, with its own dictionary.
    /// Each sample is in exactly one of them; without samples there are none.
    ///
    /// A message exceeds `limit` if a single sample does, with its stack, attributes and resource.
    #[must_use]
    pub fn otlp_messages<'p>(&'p self, options: &'p Options, limit: usize) -> OtlpMessages<'p> {
        OtlpMessages {
            profile: self,
            options,
            limit,
            groups: Box::new(self.groups()),
            waiting: None,
            samples: 0,
        }
    }
}

impl Iterator for OtlpMessages<'_> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let groups = self.fitting();
        if groups.is_empty() {
            return None;
        }
        self.samples = groups.iter().map(|group| group.samples.len()).sum();
        let write = |order| {
            let mut bytes = Vec::new();
            let written = write_groups(self.profile, &groups, order, self.options, &mut bytes);
            written.expect("a Vec grows");
            bytes
        };
        let bytes = write(Order::Similar);
        // Entries with other numbers have other sizes: what fits was determined in the order of samples.
        if bytes.len() > self.limit {
            return Some(write(Order::Samples));
        }
        Some(bytes)
    }
}

impl<'p> OtlpMessages<'p> {
    /// Takes the next groups that fit into a message, at least one. Splits too large ones.
    fn fitting(&mut self) -> Vec<Group<'p>> {
        let mut size = Size::new(self.profile, self.options);
        let mut fitting: Vec<Group<'p>> = Vec::new();
        while let Some(group) = self.waiting.take().or_else(|| self.groups.next()) {
            size.add(fitting.last(), &group);
            let room = self.limit.saturating_sub(size.bytes());
            let count = leading(group.samples, room);
            if count == group.samples.len() {
                size.outside_tables += group.samples.iter().map(size_of).sum::<usize>();
                fitting.push(group);
                continue;
            }
            if fitting.is_empty() {
                let (first, rest) = group.samples.split_at(count.max(1));
                fitting.push(Group {
                    samples: first,
                    ..group
                });
                self.waiting = (!rest.is_empty()).then_some(Group {
                    samples: rest,
                    ..group
                });
            } else {
                self.waiting = Some(group);
            }
            break;
        }
        fitting
    }
}

/// Returns the size of a sample's value (a varint, if it has one) and time (eight bytes).
fn size_of(sample: &Sample) -> usize {
    value(sample).map_or(0, |value| encoded_len_varint(value.cast_unsigned())) + 8
}

/// Returns the number of leading `samples` that fit into `room` bytes.
fn leading(samples: &[Sample], room: usize) -> usize {
    let sizes = samples.iter().scan(0, |sum, sample| {
        *sum += size_of(sample);
        Some(*sum)
    });
    sizes.take_while(|sum| *sum <= room).count()
}

/// An upper bound of the size of a message being built.
struct Size<'p> {
    profile: &'p Profile,
    options: &'p Options,
    tables: Tables<'p>,
    outside_tables: usize,
    sample: proto::Sample,
}

impl<'p> Size<'p> {
    fn new(profile: &'p Profile, options: &'p Options) -> Self {
        Self {
            profile,
            options,
            tables: Tables::new(profile, &options.attribute_prefix),
            outside_tables: FIELD_HEAD,
            sample: proto::Sample::default(),
        }
    }

    fn bytes(&self) -> usize {
        self.outside_tables + self.tables.encoded_len()
    }

    /// Adds a group without its samples' values and times; `before` is the previous group.
    fn add(&mut self, before: Option<&Group<'p>>, group: &Group<'p>) {
        let same_process = before.is_some_and(|before| before.process == group.process);
        if !same_process {
            let resource =
                resource_message(self.profile, group.process, self.options).encoded_len();
            self.outside_tables += 2 * FIELD_HEAD + resource + scope_message().encoded_len();
        }
        if !same_process || before.is_some_and(|before| before.kind != group.kind) {
            let message = profile_message(self.profile, group.kind, &mut self.tables);
            self.outside_tables += FIELD_HEAD + message.encoded_len();
        }
        let nothing_yet = Group {
            samples: &[],
            ..*group
        };
        let (profile, tables) = (self.profile, &mut self.tables);
        fill(&mut self.sample, profile, &nothing_yet, tables);
        // The heads of the sample, its values and its times.
        self.outside_tables += 3 * FIELD_HEAD + self.sample.encoded_len();
    }
}
