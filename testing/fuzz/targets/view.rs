//! Summing up and converting a recording.
//!
//! Input: a file of any format that `otelctx report` reads.
#![no_main]

use libfuzzer_sys::fuzz_target;
use otelctx_profile::report::{Report, ReportOptions, TimeKind};
use otelctx_profile::{Format, Options, load};

fuzz_target!(|bytes: &[u8]| {
    let mut options = ReportOptions::by(&["http.route", "thread", "line"]);
    options.selection.kinds = vec![TimeKind::Running, TimeKind::Waiting];
    options.with_plumbing = false;
    options.with_tree = true;
    options.detailed_groups = 8;
    options.functions_of_group = 2;
    let Ok(report) = Report::of(bytes, &options) else {
        return;
    };
    let samples = report.groups.iter().map(|group| group.cost.samples);
    let samples = samples.fold(0, u64::saturating_add);
    assert_eq!(samples, report.total.samples);
    let own = report.by_function.iter();
    let own = own.map(|(_, cost)| cost.own.samples);
    assert!(own.fold(0, u64::saturating_add) <= report.total.samples);
    // What stands for very many samples has no other format.
    if report.total.samples > 10_000 || report.total.nanoseconds > 1 << 40 {
        return;
    }
    let Ok(profile) = load(bytes, &options.selection) else {
        return;
    };
    for format in [
        Format::Otlp,
        Format::Folded,
        Format::Page,
        Format::Parquet,
    ] {
        let mut written = Vec::new();
        let done = profile.write(format, &Options::default(), &mut written);
        done.expect("memory takes everything");
    }
});
