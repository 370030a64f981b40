//! What targets may say of themselves, however odd, makes no file that can't be read.

mod shop;

use std::collections::BTreeMap;
use std::io::Read;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development::ProfilesData;
use otelctx_profile::report::{NO_ATTRIBUTE, Report, ReportOptions};
use otelctx_profile::sample::format::process_context::Value as Resource;
use otelctx_profile::sample::format::record::DecodedContext;
use otelctx_profile::sample::{Event, Found, ProcessFacts, Sample};
use otelctx_profile::{Format, NoSymbols, Options, Profile, rules};
use prost::Message as _;
use shop::context;

const UPSTREAM: &str = "process.context.label.";

/// One sample of thread `thread` of process `process` for each context, and one without.
fn profile(process: ProcessFacts, thread: &str, contexts: &[DecodedContext]) -> Profile {
    let mut recording = shop::recording();
    let process = recording.catalog.add_process(process);
    let thread = recording.catalog.thread(process, 5, thread);
    let catalog = &mut recording.catalog;
    let empty = catalog.native_stack(&[]);
    let attached = contexts
        .iter()
        .map(|context| Found::Attached(catalog.context(context)));
    let found: Vec<_> = attached.chain([Found::Detached]).collect();
    let sample = |(index, found)| Sample {
        time: shop::START + index as u64,
        cpu: 0,
        thread,
        event: Event::OnCpu,
        found,
        gil: None,
        user_stack: empty,
        stack_end: None,
        kernel_stack: empty,
    };
    recording.samples = found.into_iter().enumerate().map(sample).collect();
    Profile::new(recording, &mut NoSymbols)
}

fn written(profile: &Profile, format: Format, options: &Options) -> Vec<u8> {
    let mut bytes = Vec::new();
    profile.write(format, options, &mut bytes).unwrap();
    bytes
}

/// Of each sample how many looks it has, its trace id's first byte, and its attributes but the thread's.
type Described = Vec<(usize, u8, BTreeMap<String, String>)>;

fn described(data: &ProfilesData) -> Described {
    let dictionary = data.dictionary.as_ref().unwrap();
    let profile = &data.resource_profiles[0].scope_profiles[0].profiles[0];
    let attribute = |index: &i32| {
        let attribute = &dictionary.attribute_table[*index as usize];
        let name = &dictionary.string_table[attribute.key_strindex as usize];
        match attribute.value.clone().unwrap().value {
            Some(Value::StringValue(text)) => Some((name.clone(), text)),
            _ => None,
        }
    };
    let samples = profile.samples.iter().map(|sample| {
        let link = &dictionary.link_table[sample.link_index as usize];
        let mut attributes: BTreeMap<_, _> = sample
            .attribute_indices
            .iter()
            .filter_map(attribute)
            .collect();
        assert_eq!(attributes.remove("thread.name").as_deref(), Some("t"));
        (
            sample.timestamps_unix_nano.len(),
            link.trace_id.first().copied().unwrap_or(0),
            attributes,
        )
    });
    let mut samples: Described = samples.collect();
    samples.sort();
    samples
}

#[test]
fn contexts_with_one_id_alone_or_odd_names_stay_apart_and_keep_the_rules() {
    let shadowed = format!("{UPSTREAM}thread.name");
    let contexts = [
        context(1, 1, &[]),
        context(1, 0, &[]),
        context(2, 0, &[]),
        context(0, 1, &[]),
        context(0, 0, &[("trace_id", &"01".repeat(16))]),
        context(0, 0, &[("a", "1"), ("a", "2")]),
        context(0, 0, &[("a", "2")]),
        context(0, 0, &[("", "x")]),
        context(0, 0, &[("thread.name", "x")]),
        context(0, 0, &[(&shadowed, "x")]),
    ];
    let profile = profile(ProcessFacts::default(), "t", &contexts);
    let mut options = Options::default();
    let expected = |prefix: &str, escape: &str| {
        let sample = |looks, trace, attributes: &[(&str, String)]| {
            let pairs = attributes.iter();
            let pairs = pairs.map(|(name, value)| ((*name).to_owned(), value.clone()));
            (looks, trace, pairs.collect())
        };
        let trace = |byte: &str| byte.repeat(16);
        let of = |name: &str| format!("{prefix}{escape}{name}");
        let x = || "x".to_owned();
        let mut samples: Described = vec![
            sample(1, 0, &[]),
            sample(1, 1, &[]),
            sample(1, 0, &[("trace_id", trace("01"))]),
            sample(1, 0, &[("trace_id", trace("02"))]),
            sample(1, 0, &[("span_id", "01".repeat(8))]),
            sample(1, 0, &[(&of("trace_id"), trace("01"))]),
            // The last of one name counts.
            sample(2, 0, &[(&format!("{prefix}a"), "2".to_owned())]),
            sample(1, 0, &[(&of(""), x())]),
            sample(1, 0, &[(&of("thread.name"), x())]),
            sample(1, 0, &[(&of(&shadowed), x())]),
        ];
        samples.sort();
        samples
    };
    for (prefix, escape) in [("", UPSTREAM), (UPSTREAM, "")] {
        options.attribute_prefix = prefix.to_owned();
        let bytes = written(&profile, Format::Otlp, &options);
        let data = ProfilesData::decode(&bytes[..]).unwrap();
        assert_eq!(rules::violations(&data), [""; 0], "prefix {prefix:?}");
        assert_eq!(
            rules::missed_by_backends(&data),
            [""; 0],
            "prefix {prefix:?}"
        );
        assert_eq!(
            described(&data),
            expected(prefix, escape),
            "prefix {prefix:?}"
        );
    }
    // A prefix that makes a name one of the profile's own.
    options.attribute_prefix = "thread.".to_owned();
    let one = [context(0, 0, &[("name", "x")])];
    let profile = self::profile(ProcessFacts::default(), "t", &one);
    let data = ProfilesData::decode(&written(&profile, Format::Otlp, &options)[..]).unwrap();
    assert_eq!(rules::violations(&data), [""; 0]);
}

#[test]
fn pprof_has_the_one_id_that_there_is() {
    let text = |context| {
        let profile = profile(ProcessFacts::default(), "t", &[context]);
        let bytes = written(&profile, Format::Pprof, &Options::default());
        let mut text = Vec::new();
        let mut gzip = flate2::read::GzDecoder::new(&bytes[..]);
        gzip.read_to_end(&mut text).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    };
    let span = text(context(0, 1, &[]));
    assert!(span.contains("span_id") && span.contains(&"01".repeat(8)));
    assert!(!span.contains("trace_id"));
    assert!(!text(context(1, 0, &[])).contains("span_id"));
}

/// pprof's `profile.proto`, as far as labels go.
#[derive(Clone, PartialEq, prost::Message)]
struct Pprof {
    #[prost(message, repeated, tag = "2")]
    samples: Vec<PprofSample>,
    #[prost(string, repeated, tag = "6")]
    strings: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PprofSample {
    #[prost(message, repeated, tag = "3")]
    labels: Vec<Label>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    text: i64,
    #[prost(int64, tag = "3")]
    number: i64,
}

/// A sample's labels, in the order of their keys.
fn labels(pprof: &Pprof, sample: &PprofSample) -> Vec<(String, String)> {
    let string = |index: i64| pprof.strings[index as usize].clone();
    let labels = sample.labels.iter().map(|label| {
        let value = match label.text {
            0 => label.number.to_string(),
            text => string(text),
        };
        (string(label.key), value)
    });
    let mut labels: Vec<_> = labels.collect();
    labels.sort();
    labels
}

/// The rule that OTLP is tried for above.
#[test]
fn names_that_are_taken_or_repeated_have_one_value_in_every_format() {
    let upstreams = format!("{UPSTREAM}x");
    let all = [
        ("thread", "a"),
        ("process", "b"),
        ("trace_id", "c"),
        ("span_id", "d"),
        ("pid", "e"),
        ("tid", "f"),
        ("", "g"),
        (&upstreams, "h"),
        ("r", "before"),
        ("r", "last"),
    ];
    let facts = ProcessFacts {
        pid: 4,
        comm: "p".into(),
        ..ProcessFacts::default()
    };
    let profile = profile(facts, "t", &[context(1, 2, &all)]);
    let mut options = Options::default();
    options.by = vec!["r".into()];
    let unzipped = |format| {
        let bytes = written(&profile, format, &options);
        let mut plain = Vec::new();
        let mut gzip = flate2::read::GzDecoder::new(&bytes[..]);
        gzip.read_to_end(&mut plain).unwrap();
        plain
    };
    let pprof = Pprof::decode(&unzipped(Format::Pprof)[..]).unwrap();
    let [_, sample] = &pprof.samples[..] else {
        panic!("{pprof:?}")
    };
    let (trace, span) = ("01".repeat(16), "02".repeat(8));
    let own = [
        ("pid", "4"),
        ("process", "p"),
        ("span_id", &span),
        ("thread", "t"),
        ("tid", "5"),
        ("trace_id", &trace),
    ];
    let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let mut expected: Vec<_> = own.into_iter().map(pair).collect();
    for (name, value) in &all[..8] {
        expected.push((format!("{UPSTREAM}{name}"), (*value).to_owned()));
    }
    expected.push(pair(("r", "last")));
    expected.sort();
    assert_eq!(labels(&pprof, sample), expected);
    let folded = String::from_utf8(written(&profile, Format::Folded, &options)).unwrap();
    assert_eq!(folded, "(none);p;t 1\nlast;p;t 1\n");
    let json = String::from_utf8(unzipped(Format::Firefox)).unwrap();
    let attributes = format!("=g pid=e process=b {upstreams}=h r=last span_id=d thread=a");
    assert!(json.contains(&attributes), "{attributes}: {json}");
    assert!(!json.contains("before"), "{json}");
}

#[test]
fn texts_are_frames_and_xml_whatever_is_in_them() {
    let facts = ProcessFacts {
        pid: 5,
        comm: String::new(),
        resource: vec![("service.name".into(), Resource::from("a\u{1}b\u{ffff}<c>"))],
        published: true,
        ..ProcessFacts::default()
    };
    let contexts = [
        context(1, 1, &[("r", "a;b\n\u{ffff}<&\"")]),
        context(1, 1, &[("r", "")]),
    ];
    let profile = profile(facts, "worker 3 ", &contexts);
    let mut options = Options::default();
    options.by = vec!["r".into()];
    let folded = String::from_utf8(written(&profile, Format::Folded, &options)).unwrap();
    let expected = "(empty);a b\u{fffd}<c>;worker_3 1\n\
        (none);a b\u{fffd}<c>;worker_3 1\n\
        a:b \u{fffd}<&\";a b\u{fffd}<c>;worker_3 1\n";
    assert_eq!(folded, expected);
    let svg = String::from_utf8(written(&profile, Format::FlameGraph, &options)).unwrap();
    let shows = |what: &str| assert!(svg.contains(what), "{what}: {svg}");
    shows(">a\u{fffd}b\u{fffd}&lt;c&gt;: CPU by r<");
    shows("<title>a;b\u{fffd}\u{fffd}&lt;&amp;&quot;\n10.0 ms · 33.3 % · 1 sample</title>");
    shows("<title>(empty)\n10.0 ms · 33.3 % · 1 sample</title>");
    shows("<title>(no r)\n10.0 ms · 33.3 % · 1 sample</title>");
    // https://www.w3.org/TR/xml/#charsets
    let is_bad = |character: char| matches!(character, '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}');
    assert_eq!(svg.find(is_bad), None);
}

/// Names of 64 KiB with markup, the end of a script, and overrides of the direction.
#[test]
fn a_flame_graph_executes_no_name_and_is_bounded() {
    let hostile = "]]></script><script>alert(1)</script><svg onload='x()'>\u{202e}\u{2066}";
    let long = hostile.repeat((64 << 10) / hostile.len());
    let facts = ProcessFacts {
        pid: 5,
        resource: vec![("service.name".into(), Resource::from(&long[..]))],
        published: true,
        ..ProcessFacts::default()
    };
    let contexts = [context(1, 1, &[("r", &long)]), context(1, 1, &[("r", "x")])];
    let profile = profile(facts, &long, &contexts);
    let mut options = Options::default();
    for by in ["r", "thread"] {
        options.by = vec![by.to_owned()];
        let svg = String::from_utf8(written(&profile, Format::FlameGraph, &options)).unwrap();
        let count = |what: &str| svg.matches(what).count();
        assert_eq!(
            (count("<script"), count("<![CDATA["), count("]]>")),
            (1, 1, 1)
        );
        let boxes = count("<svg class=\"box ");
        assert_eq!(count("<svg "), boxes + 1);
        assert_eq!(svg.find(['\u{202e}', '\u{2066}']), None);
        // Each name is cut, and is in a tooltip and in a text.
        assert!(svg.len() < 20_000 + boxes * 3 * 4096 * 4, "{}", svg.len());
    }
}

#[test]
fn values_beyond_all_numbers_are_added_up() {
    let bytes = written(&shop::profile(), Format::Otlp, &Options::default());
    let mut data = ProfilesData::decode(&bytes[..]).unwrap();
    for resource in &mut data.resource_profiles {
        for profile in &mut resource.scope_profiles[0].profiles {
            for sample in &mut profile.samples {
                sample.values = vec![i64::MIN; sample.timestamps_unix_nano.len()];
            }
        }
    }
    assert_eq!(rules::violations(&data), [""; 0]);
    let options = ReportOptions::by(&["http.route"]);
    let report = Report::of(&data.encode_to_vec(), &options).unwrap();
    assert_eq!(
        (report.total.samples, report.total.nanoseconds),
        (u64::MAX, u64::MAX)
    );
    assert!(
        report
            .groups
            .iter()
            .any(|group| group.values == [NO_ATTRIBUTE])
    );
}
