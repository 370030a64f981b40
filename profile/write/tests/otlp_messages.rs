//! A profile as several OTLP messages: together they say what one says.

mod flat;
mod shop;

use opentelemetry_proto::tonic::profiles::v1development::ProfilesData;
use otelctx_profile::sample::{Event, Found, OffCpu, Sample};
use otelctx_profile::{Format, NoSymbols, Options, Profile, Recording, rules};
use prost::Message as _;

fn whole(profile: &Profile) -> ProfilesData {
    let mut bytes = Vec::new();
    profile
        .write(Format::Otlp, &Options::default(), &mut bytes)
        .unwrap();
    ProfilesData::decode(&bytes[..]).unwrap()
}

/// Samples' times in a message.
fn times(data: &ProfilesData) -> usize {
    let scopes = data
        .resource_profiles
        .iter()
        .flat_map(|resource| &resource.scope_profiles);
    let samples = scopes
        .flat_map(|scope| &scope.profiles)
        .flat_map(|profile| &profile.samples);
    samples
        .map(|sample| sample.timestamps_unix_nano.len())
        .sum()
}

/// The messages of at most `limit` bytes, with everything about each of them checked.
fn messages(profile: &Profile, limit: usize) -> Vec<ProfilesData> {
    let options = Options::default();
    let messages = profile.otlp_messages(&options, limit);
    let decoded = |bytes: Vec<u8>| {
        let data = ProfilesData::decode(&bytes[..]).unwrap();
        assert_eq!(rules::violations(&data), [""; 0], "limit {limit}");
        assert_eq!(rules::missed_by_backends(&data), [""; 0], "limit {limit}");
        assert_eq!(flat::unused(&data), [""; 0], "limit {limit}");
        let size = bytes.len();
        assert!(
            size <= limit || times(&data) == 1,
            "{size} bytes, limit {limit}"
        );
        data
    };
    messages.map(decoded).collect()
}

#[test]
fn messages_of_any_size_have_each_sample_once() {
    let profile = shop::profile();
    let one = whole(&profile);
    let expected = flat::lines([&one]);
    assert_eq!(expected.len(), profile.len());
    let size = one.encoded_len();
    let mut numbers = Vec::new();
    for limit in (0..size + 200).step_by(7) {
        let messages = messages(&profile, limit);
        assert_eq!(flat::lines(&messages), expected, "limit {limit}");
        numbers.push(messages.len());
    }
    assert_eq!((numbers[0], numbers[numbers.len() - 1]), (profile.len(), 1));
    assert_eq!(messages(&profile, usize::MAX), [one]);
}

/// More samples of one stack of one thread in one span than a message holds, and others around them.
fn busy() -> Recording {
    let mut recording = shop::recording();
    let mut samples = Vec::new();
    for sample in &recording.samples {
        let many = match sample.found {
            Found::Attached(_) => 3_000,
            _ => 10,
        };
        samples.extend((0..many).map(|index: u64| {
            let event = match sample.event {
                // Values of one to nine bytes.
                Event::OffCpu(off) => Event::OffCpu(OffCpu {
                    nanoseconds: (1 << (index % 63)) - 1,
                    ..off
                }),
                event => event,
            };
            Sample {
                time: sample.time + index,
                event,
                ..*sample
            }
        }));
    }
    recording.samples = samples;
    recording
}

#[test]
fn looks_that_are_alike_are_divided_where_they_fill_messages() {
    let profile = Profile::new(busy(), &mut shop::Names);
    let expected = flat::lines([&whole(&profile)]);
    assert_eq!(expected.len(), profile.len());
    for limit in [3_000, 20_000, 200_000] {
        let messages = messages(&profile, limit);
        assert!(flat::lines(&messages) == expected, "limit {limit}");
        // Looks alike fill a message, but for where a whole group did not fit any more.
        let most = 2 * whole(&profile).encoded_len() / limit + 10;
        assert!(
            messages.len() <= most,
            "{} messages of {limit}",
            messages.len()
        );
    }
}

/// Locations that all stacks have are the last ones by address: with two bytes for each of them, messages would be too large.
#[test]
fn messages_are_not_too_large_because_of_the_order_of_locations() {
    let mut recording = shop::recording();
    let first = recording.samples[0];
    let common: Vec<u64> = (0..40).map(|it| shop::CODE + 0x900 + it).collect();
    let samples = (0..300).map(|it| {
        let stack = [&common[..], &[shop::CODE + it]].concat();
        Sample {
            time: first.time + it,
            user_stack: recording.catalog.native_stack(&stack),
            ..first
        }
    });
    recording.samples = samples.collect();
    let profile = Profile::new(recording, &mut shop::Names);
    let one = whole(&profile);
    let dictionary = one.dictionary.as_ref().unwrap();
    assert_eq!(dictionary.location_table.len(), 1 + 40 + 300);
    let expected = flat::lines([&one]);
    let size = one.encoded_len();
    for limit in (size - 12_000..size).step_by(400) {
        let messages = messages(&profile, limit);
        assert_eq!(flat::lines(&messages), expected, "limit {limit}");
    }
}

#[test]
fn without_samples_there_is_no_message() {
    let mut recording = shop::recording();
    recording.samples.clear();
    let profile = Profile::new(recording, &mut NoSymbols);
    assert_eq!(messages(&profile, 1 << 20), []);
}
