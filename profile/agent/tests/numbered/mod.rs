//! Messages that tests can tell apart.

use opentelemetry_proto::tonic::profiles::v1development::{
    Profile, ProfilesData, ResourceProfiles, Sample, ScopeProfiles,
};
use prost::Message as _;

/// Encodes a message with this number, and with as many samples. The number is the profile's time: a Collector changes
/// how attributes are encoded.
pub(crate) fn message(number: u64, samples: usize) -> Vec<u8> {
    let sample = |time| Sample {
        timestamps_unix_nano: vec![time],
        ..Sample::default()
    };
    let profile = Profile {
        samples: (1..=samples as u64).map(sample).collect(),
        time_unix_nano: number + 1,
        ..Profile::default()
    };
    let resource_profiles = ResourceProfiles {
        scope_profiles: vec![ScopeProfiles {
            profiles: vec![profile],
            ..ScopeProfiles::default()
        }],
        ..ResourceProfiles::default()
    };
    let data = ProfilesData {
        resource_profiles: vec![resource_profiles],
        ..ProfilesData::default()
    };
    data.encode_to_vec()
}

/// Returns the number of a message.
pub(crate) fn number(data: &ProfilesData) -> u64 {
    let profile = &data.resource_profiles[0].scope_profiles[0].profiles[0];
    profile.time_unix_nano - 1
}
