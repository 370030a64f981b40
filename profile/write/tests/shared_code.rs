//! Code that several processes run at different addresses.

use std::num::NonZeroU64;
use std::sync::Arc;

use otelctx_profile::sample::{
    Catalog, Counts, Event, Found, Mapping, Module, ProcessFacts, Sample,
};
use otelctx_profile::{Clock, Function, Identity, Profile, Recording, SymbolQuery, Symbolizer};

/// Names functions by their offset, and keeps what it was asked.
#[derive(Default)]
struct RecordingSymbolizer(Vec<u64>);

impl Symbolizer for RecordingSymbolizer {
    fn functions(&mut self, _: SymbolQuery<'_>, addresses: &[u64]) -> Vec<Vec<Function>> {
        self.0.extend(addresses);
        let function = |address: &u64| Function {
            name: format!("f{address:x}"),
            ..Function::default()
        };
        addresses.iter().map(|at| vec![function(at)]).collect()
    }

    fn identity(&mut self, _: SymbolQuery<'_>) -> Identity {
        Identity::default()
    }
}

#[test]
fn each_address_of_a_file_is_resolved_once_for_all_processes() {
    let mut catalog = Catalog::new();
    let empty = catalog.native_stack(&[]);
    let mut samples = Vec::new();
    for pid in 1..=3_u64 {
        let start = pid << 32;
        let module = catalog.module(Module {
            path: format!("/image/{pid}/libshop.so"),
            build_id: vec![1, 2, 3],
            inode: pid,
            ..Module::default()
        });
        let process = catalog.add_process(ProcessFacts {
            pid: pid as i32,
            mappings: vec![Mapping {
                start,
                end: start + 0x10_0000,
                offset: 0x1000,
                module,
                since: 0,
            }],
            ..ProcessFacts::default()
        });
        // Return addresses are looked up one byte before.
        let stack = catalog.native_stack(&[start + 0x20, start + 0x11]);
        samples.push(Sample {
            time: pid,
            cpu: 0,
            thread: catalog.thread(process, pid as i32, "t"),
            event: Event::OnCpu,
            found: Found::NotPublished,
            gil: None,
            user_stack: stack,
            stack_end: None,
            kernel_stack: empty,
        });
    }
    let recording = Recording {
        catalog,
        samples,
        clock: Clock {
            start: 0,
            end: 10,
            start_unix: 0,
        },
        period: NonZeroU64::MIN,
        counts: Counts::default(),
    };
    let mut asked = RecordingSymbolizer::default();
    let profile = Profile::new(recording, &mut asked);
    assert_eq!(asked.0, [0x1010, 0x1020]);
    let mut groups: Vec<Vec<_>> = Vec::new();
    for group in profile.groups() {
        let functions = |index: &_| Arc::clone(&profile.location(*index).functions);
        groups.push(group.stack.iter().map(functions).collect());
    }
    assert_eq!(groups.len(), 3);
    for stack in &groups {
        let names: Vec<_> = stack.iter().map(|it| &it[0].name[..]).collect();
        assert_eq!(names, ["f1020", "f1010"]);
        assert!(Arc::ptr_eq(&stack[0], &groups[0][0]));
    }
}
