//! How much memory an OTLP file takes once it is decoded, found out before it is: two bytes of a file
//! can stand for a message of a hundred bytes, and whoever made the file need not mean well.

use opentelemetry_proto::tonic::common::v1 as common;
use opentelemetry_proto::tonic::profiles::v1development as profiles;
use opentelemetry_proto::tonic::resource::v1::Resource;

use crate::messages::Messages;

/// The most of a file that is read, in bytes.
pub(crate) const MOST_FILE: u64 = 1 << 30;
/// The most that its messages may take, in bytes, as they are counted here. 4.2 million samples (64
/// processors for eleven minutes at 99 Hz), each in a span of its own, are counted as 3.2 GiB and took
/// 1.8 GiB with all that is held beside them; 20 to a span, they are counted as 284 MiB and took 204 MiB.
const MOST_MEMORY: usize = 4 << 30;
/// Messages in messages, as deep as prost itself goes.
const DEEPEST: u32 = 100;
/// What a list or text takes beside what is in it, at least: itself, and the allocator's smallest
/// pieces.
const LEAST: usize = 64;

/// A message, by what it can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Data,
    Dictionary,
    Location,
    Attribute,
    ResourceProfiles,
    Resource,
    ScopeProfiles,
    Scope,
    Profile,
    Sample,
    Value,
    Values,
    KeyValues,
    KeyValue,
    /// One that holds no other.
    Flat,
}

/// What a field of a message holds that has a length.
enum Field {
    /// A message, which takes so many bytes.
    Message(Kind, usize),
    /// Text, or bytes.
    Text,
    /// Integers, of which one byte of the file may be a whole one.
    Integers(usize),
    /// Integers that take as much of the file as of memory.
    Fixed,
}

fn field(kind: Kind, number: u64) -> Field {
    use Field::{Fixed, Integers, Message};
    match (kind, number) {
        (Kind::Data, 1) => Message(
            Kind::ResourceProfiles,
            size_of::<profiles::ResourceProfiles>(),
        ),
        (Kind::Data, 2) => Message(Kind::Dictionary, size_of::<profiles::ProfilesDictionary>()),
        (Kind::Dictionary, 1) => Message(Kind::Flat, size_of::<profiles::Mapping>()),
        (Kind::Dictionary, 2) => Message(Kind::Location, size_of::<profiles::Location>()),
        (Kind::Dictionary, 3) => Message(Kind::Flat, size_of::<profiles::Function>()),
        (Kind::Dictionary, 4) => Message(Kind::Flat, size_of::<profiles::Link>()),
        (Kind::Dictionary, 6) => Message(Kind::Attribute, size_of::<profiles::KeyValueAndUnit>()),
        (Kind::Dictionary, 7) => Message(Kind::Flat, size_of::<profiles::Stack>()),
        (Kind::Location, 3) => Message(Kind::Flat, size_of::<profiles::Line>()),
        (Kind::Attribute | Kind::KeyValue, 2) => {
            Message(Kind::Value, size_of::<common::AnyValue>())
        }
        (Kind::ResourceProfiles, 1) => Message(Kind::Resource, size_of::<Resource>()),
        (Kind::ResourceProfiles, 2) => {
            Message(Kind::ScopeProfiles, size_of::<profiles::ScopeProfiles>())
        }
        (Kind::Resource, 1) | (Kind::Scope, 3) | (Kind::KeyValues, 1) => {
            Message(Kind::KeyValue, size_of::<common::KeyValue>())
        }
        (Kind::Resource, 3) => Message(Kind::Flat, size_of::<common::EntityRef>()),
        (Kind::ScopeProfiles, 1) => Message(Kind::Scope, size_of::<common::InstrumentationScope>()),
        (Kind::ScopeProfiles, 2) => Message(Kind::Profile, size_of::<profiles::Profile>()),
        (Kind::Profile, 2) => Message(Kind::Sample, size_of::<profiles::Sample>()),
        (Kind::Sample, 4) => Integers(size_of::<u64>()),
        (Kind::Sample, 5) => Fixed,
        (Kind::Sample, _) | (Kind::Profile, 11) => Integers(size_of::<i32>()),
        (Kind::Location, _) | (Kind::Flat, 5) => Integers(size_of::<i32>()),
        // Of a stack its locations; a link's ids take less than is counted so.
        (Kind::Flat, 1) => Integers(size_of::<i32>()),
        (Kind::Value, 5) => Message(Kind::Values, size_of::<common::ArrayValue>()),
        (Kind::Value, 6) => Message(Kind::KeyValues, size_of::<common::KeyValueList>()),
        (Kind::Values, 1) => Message(Kind::Value, size_of::<common::AnyValue>()),
        _ => Field::Text,
    }
}

/// Whether the messages of a file may be decoded. Not whether that succeeds: what is malformed is left
/// to the decoder.
///
/// # Errors
///
/// A sentence that says why not.
pub(crate) fn check(messages: Messages<'_>) -> Result<(), String> {
    match takes_less(messages, MOST_MEMORY) {
        true => Ok(()),
        false => Err(format!(
            "it would take more than {} GiB of memory",
            MOST_MEMORY >> 30
        )),
    }
}

fn takes_less(messages: Messages<'_>, most: usize) -> bool {
    let mut left = most;
    // A list has room for twice as many while it grows.
    let each = 2 * size_of::<profiles::ProfilesData>();
    messages.map_while(Result::ok).all(|message| {
        left = left.saturating_sub(each);
        walk(message, Kind::Data, DEEPEST, &mut left)
    })
}

/// Takes what a message's fields take from what is `left`; false if that is not enough.
fn walk(mut message: &[u8], kind: Kind, depth: u32, left: &mut usize) -> bool {
    while let Some(key) = varint(&mut message) {
        // https://protobuf.dev/programming-guides/encoding: the wire types.
        let (content, is_whole) = match key & 7 {
            // A single number, which may be one of a list.
            0 => (0, varint(&mut message).is_some()),
            1 => (0, skip(&mut message, 8).is_some()),
            5 => (0, skip(&mut message, 4).is_some()),
            2 => {
                let length = varint(&mut message).and_then(|length| usize::try_from(length).ok());
                let Some(bytes) = length.and_then(|length| skip(&mut message, length)) else {
                    return true;
                };
                let taken = match field(kind, key >> 3) {
                    // A list has room for twice as many while it grows.
                    Field::Message(inner, size) => {
                        let is_deep = depth == 0;
                        if !is_deep && !walk(bytes, inner, depth - 1, left) {
                            return false;
                        }
                        2 * size
                    }
                    Field::Text => LEAST + bytes.len(),
                    Field::Integers(size) => LEAST + 2 * size * bytes.len(),
                    Field::Fixed => LEAST + 2 * bytes.len(),
                };
                (taken, true)
            }
            // The ends of a group, which the decoder skips to go on behind it. What is in it is
            // counted as if it were not in one.
            3 | 4 => (0, true),
            _ => return true,
        };
        if !is_whole {
            return true;
        }
        let single = if key & 7 == 2 {
            0
        } else {
            2 * size_of::<u64>()
        };
        match left.checked_sub(content + single) {
            Some(less) => *left = less,
            None => return false,
        }
    }
    true
}

fn skip<'m>(message: &mut &'m [u8], length: usize) -> Option<&'m [u8]> {
    let (skipped, rest) = message.split_at_checked(length)?;
    *message = rest;
    Some(skipped)
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = skip(message, 1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn less(file: &[u8], most: usize) -> bool {
        takes_less(Messages::new(file), most)
    }

    fn checked(file: &[u8]) -> Result<(), String> {
        check(Messages::new(file))
    }

    /// A message with `number` as often as `content` has it.
    fn repeated(number: u8, content: &[u8], times: usize) -> Vec<u8> {
        let mut one = vec![number << 3 | 2];
        let mut length = content.len();
        while length >= 0x80 {
            one.push((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        one.push(length as u8);
        one.extend_from_slice(content);
        one.repeat(times)
    }

    #[test]
    fn many_small_messages_are_refused_before_they_are_decoded() {
        const MOST: usize = 1 << 20;
        let samples = |samples: &[u8]| {
            let scope = repeated(2, &repeated(2, samples, 1), 1);
            repeated(1, &scope, 1)
        };
        let few = samples(&repeated(2, &[], 1000));
        assert!(less(&few, MOST));
        assert!(!less(&samples(&repeated(2, &[], 8 << 10)), MOST));
        // Names of nothing, in the dictionary.
        let many = repeated(2, &repeated(5, &[], 17 << 10), 1);
        assert!(!less(&many, MOST));
        // Integers of one byte each: together, and one after the other.
        let integers = repeated(4, &vec![1; 70 << 10], 1);
        assert!(!less(&samples(&repeated(2, &integers, 1)), MOST));
        let integers = [4 << 3, 1].repeat(70 << 10);
        assert!(!less(&samples(&repeated(2, &integers, 1)), MOST));
        // Those of eight bytes each.
        let times = |bytes: usize| samples(&repeated(2, &repeated(5, &vec![1; bytes], 1), 1));
        assert!(less(&times(400 << 10), MOST));
        assert!(!less(&times(520 << 10), MOST));
        assert_eq!(checked(&few), Ok(()));
        // Behind a group of an unknown field, which is skipped.
        let group = [15 << 3 | 3, 15 << 3 | 4];
        let data = [&group[..], &many].concat();
        let decoded = <profiles::ProfilesData as prost::Message>::decode(&data[..]);
        assert_eq!(
            decoded.unwrap().dictionary.unwrap().string_table.len(),
            17 << 10
        );
        assert!(!less(&data, MOST));
    }

    #[test]
    fn what_is_malformed_or_deep_is_left_to_the_decoder() {
        let mut deep = Vec::new();
        for _ in 0..300 {
            // A value that is an array of a value.
            deep = repeated(5, &repeated(1, &deep, 1), 1);
        }
        let resource = repeated(1, &repeated(2, &deep, 1), 1);
        let whole = repeated(1, &repeated(1, &resource, 1), 1);
        assert_eq!(checked(&whole), Ok(()));
        for cut in 0..64 {
            assert_eq!(checked(&whole[..cut]), Ok(()));
        }
        assert_eq!(checked(&[0xff; 32]), Ok(()));
    }
}
