//! Frames of a hand-made process.

use std::sync::Arc;

use otelctx_reader::remote::{Device, FrameRecord, TargetImage, Through};
use otelctx_reader::runtime::RuntimeProcess;
use otelctx_reader::sample::Frame;

use super::{Built, SHARED, SOURCE, layout, scope, tagged, with_function};
use crate::builtins::Builtins;
use crate::heap::Object;
use crate::process::V8Process;
use crate::record::{Place, Record};
use crate::script::Scripts;
use otelctx_reader::runtime::ReadLimit;

/// Where generated code is.
const CODE: u64 = 0x5_0140;

fn process() -> V8Process {
    let builtins = Arc::new(Builtins::default());
    V8Process::new(Arc::new(layout()), builtins, (Device::default(), 0))
}

/// The mappings of a core file may overlap.
#[test]
fn mappings_with_code_that_overlap_are_one_region() {
    let regions = |mappings: &[(u64, u64)]| -> Vec<(u64, u64)> {
        let mut target = TargetImage::new();
        for (start, end) in mappings {
            target.maps += &format!("{start:x}-{end:x} r-xp 00000000 00:00 0 \n");
        }
        let ranges = process().generated(&target).unwrap().ranges();
        ranges.iter().map(|it| (it.start, it.end)).collect()
    };
    let far = 1 << 40;
    assert_eq!(
        regions(&[(0x1000, 0x2000), (0x3000, 0x4000)]),
        [(0x1000, 0x4000)]
    );
    let apart = [(0x1000, 0x2000), (far, far + 0x1000)];
    assert_eq!(regions(&[(0x1000, 0x2000), (far, far + 0x1000)]), apart);
    let inside = regions(&[(0x1000, 0x8000), (0x2000, 0x3000), (0x8000, 0x9000)]);
    assert_eq!(inside, [(0x1000, 0x9000)]);
}

/// The function `price` at a place.
fn record(heap: &Built, place: Place) -> FrameRecord {
    let shared = Object::at(SHARED);
    let identity = heap.read(|heap| heap.identity(shared)).0.unwrap();
    let record = Record {
        instruction: CODE + 4,
        function: Some((shared, identity)),
        place,
    };
    record.encoded()
}

/// The names of `price`, interpreted.
fn names(process: &V8Process, heap: &Built) -> Vec<String> {
    names_at(process, heap, Place::Unknown)
}

fn names_at(process: &V8Process, heap: &Built, place: Place) -> Vec<String> {
    let nothing = TargetImage::new();
    let target = Through::new(&nothing, &heap.0);
    let frames = process.frames(&target, 0, &record(heap, place));
    let name = |frame: &Frame| match frame {
        Frame::Named(named) => named.function.clone(),
        Frame::Native { address, .. } => format!("{address:#x}"),
    };
    frames.iter().map(name).collect()
}

/// Workers number their scripts from the same number on.
#[test]
fn a_function_of_another_isolate_with_the_same_numbers_is_another() {
    let process = process();
    let mut heap = with_function("a", &scope());
    assert_eq!(names(&process, &heap), ["price"]);
    heap.text(0x7100, "total");
    // The same script, as far as its place in memory says.
    assert_eq!(names(&process, &heap), ["price"]);
    let source = heap.text(0x6800, "b");
    heap.script(source, tagged(0x7000));
    assert_eq!(names(&process, &heap), ["total"]);
}

/// What was found before is still named.
#[test]
fn functions_of_a_process_that_takes_too_much_work_have_no_names() {
    let heap = with_function("a", &scope());
    let process = process();
    process.work.use_up();
    assert_eq!(names(&process, &heap), ["[JavaScript]"]);
    // More code, as a process may have again and again, permits no more.
    let mut target = TargetImage::new();
    target.maps = "1000-2000 r-xp 00000000 00:00 0 \n".to_owned();
    assert!(process.generated(&target).is_some());
    assert_eq!(names(&process, &heap), ["[JavaScript]"]);
    let process = self::process();
    assert_eq!(names(&process, &heap), ["price"]);
    process.work.use_up();
    assert_eq!(names(&process, &heap), ["price"]);
}

/// A part of what is left is for names.
#[test]
fn sources_are_not_read_where_that_takes_too_much_work() {
    let heap = with_function("a\nbcdefg", &scope());
    let line = |work: Arc<ReadLimit>| {
        let scripts = Scripts::new(work);
        let frame = heap.read(|heap| heap.frame(&scripts, Object::at(SHARED), Some(4)));
        let frame = frame.0.unwrap();
        (frame.function, frame.line)
    };
    assert_eq!(line(Arc::default()), ("price".to_owned(), 4));
    let work = Arc::<ReadLimit>::default();
    work.use_up();
    assert_eq!(line(work), ("price".to_owned(), 0));
}

/// The code at an address may be another function's by now.
#[test]
fn a_function_in_generated_code_is_named_only_if_it_is_its_code() {
    let mut heap = with_function("a", &scope());
    let process = process();
    let mut target = TargetImage::new();
    target.maps = "50000-51000 r-xp 00000000 00:00 0 \n".to_owned();
    process.generated(&target);
    let places = [Place::Instruction, Place::Call];
    let named = |heap: &Built| places.map(|place| names_at(&process, heap, place).concat());
    // There is no code.
    assert_eq!(named(&heap), ["[JavaScript]"; 2]);
    let bytecode = [0x1_0000, 0x1_1000].map(|at| heap.object(at, 186, &[0; 8]));
    let copies = [(0x1_2000, 0x1000), (0x1_3000, 0x1100)];
    let [its, other] = copies.map(|(at, code)| heap.object(at, 188, &[bytecode[0], tagged(code)]));
    let mut with = |kind: u64, of_code: u64, of_function: u64| {
        let code = [of_code, 0, 0, 0, CODE, kind << 32, 0x100];
        let code = heap.object(0x1000, 187, &code);
        heap.0.map(0x5_0000, vec![0; 0x120]);
        heap.object(CODE - 32, 192, &[code]);
        heap.0.map(CODE - 16, vec![0; 0x1000]);
        let script = heap.script(tagged(SOURCE), tagged(0x7000));
        let words = [of_function, 0, tagged(0x8000), 0, script, 0, 5 << 32];
        heap.object(SHARED, 282, &words);
        named(&heap)
    };
    const BASELINE: u64 = 10;
    assert_eq!(with(BASELINE, bytecode[0], bytecode[0]), ["price"; 2]);
    assert_eq!(
        with(BASELINE, bytecode[0], bytecode[1]),
        ["[JavaScript]"; 2]
    );
    // Neither has one any more.
    assert_eq!(with(BASELINE, 0, 0), ["[JavaScript]"; 2]);
    // Copies of the interpreter, and WebAssembly.
    for kind in [2, 4] {
        assert_eq!(with(kind, bytecode[0], bytecode[0]), ["[JavaScript]"; 2]);
    }
    assert_eq!(with(2, 0, its), ["price"; 2]);
    assert_eq!(with(2, 0, other), ["[JavaScript]"; 2]);
}
