//! Where this version of HotSpot keeps its threads, and what leads to their names.

use otelctx_reader::runtime::RuntimeError;

use super::Find;
use crate::tables::Field;

/// Where Java's threads and their names are.
#[derive(Debug)]
pub(crate) struct Threads {
    pub(crate) list: ThreadList,
    /// The offset in a thread of its thread of the system's, and in that, the offset of the ID, which has four bytes.
    pub(crate) system_thread: u64,
    pub(crate) id: u64,
    /// The offset in a thread of the reference to its object, or of a handle that leads to that.
    pub(crate) object: u64,
    pub(crate) has_handle: bool,
    /// The addresses of the pointers to the classes `java.lang.Thread` and `java.lang.String`.
    pub(crate) thread_class: u64,
    pub(crate) string_class: u64,
    pub(crate) fields: ClassFields,
    /// The addresses of the base and of the shift of compressed references, and of compressed addresses of classes.
    pub(crate) narrow: (u64, u64),
    pub(crate) narrow_class: (u64, u64),
    /// The offset in a class of the layout of its objects, which has four bytes.
    pub(crate) class_layout: u64,
    pub(crate) z: Vec<ZPointers>,
}

/// Where the list of threads is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ThreadList {
    /// The address of the pointer to the list, the offsets of its length, which has four bytes, and of its array.
    Array {
        list: u64,
        length: u64,
        threads: u64,
    },
    /// The address of the pointer to the first one, and the offset of the one to the next.
    Linked { first: u64, next: u64 },
}

/// Where the fields of a class are described.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ClassFields {
    /// The offsets of an array of numbers, and of the number of fields.
    Slots { fields: u64, count: Field },
    /// The offset of an array with compressed numbers.
    Stream { fields: u64 },
}

/// Where the state of ZGC's references is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ZPointers {
    /// The address of the pointer to the structure with the pointers to these.
    pub(crate) globals: u64,
    /// The bits that references have whose objects may have been moved.
    pub(crate) bad: u64,
    /// With generations: the bits of other references, and how far addresses are shifted in those.
    pub(crate) good_and_shift: Option<(u64, u64)>,
}

pub(super) fn threads(find: &Find<'_>) -> Result<Threads, RuntimeError> {
    let either = |first: (&str, &str), second: (&str, &str)| {
        let found = find.variable(first.0, first.1);
        found.or_else(|_| find.variable(second.0, second.1))
    };
    let list = match find.variable("ThreadsSMRSupport", "_java_thread_list") {
        Ok(list) => ThreadList::Array {
            list,
            length: find.at("ThreadsList", "_length")?,
            threads: find.at("ThreadsList", "_threads")?,
        },
        Err(_) => ThreadList::Linked {
            first: find.variable("Threads", "_thread_list")?,
            next: find.at("JavaThread", "_next")?,
        },
    };
    let fields = match find.at("InstanceKlass", "_fieldinfo_stream") {
        Ok(fields) => ClassFields::Stream { fields },
        Err(_) => ClassFields::Slots {
            fields: find.at("InstanceKlass", "_fields")?,
            count: find.field("InstanceKlass", "_java_fields_count")?,
        },
    };
    let (new, old) = ("CompressedOops", "Universe");
    let oop = |new_name, name| {
        let found = either((new, new_name), (new, name));
        found.or_else(|_| find.variable(old, name))
    };
    let (new, old) = ("CompressedKlassPointers", "Universe");
    let class = |new_name, name| {
        let found = either((new, new_name), (new, name));
        found.or_else(|_| find.variable(old, name))
    };
    Ok(Threads {
        list,
        system_thread: find.any(&["JavaThread", "Thread"], "_osthread")?.at,
        id: find.at("OSThread", "_thread_id")?,
        object: find.at("JavaThread", "_threadObj")?,
        has_handle: find.known("OopHandle", "_obj").is_some(),
        thread_class: find.known_class("Thread_klass")?,
        string_class: find.known_class("String_klass")?,
        fields,
        narrow: (
            oop("_base", "_narrow_oop._base")?,
            oop("_shift", "_narrow_oop._shift")?,
        ),
        narrow_class: (
            class("_base", "_narrow_klass._base")?,
            class("_shift", "_narrow_klass._shift")?,
        ),
        class_layout: find.at("Klass", "_layout_helper")?,
        z: z_pointers(find),
    })
}

/// In JDK 21, there are two of them, one of which has the letter X.
fn z_pointers(find: &Find<'_>) -> Vec<ZPointers> {
    let without_generations = |of: &str, bad: &str| {
        Some(ZPointers {
            globals: find.variable(of, "_instance_p").ok()?,
            bad: find.at(of, bad).ok()?,
            good_and_shift: None,
        })
    };
    let of = "ZGlobalsForVMStructs";
    let at = |name: &str| find.at(of, name).ok();
    let with_generations = || {
        Some(ZPointers {
            globals: find.variable(of, "_instance_p").ok()?,
            bad: at("_ZPointerLoadBadMask")?,
            good_and_shift: Some((at("_ZPointerLoadGoodMask")?, at("_ZPointerLoadShift")?)),
        })
    };
    let all = [
        without_generations(of, "_ZAddressBadMask"),
        without_generations("XGlobalsForVMStructs", "_XAddressBadMask"),
        with_generations(),
    ];
    all.into_iter().flatten().collect()
}
