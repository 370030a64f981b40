//! Frames of a hand-made process.

use std::ops::Range;
use std::sync::Arc;

use otelctx_reader::remote::{Device, FrameRecord, TargetImage, Through};
use otelctx_reader::runtime::RuntimeProcess;
use otelctx_reader::sample::Frame;

use super::{Built, SHARED, layout, scope, tagged, with_function};
use crate::builtins::Builtins;
use crate::heap::Object;
use crate::process::V8Process;
use crate::record::{Place, Record};
use crate::script::Scripts;
use crate::work::Work;

fn process() -> V8Process {
    let builtins = Arc::new(Builtins::default());
    V8Process::new(Arc::new(layout()), builtins, (Device::default(), 0))
}

/// The mappings of a core file may overlap.
#[test]
fn mappings_with_code_that_overlap_are_one_region() {
    let regions = |mappings: &[(u64, u64)]| -> Vec<Range<u64>> {
        let mut target = TargetImage::new();
        for (start, end) in mappings {
            target.maps += &format!("{start:x}-{end:x} r-xp 00000000 00:00 0 \n");
        }
        process().generated(&target).unwrap().ranges()
    };
    let far = 1 << 40;
    assert_eq!(
        regions(&[(0x1000, 0x2000), (0x3000, 0x4000)]),
        [0x1000..0x4000]
    );
    let apart = [0x1000..0x2000, far..far + 0x1000];
    assert_eq!(regions(&[(0x1000, 0x2000), (far, far + 0x1000)]), apart);
    let inside = regions(&[(0x1000, 0x8000), (0x2000, 0x3000), (0x8000, 0x9000)]);
    assert_eq!(inside, [0x1000..0x9000]);
}

/// The function `price`, interpreted.
fn record(heap: &Built) -> FrameRecord {
    let shared = Object::at(SHARED);
    let identity = heap.read(|heap| heap.identity(shared)).0.unwrap();
    let record = Record {
        instruction: 0x1234,
        function: Some((shared, identity)),
        place: Place::Unknown,
    };
    record.encoded()
}

fn names(process: &V8Process, heap: &Built) -> Vec<String> {
    let nothing = TargetImage::new();
    let target = Through::new(&nothing, &heap.0);
    let frames = process.frames(&target, 0, &record(heap));
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
    let line = |work: Arc<Work>| {
        let scripts = Scripts::new(work);
        let frame = heap.read(|heap| heap.frame(&scripts, Object::at(SHARED), Some(4)));
        let frame = frame.0.unwrap();
        (frame.function, frame.line)
    };
    assert_eq!(line(Arc::default()), ("price".to_owned(), 4));
    let work = Arc::<Work>::default();
    work.use_up();
    assert_eq!(line(work), ("price".to_owned(), 0));
}
