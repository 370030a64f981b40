//! The cost of the names of a large program.

use otelctx_fixtures::{Java, Target, compile_java, thread_cpu_time};
use otelctx_reader::remote::memory::CountedMemory;
use otelctx_reader::remote::{FileCache, LiveProcess, Memory, Modules, Process, Through};
use otelctx_reader::runtime::RuntimeProcess;
use otelctx_reader::sample::Frame;

use crate::layout::Layout;
use crate::method::Method;
use crate::process::HotSpotProcess;
use crate::record::Record;
use crate::tables::Tables;

/// Number of methods that are named.
const METHODS: usize = 50_000;
/// Maximum number of bytes for each, with those of names that were dropped for others meanwhile, and of reads: the time is that of system
/// calls.
const MAX_MEMORY: usize = 640;
const MAX_READS: usize = 9;

/// The addresses of methods of all classes.
fn methods(target: &LiveProcess<'_>, layout: &Layout, tables: &Tables) -> Vec<u64> {
    let memory: &dyn Memory = target;
    let word = |address: u64| memory.read_u64(address).unwrap_or_default();
    let of = layout.classes.as_ref().unwrap();
    let at = tables.field("InstanceKlass", "_methods").unwrap().at;
    let (mut found, mut loader) = (Vec::new(), word(of.first_loader));
    while loader != 0 {
        let mut class = word(loader + of.first);
        while class != 0 {
            let array = word(class + at);
            // Other kinds of classes have something else there.
            let count = memory.read_u32(array).unwrap_or_default();
            let all = (0..u64::from(count.min(10_000))).map(|index| word(array + 8 + 8 * index));
            found.extend(all.take_while(|it| Method::read(memory, layout, *it).is_some()));
            class = word(class + of.next);
        }
        loader = word(loader + of.next_loader);
    }
    found
}

#[test]
fn names_of_fifty_thousand_methods_take_few_reads_and_little_memory() {
    let folder = std::env::temp_dir().join(format!("otelctx-java-many-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let java = Java::named("17").filter(|_| compile_java("java_many.java", &folder));
    if let Some(java) = java {
        let mut command = java.command();
        let program = Target::spawn(command.arg("-cp").arg(&folder).arg("Many"));
        name_all(program.pid());
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

fn name_all(pid: i32) {
    let process = Process::open(pid).unwrap();
    let memory = process.memory().unwrap();
    let target = LiveProcess::new(&process, &memory);
    let modules = Modules::read(&target, &FileCache::new()).unwrap();
    let library = modules
        .loaded
        .iter()
        .find(|it| matches!(it.exported(&target, "gHotSpotVMStructs"), Ok(Some(_))));
    let tables = Tables::read(&target, library.unwrap()).unwrap();
    let layout = Layout::new(&target, &tables).unwrap();
    let mut methods = methods(&target, &layout, &tables);
    assert!(methods.len() >= METHODS, "{} methods", methods.len());
    methods.truncate(METHODS);
    let hotspot = HotSpotProcess::new(layout);
    hotspot.generated(&target).unwrap();
    let class_number = hotspot.code(&target).unwrap().class_number;
    let records: Vec<_> = methods
        .iter()
        .map(|method| {
            let method = Method::read(&target, &hotspot.layout, *method).unwrap();
            Record::Interpreted {
                method: method.address,
                identity: method.identity(&hotspot.layout, class_number),
                position: None,
            }
            .encode()
        })
        .collect();
    let counted = CountedMemory::new(&memory);
    let target = Through::new(&target, &counted);
    let (begun, mut unnamed) = (thread_cpu_time(), 0);
    let (mut dropped, mut kept) = (0, 0);
    for record in &records {
        if let Frame::Named(named) = &hotspot.frames(&target, 0, record)[0] {
            unnamed += usize::from(named.is_unnamed());
        }
        let size = hotspot.known().memory.size();
        if size < kept {
            dropped += kept;
        }
        kept = size;
    }
    let taken = thread_cpu_time() - begun;
    let (all, reads) = (dropped + kept, counted.take_reads());
    println!(
        "{METHODS} methods: {reads} reads, {taken:?} of CPU time, {all} bytes, {kept} of them kept"
    );
    assert_eq!(unnamed, 0);
    assert!(reads <= METHODS * MAX_READS, "{reads} reads");
    assert!(all <= METHODS * MAX_MEMORY, "{all} bytes");
}
