//! OTLP as the official messages read it.

mod shop;

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development::{
    Profile as Message, ProfilesData, ProfilesDictionary, Sample, ValueType,
};
use otelctx_profile::{Format, NoSymbols, Options, Profile, rules};
use prost::Message as _;

use shop::{PERIOD, START_UNIX};

fn written(profile: &Profile, options: &Options) -> ProfilesData {
    let mut bytes = Vec::new();
    profile.write(Format::Otlp, options, &mut bytes).unwrap();
    let data = ProfilesData::decode(&bytes[..]).unwrap();
    // Nothing that the messages don't know, and nothing encoded twice.
    assert_eq!(data.encoded_len(), bytes.len());
    data
}

fn string(dictionary: &ProfilesDictionary, index: i32) -> &str {
    &dictionary.string_table[index as usize]
}

fn types(dictionary: &ProfilesDictionary, found: Option<ValueType>) -> Option<(&str, &str)> {
    let found = found?;
    Some((
        string(dictionary, found.type_strindex),
        string(dictionary, found.unit_strindex),
    ))
}

fn attributes<'d>(
    dictionary: &'d ProfilesDictionary,
    indices: &[i32],
) -> BTreeMap<&'d str, String> {
    let text = |index: &i32| {
        let attribute = &dictionary.attribute_table[*index as usize];
        let value = match attribute.value.as_ref().unwrap().value.as_ref().unwrap() {
            Value::StringValue(text) => text.clone(),
            Value::IntValue(number) => number.to_string(),
            other => panic!("{other:?}"),
        };
        (string(dictionary, attribute.key_strindex), value)
    };
    indices.iter().map(text).collect()
}

/// Names from the innermost function on; addresses where there are none.
fn stack(dictionary: &ProfilesDictionary, sample: &Sample) -> Vec<String> {
    let stack = &dictionary.stack_table[sample.stack_index as usize];
    let mut names = Vec::new();
    for index in &stack.location_indices {
        let location = &dictionary.location_table[*index as usize];
        for line in &location.lines {
            let function = &dictionary.function_table[line.function_index as usize];
            let name = string(dictionary, function.name_strindex);
            names.push(format!("{name}:{}", line.line));
        }
        if location.lines.is_empty() {
            names.push(format!("{:#x}", location.address));
        }
    }
    names
}

/// A sample as text: attributes, span (first byte), stack, number of times, values.
type Described = (String, u8, String, usize, Vec<i64>);

fn described(dictionary: &ProfilesDictionary, sample: &Sample) -> Described {
    let attributes = attributes(dictionary, &sample.attribute_indices);
    let attributes: Vec<_> = attributes
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let link = &dictionary.link_table[sample.link_index as usize];
    (
        attributes.join(" "),
        link.span_id.first().copied().unwrap_or(0),
        stack(dictionary, sample).join(" "),
        sample.timestamps_unix_nano.len(),
        sample.values.clone(),
    )
}

fn profiles(data: &ProfilesData, resource: usize) -> &[Message] {
    let [scope] = &data.resource_profiles[resource].scope_profiles[..] else {
        panic!("one scope")
    };
    assert_eq!(scope.scope.as_ref().unwrap().name, "otelctx");
    &scope.profiles
}

#[test]
fn samples_stay_apart_in_thread_span_and_attributes() {
    let data = written(&shop::profile(), &Options::default());
    let dictionary = data.dictionary.as_ref().unwrap();
    let [on, off] = profiles(&data, 0) else {
        panic!("two kinds")
    };
    let described = |profile: &Message| -> Vec<_> {
        profile
            .samples
            .iter()
            .map(|sample| described(dictionary, sample))
            .collect()
    };
    let parse = "parse:7 serve:21 main:10";
    let worker = |number: u8, route: &str| {
        format!(
            "cpu.logical_number=0 http.route={route} thread.id=471{} thread.name=worker-{number}",
            number + 1
        )
    };
    let mut samples = described(on);
    samples.sort();
    let mut expected = vec![
        (worker(1, "/cart"), 1, parse.to_owned(), 4, vec![]),
        (worker(1, "/cart"), 2, parse.to_owned(), 2, vec![]),
        (worker(1, "/pay"), 1, parse.to_owned(), 1, vec![]),
        (worker(2, "/cart"), 1, parse.to_owned(), 1, vec![]),
        (
            "cpu.logical_number=0 thread.id=4713 thread.name=worker-2".to_owned(),
            0,
            "do_syscall_64:0 serve:20 main:10".to_owned(),
            2,
            vec![],
        ),
        (
            "cpu.logical_number=0 process.context.label.thread.name=mine thread.id=4713 \
             thread.name=worker-2"
                .to_owned(),
            0,
            "main:10".to_owned(),
            1,
            vec![],
        ),
    ];
    expected.sort();
    assert_eq!(samples, expected);
    assert_eq!(
        described(off),
        [(
            worker(2, "/cart") + " thread.state=asleep",
            1,
            "do_syscall_64:0".to_owned(),
            1,
            vec![7_000_000]
        )]
    );
}

#[test]
fn profiles_say_what_they_count() {
    let data = written(&shop::profile(), &Options::default());
    let dictionary = data.dictionary.as_ref().unwrap();
    let [on, off] = profiles(&data, 0) else {
        panic!("two kinds")
    };
    assert_eq!(
        types(dictionary, on.sample_type),
        Some(("samples", "count"))
    );
    assert_eq!(
        types(dictionary, on.period_type),
        Some(("cpu", "nanoseconds"))
    );
    assert_eq!(on.period, PERIOD as i64);
    assert_eq!(
        types(dictionary, off.sample_type),
        Some(("off_cpu", "nanoseconds"))
    );
    assert_eq!((types(dictionary, off.period_type), off.period), (None, 0));
    for profile in [on, off] {
        assert_eq!(profile.time_unix_nano, START_UNIX);
        assert_eq!(profile.duration_nano, 1_000_000_000);
    }
    let cart = &on.samples[0];
    let at = |index: u64| START_UNIX + index * PERIOD;
    assert_eq!(cart.timestamps_unix_nano, [at(0), at(1), at(3), at(4)]);
}

#[test]
fn each_process_is_a_resource() {
    let data = written(&shop::profile(), &Options::default());
    let resource = |index: usize| -> Vec<(String, Option<Value>)> {
        let resource = data.resource_profiles[index].resource.as_ref().unwrap();
        let pair = |attribute: &opentelemetry_proto::tonic::common::v1::KeyValue| {
            (
                attribute.key.clone(),
                attribute.value.clone().unwrap().value,
            )
        };
        resource.attributes.iter().map(pair).collect()
    };
    let text =
        |key: &str, value: &str| (key.to_owned(), Some(Value::StringValue(value.to_owned())));
    let shop = resource(0);
    assert_eq!(shop[0], text("service.name", "shop"));
    assert_eq!(shop[1].0, "zones");
    assert_eq!(
        shop[2],
        ("process.pid".to_owned(), Some(Value::IntValue(4711)))
    );
    assert_eq!(shop[3], text("process.executable.name", "shop"));
    assert_eq!(shop[4], text("process.executable.path", "/usr/bin/shop"));
    assert_eq!(shop[5], text("container.id", "c0ffee"));
    assert_eq!(shop.len(), 6);
    let other = resource(1);
    assert_eq!(
        other[0],
        ("process.pid".to_owned(), Some(Value::IntValue(9)))
    );
    assert_eq!(other[1], text("service.name", "unknown_service:other"));
    assert_eq!(data.resource_profiles.len(), 2);
}

#[test]
fn a_service_that_only_the_environment_names_is_marked() {
    for (published, name, is_marked) in [
        (false, "cart", true),
        (true, "cart", false),
        (false, "unknown_service:shop", false),
    ] {
        let mut recording = shop::recording();
        let shop = recording.samples[0].thread;
        let shop = recording.catalog.thread_facts(shop).process;
        let facts = recording.catalog.process_mut(shop);
        facts.resource = vec![("service.name".into(), name.into())];
        facts.published = published;
        let profile = Profile::new(recording, &mut NoSymbols);
        let data = written(&profile, &Options::default());
        let resource = data.resource_profiles[0].resource.as_ref().unwrap();
        let value = |key: &str| {
            let found = resource.attributes.iter().find(|it| it.key == key);
            found.map(|it| it.value.clone().unwrap().value.unwrap())
        };
        let name = Value::StringValue(name.to_owned());
        assert_eq!(value("service.name"), Some(name));
        let mark = is_marked.then_some(Value::BoolValue(true));
        assert_eq!(value("otelctx.resource.detected"), mark, "{published}");
    }
}

/// As a program that publishes calls itself: the command name would be cut to 15 bytes.
#[test]
fn a_service_without_a_name_goes_by_its_executable() {
    let service = |executable: &str, comm: &str| {
        let mut recording = shop::recording();
        let sample = recording.samples.last().unwrap();
        let other = recording.catalog.thread_facts(sample.thread).process;
        let facts = recording.catalog.process_mut(other);
        (facts.executable, facts.comm) = (executable.into(), comm.into());
        let data = written(
            &Profile::new(recording, &mut NoSymbols),
            &Options::default(),
        );
        let resource = data.resource_profiles[1].resource.clone().unwrap();
        let named = |key: &str| {
            let found = resource.attributes.iter().find(|it| it.key == key);
            match found.map(|it| it.value.clone().unwrap().value.unwrap()) {
                Some(Value::StringValue(text)) => Some(text),
                None => None,
                other => panic!("{other:?}"),
            }
        };
        let service = named("service.name").unwrap();
        (service, named("process.executable.name"))
    };
    let expected = |service: &str, name: Option<&str>| (service.to_owned(), name.map(Into::into));
    let name = "payment-service-worker";
    let known = expected("unknown_service:payment-service-worker", Some(name));
    assert_eq!(
        service("/opt/payment-service-worker", "payment-service"),
        known
    );
    let removed = "/opt/payment-service-worker (deleted)";
    assert_eq!(service(removed, "payment-service"), known);
    let thread_of_the_kernel = expected("unknown_service:kworker/0:1", None);
    assert_eq!(service("", "kworker/0:1"), thread_of_the_kernel);
}

#[test]
fn mappings_can_be_identified_and_hold_their_addresses() {
    let data = written(&shop::profile(), &Options::default());
    let dictionary = data.dictionary.as_ref().unwrap();
    let mappings: Vec<_> = dictionary.mapping_table[1..]
        .iter()
        .map(|mapping| {
            (
                string(dictionary, mapping.filename_strindex),
                attributes(dictionary, &mapping.attribute_indices),
                mapping.file_offset,
            )
        })
        .collect();
    let gnu = ("process.executable.build_id.gnu", "dead".to_owned());
    let hash = ("process.executable.build_id.htlhash", "ab".repeat(16));
    let file = ("/usr/bin/shop", BTreeMap::from([gnu, hash]), 0x1000);
    let kernel = ("[kernel]", BTreeMap::new(), 0);
    assert!(
        mappings.contains(&file) && mappings.contains(&kernel),
        "{mappings:?}"
    );
    assert_eq!(mappings.len(), 2);
    let kinds: Vec<_> = dictionary.location_table[1..]
        .iter()
        .map(|location| {
            attributes(dictionary, &location.attribute_indices)["profile.frame.type"].clone()
        })
        .collect();
    assert_eq!(kinds.iter().filter(|kind| *kind == "kernel").count(), 1);
    assert_eq!(
        kinds.iter().filter(|kind| *kind == "native").count(),
        kinds.len() - 1
    );
}

/// Compression leaves less of them.
#[test]
fn similar_stacks_and_locations_are_beside_each_other() {
    let data = written(&shop::profile(), &Options::default());
    let dictionary = data.dictionary.as_ref().unwrap();
    let locations = dictionary.location_table.iter();
    let places: Vec<_> = locations.map(|it| (it.mapping_index, it.address)).collect();
    assert!(places.len() > 3 && places.is_sorted(), "{places:?}");
    let stacks = dictionary.stack_table.iter();
    let from_the_start: Vec<Vec<i32>> = stacks
        .map(|it| it.location_indices.iter().rev().copied().collect())
        .collect();
    assert!(
        from_the_start.len() > 3 && from_the_start.is_sorted(),
        "{from_the_start:?}"
    );
}

/// The same file, mapped at another address by another process.
#[test]
fn processes_share_the_locations_of_a_file() {
    let mut recording = shop::recording();
    let first = recording.samples[0];
    let process = recording.catalog.thread_facts(first.thread).process;
    let mut copy = recording.catalog.process(process).clone();
    let moved = 0x7f00_0000_0000 - copy.mappings[0].start;
    copy.pid = 4720;
    for mapping in &mut copy.mappings {
        mapping.start += moved;
        mapping.end += moved;
    }
    let copy = recording.catalog.add_process(copy);
    let frames = recording.catalog.frames(first.user_stack);
    let addresses: Vec<u64> = frames
        .filter_map(|frame| Some(frame.address()? + moved))
        .collect();
    let sample = otelctx_sample::Sample {
        cpu: 3,
        thread: recording.catalog.thread(copy, 4720, "worker-1"),
        user_stack: recording.catalog.native_stack(&addresses),
        ..first
    };
    recording.samples = vec![first, sample];
    let profile = Profile::new(recording, &mut shop::Names);
    let data = written(&profile, &Options::default());
    assert_eq!(rules::violations(&data), [""; 0]);
    assert_eq!(rules::missed_by_backends(&data), [""; 0]);
    let dictionary = data.dictionary.as_ref().unwrap();
    // Beside the zero value.
    assert_eq!(dictionary.mapping_table.len(), 2);
    assert_eq!(dictionary.stack_table.len(), 2);
    assert_eq!(dictionary.location_table.len(), 1 + addresses.len());
    let resources = data.resource_profiles.iter();
    let samples = resources.map(|it| &it.scope_profiles[0].profiles[0].samples[0]);
    let shown: Vec<_> = samples
        .map(|sample| {
            let cpu = &attributes(dictionary, &sample.attribute_indices)["cpu.logical_number"];
            (sample.stack_index, cpu.clone())
        })
        .collect();
    assert_eq!(shown, [(1, "0".to_owned()), (1, "3".to_owned())]);
    let mapping = &dictionary.mapping_table[1];
    let (start, end) = (mapping.memory_start, mapping.memory_limit);
    assert_eq!((start, end, mapping.file_offset), (0x1000, 0x2000, 0x1000));
    let innermost = dictionary.stack_table[1].location_indices[0];
    let address = dictionary.location_table[innermost as usize].address;
    assert_eq!(address, addresses[0] - moved - shop::CODE + 0x1000);
}

#[test]
fn the_version_of_the_semantic_conventions_is_there_where_it_is_known() {
    let data = written(&shop::profile(), &Options::default());
    let url = "https://opentelemetry.io/schemas/1.42.0";
    // The first process publishes attributes, of a version that nobody knows.
    let urls: Vec<&str> = data
        .resource_profiles
        .iter()
        .map(|it| {
            assert_eq!(it.scope_profiles[0].schema_url, url);
            &it.schema_url[..]
        })
        .collect();
    assert_eq!(urls, ["", url]);
}

#[test]
fn what_is_written_keeps_the_rules() {
    for profile in [
        shop::profile(),
        Profile::new(shop::recording(), &mut NoSymbols),
    ] {
        let data = written(&profile, &Options::default());
        assert_eq!(rules::violations(&data), [""; 0]);
    }
    let data = written(&shop::profile(), &Options::default());
    assert_eq!(rules::missed_by_backends(&data), [""; 0]);
    let mut empty = shop::recording();
    empty.samples.clear();
    let data = written(&Profile::new(empty, &mut NoSymbols), &Options::default());
    assert_eq!(rules::violations(&data), [""; 0]);
    assert_eq!(data.resource_profiles, []);
}

#[test]
fn upstreams_attribute_names_can_be_had() {
    let mut options = Options::default();
    options.attribute_prefix = "process.context.label.".to_owned();
    let data = written(&shop::profile(), &options);
    let dictionary = data.dictionary.as_ref().unwrap();
    let sample = &profiles(&data, 0)[0].samples[0];
    let attributes = attributes(dictionary, &sample.attribute_indices);
    assert_eq!(attributes["process.context.label.http.route"], "/cart");
    assert_eq!(attributes["thread.name"], "worker-1");
}

/// Each rule finds what breaks it, and nothing else does.
#[test]
fn a_broken_rule_is_found() {
    let good = written(&shop::profile(), &Options::default());
    let broken = |what: &str, change: &dyn Fn(&mut ProfilesData)| {
        let mut data = good.clone();
        change(&mut data);
        let found = rules::violations(&data);
        assert!(
            found.iter().any(|rule| rule.contains(what)),
            "{what}: {found:?}"
        );
    };
    fn dictionary(data: &mut ProfilesData) -> &mut ProfilesDictionary {
        data.dictionary.as_mut().unwrap()
    }
    fn sample(data: &mut ProfilesData) -> &mut Sample {
        &mut data.resource_profiles[0].scope_profiles[0].profiles[0].samples[0]
    }
    fn profile(data: &mut ProfilesData) -> &mut Message {
        &mut data.resource_profiles[0].scope_profiles[0].profiles[0]
    }
    broken("no dictionary", &|data| data.dictionary = None);
    broken("entry 0 of the string table", &|data| {
        dictionary(data).string_table[0] = "x".into()
    });
    broken("entry 0 of the attribute table", &|data| {
        let table = &mut dictionary(data).attribute_table;
        table[0].value = table[1].value.clone();
    });
    broken("entry 0 of the link table", &|data| {
        dictionary(data).link_table.clear()
    });
    broken("occurs twice", &|data| {
        let entry = dictionary(data).stack_table[1].clone();
        dictionary(data).stack_table.push(entry);
    });
    broken("all-zero ID", &|data| {
        dictionary(data).link_table[1].span_id = vec![0; 8]
    });
    broken("ids of (15, 8) bytes", &|data| {
        dictionary(data).link_table[1].trace_id.truncate(15)
    });
    broken("attribute has no name", &|data| {
        dictionary(data).attribute_table[1].key_strindex = 0
    });
    broken("attribute has no value", &|data| {
        dictionary(data).attribute_table[1].value = None
    });
    broken("not in its mapping", &|data| {
        let mut locations = dictionary(data).location_table.iter_mut();
        locations.find(|it| it.mapping_index > 0).unwrap().address = 1
    });
    broken("mapping has no size", &|data| {
        dictionary(data).mapping_table[1].memory_limit = 0
    });
    broken("a line's function", &|data| {
        let mut locations = dictionary(data).location_table.iter_mut();
        let named = locations.find(|it| !it.lines.is_empty()).unwrap();
        named.lines[0].function_index = -1;
    });
    broken("a stack's location", &|data| {
        dictionary(data).stack_table[1].location_indices[0] = 99;
    });
    broken("a function's name", &|data| {
        dictionary(data).function_table[1].name_strindex = 999
    });
    broken("a sample's link", &|data| sample(data).link_index = 99);
    broken("a sample's stack", &|data| sample(data).stack_index = 99);
    broken("one attribute twice", &|data| {
        let first = sample(data).attribute_indices[0];
        sample(data).attribute_indices.push(first);
    });
    broken("no value and no time", &|data| {
        *sample(data) = Sample::default()
    });
    broken("3 values at 4 times", &|data| {
        sample(data).values = vec![1; 3]
    });
    broken("is not in the profile's", &|data| {
        sample(data).timestamps_unix_nano[0] = START_UNIX - 1
    });
    broken("is not in the profile's", &|data| {
        sample(data).timestamps_unix_nano[0] = START_UNIX + 1_000_000_000;
    });
    broken("differ only in time", &|data| {
        let copy = sample(data).clone();
        profile(data).samples.push(copy);
    });
    broken("no sample type", &|data| profile(data).sample_type = None);
    broken("period type and no period", &|data| {
        profile(data).period = 0
    });
    broken("service.name twice", &|data| {
        let resource = data.resource_profiles[0].resource.as_mut().unwrap();
        let copy = resource.attributes[0].clone();
        resource.attributes.push(copy);
    });
    broken("threadlocal.x, which is not telemetry", &|data| {
        let resource = data.resource_profiles[0].resource.as_mut().unwrap();
        resource.attributes[0].key = "threadlocal.x".into();
    });
}

/// What [`a_broken_rule_is_found`] holds of the data model's rules.
#[test]
fn what_a_backend_misses_is_found() {
    let good = written(&shop::profile(), &Options::default());
    let missed = |what: &str, change: &dyn Fn(&mut ProfilesData)| {
        let mut data = good.clone();
        change(&mut data);
        let found = rules::missed_by_backends(&data);
        assert!(
            found.iter().any(|rule| rule.contains(what)),
            "{what}: {found:?}"
        );
    };
    fn dictionary(data: &mut ProfilesData) -> &mut ProfilesDictionary {
        data.dictionary.as_mut().unwrap()
    }
    fn profile(data: &mut ProfilesData, kind: usize) -> &mut Message {
        &mut data.resource_profiles[0].scope_profiles[0].profiles[kind]
    }
    /// Another value for a mapping's id.
    fn identify(data: &mut ProfilesData, name: &str, value: Value) {
        let dictionary = dictionary(data);
        let strings = &dictionary.string_table;
        let key = strings.iter().position(|text| text.ends_with(name));
        let key = Some(key.unwrap() as i32);
        let mut table = dictionary.attribute_table.iter_mut();
        let attribute = table.find(|it| Some(it.key_strindex) == key).unwrap();
        attribute.value.as_mut().unwrap().value = Some(value);
    }
    let text = |text: &str| Value::StringValue(text.to_owned());
    missed("/usr/bin/shop has no head-tail hash", &|data| {
        for mapping in &mut dictionary(data).mapping_table {
            mapping.attribute_indices.clear();
        }
    });
    for id in ["", "xyz0", "abc", "DEAD"] {
        missed("/usr/bin/shop has the id", &|data| {
            identify(data, "build_id.gnu", text(id));
        });
    }
    missed("/usr/bin/shop has the id", &|data| {
        identify(data, "build_id.gnu", Value::IntValue(7));
    });
    missed("/usr/bin/shop has the id", &|data| {
        identify(data, "build_id.htlhash", text("abcd"));
    });
    missed("no frame type", &|data| {
        dictionary(data).location_table[1].attribute_indices.clear();
    });
    missed("\"/usr/bin/shop\" has the frame type kernel", &|data| {
        identify(data, "frame.type", text("kernel"));
    });
    missed("\"[kernel]\" has the frame type native", &|data| {
        let native = dictionary(data).location_table[1].attribute_indices.clone();
        for location in &mut dictionary(data).location_table[2..] {
            location.attribute_indices.clone_from(&native);
        }
    });
    missed("the types (Some((\"samples\"", &|data| {
        profile(data, 0).period_type = None
    });
    missed("with the period 0", &|data| profile(data, 0).period = 0);
    missed("with the period -1", &|data| profile(data, 0).period = -1);
    missed(
        "(Some((\"off_cpu\", \"nanoseconds\")), Some((\"cpu\"",
        &|data| {
            let off = profile(data, 1).sample_type;
            profile(data, 0).sample_type = off;
        },
    );
    missed("a sample has the thread None", &|data| {
        profile(data, 0).samples[0].attribute_indices.clear()
    });
    missed("a sample has no CPU", &|data| {
        let dictionary = dictionary(data);
        let strings = &mut dictionary.string_table;
        let cpu = strings.iter_mut().find(|it| *it == "cpu.logical_number");
        "cpu".clone_into(cpu.unwrap());
    });
    missed("a sample has no time", &|data| {
        profile(data, 0).samples[0].timestamps_unix_nano.clear()
    });
    for key in ["service.name", "process.pid"] {
        missed(&format!("a resource has no {key}"), &|data| {
            let resource = data.resource_profiles[1].resource.as_mut().unwrap();
            resource.attributes.retain(|attribute| attribute.key != key);
        });
    }
}
