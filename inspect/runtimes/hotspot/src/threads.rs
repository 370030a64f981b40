//! The names of Java's threads: the kernel keeps 15 bytes of them.

use std::collections::HashMap;

use otelctx_reader::remote::Memory;

use crate::heap::{Colors, Objects};
use crate::layout::{Layout, ThreadList, Threads};

/// Maximum number of threads that are read.
const MAX_THREADS: usize = 16 << 10;
/// Number of the newest threads whose IDs are read again: a thread that ends soon leaves its address to the next one.
const NEWEST: usize = 8;
/// Number of bytes of a thread's name that the kernel keeps.
const KERNEL_NAME: usize = 15;

/// The threads as they were read last.
#[derive(Debug, Default)]
pub(crate) struct KnownThreads {
    /// The addresses of all threads, the oldest first, with their IDs.
    all: Vec<(u64, Option<i32>)>,
    /// By the threads' IDs in the process's PID namespace.
    by_id: HashMap<i32, u64>,
    objects: Option<Objects>,
}

impl KnownThreads {
    /// Reads what may be the name of a thread, which runs: while the collector moves objects, it may be another text. `id` is its ID
    /// in the process's own PID namespace.
    pub(crate) fn name(
        &mut self,
        memory: &dyn Memory,
        layout: &Layout,
        of: &Threads,
        id: i32,
    ) -> Option<String> {
        let thread = self.find(memory, of, id)?;
        let objects = match self.objects {
            Some(objects) => objects,
            None => *self.objects.insert(Objects::read(memory, layout, of)?),
        };
        let colors = Colors::read(memory, &of.z)?;
        let handle = memory.read_u64(thread.wrapping_add(of.object)).ok()?;
        let object = || {
            let raw = match of.has_handle {
                true => memory.read_u64(handle).ok()?,
                false => memory.read_u64(thread.wrapping_add(of.object)).ok()?,
            };
            colors.decode(raw)
        };
        let before = object()?;
        let name_at = before.object.wrapping_add(objects.name);
        let name = objects.reference(memory, of, colors, name_at)?;
        let text = objects.text(memory, of, colors, name.object)?;
        // It is still that object, and the same thread's.
        let is_same = objects.reference(memory, of, colors, name_at)? == name
            && object()? == before
            && Colors::read(memory, &of.z)? == colors
            && id_of(memory, of, thread) == Some(id);
        (is_same && !text.is_empty()).then_some(text)
    }

    /// The address of a thread.
    fn find(&mut self, memory: &dyn Memory, of: &Threads, id: i32) -> Option<u64> {
        if let Some(thread) = self.by_id.get(&id)
            && id_of(memory, of, *thread) == Some(id)
        {
            return Some(*thread);
        }
        let all = threads(memory, &of.list)?;
        self.update(memory, of, &all);
        let thread = self.by_id.get(&id).copied();
        thread.filter(|thread| id_of(memory, of, *thread) == Some(id))
    }

    /// Reads the IDs of the threads that are new. A new one is behind all that are there, so that one out of their order has the
    /// address of one that has ended.
    fn update(&mut self, memory: &dyn Memory, of: &Threads, all: &[u64]) {
        let known = self.all.iter().enumerate();
        let places: HashMap<u64, usize> = known.map(|(place, it)| (it.0, place)).collect();
        let newest = all.len().saturating_sub(NEWEST);
        let mut next = 0;
        let new = all.iter().enumerate().map(|(index, thread)| {
            let place = places.get(thread).copied();
            match place.filter(|place| *place >= next && index < newest) {
                Some(place) => {
                    next = place + 1;
                    self.all[place]
                }
                None => (*thread, id_of(memory, of, *thread)),
            }
        });
        self.all = new.collect();
        let ids = self.all.iter();
        self.by_id = ids.filter_map(|it| Some((it.1?, it.0))).collect();
    }
}

/// Reads the addresses of all threads, the oldest first.
fn threads(memory: &dyn Memory, list: &ThreadList) -> Option<Vec<u64>> {
    match *list {
        ThreadList::Array {
            list,
            length,
            threads,
        } => {
            let list = memory.read_u64(list).ok()?;
            let length = memory.read_u32(list.wrapping_add(length)).ok()?;
            let length = MAX_THREADS.min(length as usize);
            let threads = memory.read_u64(list.wrapping_add(threads)).ok()?;
            let bytes = memory.read_vec(threads, 8 * length as u64, 8 * MAX_THREADS);
            let (words, _) = bytes.as_deref().ok()?.as_chunks::<8>();
            Some(words.iter().map(|it| u64::from_le_bytes(*it)).collect())
        }
        ThreadList::Linked { first, next } => {
            let (mut all, mut thread) = (Vec::new(), memory.read_u64(first).ok()?);
            while thread != 0 && all.len() < MAX_THREADS {
                all.push(thread);
                thread = memory.read_u64(thread.wrapping_add(next)).ok()?;
            }
            all.reverse();
            Some(all)
        }
    }
}

fn id_of(memory: &dyn Memory, of: &Threads, thread: u64) -> Option<i32> {
    let system = memory
        .read_u64(thread.wrapping_add(of.system_thread))
        .ok()?;
    let id = memory.read_u32(system.wrapping_add(of.id)).ok()?;
    i32::try_from(id).ok()
}

/// Returns whether the kernel can have this name of a thread with this name in Java: its start, or in newer versions the start and
/// the end (`os::set_native_thread_name`).
pub(crate) fn agree(name: &str, of_kernel: &[u8]) -> bool {
    let name = modified_utf8(name);
    if name.len() <= KERNEL_NAME {
        return name == of_kernel;
    }
    let is_start = of_kernel.len() == KERNEL_NAME && name.starts_with(of_kernel);
    let (start, end) = (&name[..7], &name[name.len() - 6..]);
    is_start || of_kernel == [start, b"..", end].concat()
}

/// Encodes a text as the virtual machine does (`UNICODE::convert_to_utf8`): each half of a pair of surrogates as a character.
fn modified_utf8(text: &str) -> Vec<u8> {
    let continued = |bits: u16| 0x80 | (bits & 0x3f) as u8;
    let mut bytes = Vec::with_capacity(text.len());
    for unit in text.encode_utf16() {
        match unit {
            1..0x80 => bytes.push(unit as u8),
            0 | 0x80..0x800 => bytes.extend([0xc0 | (unit >> 6) as u8, continued(unit)]),
            _ => bytes.extend([
                0xe0 | (unit >> 12) as u8,
                continued(unit >> 6),
                continued(unit),
            ]),
        }
    }
    bytes
}

#[cfg(test)]
pub(crate) mod tests {
    use otelctx_reader::remote::memory::{CountedMemory, Image};

    use super::*;
    use crate::layout::{ClassFields, ThreadList, Threads};

    /// The places of a virtual machine without classes.
    pub(crate) fn of(list: ThreadList) -> Threads {
        Threads {
            list,
            system_thread: 8,
            id: 4,
            object: 16,
            has_handle: false,
            thread_class: 0,
            string_class: 0,
            fields: ClassFields::Stream { fields: 0 },
            narrow: (0, 0),
            narrow_class: (0, 0),
            class_layout: 0,
            z: Vec::new(),
        }
    }

    #[test]
    fn threads_are_found_by_their_ids_as_long_as_they_have_them() {
        const LIST: u64 = 0x1000;
        let list = of(ThreadList::Array {
            list: LIST,
            length: 4,
            threads: 8,
        });
        let mut memory = Image::new();
        memory.map_u64(LIST, &[LIST + 8, 2 << 32, LIST + 24, 0x2000, 0x3000]);
        memory
            .map_u64(0x2000, &[0, 0x2100])
            .map_u64(0x3000, &[0, 0x3100]);
        memory
            .map_u64(0x2100, &[7 << 32])
            .map_u64(0x3100, &[9 << 32]);
        let mut known = KnownThreads::default();
        assert_eq!(known.find(&memory, &list, 9), Some(0x3000));
        assert_eq!(known.find(&memory, &list, 8), None);
        // Each has to have its ID still, also where the list is the same.
        memory.map_u64(0x3100, &[8 << 32]);
        assert_eq!(known.find(&memory, &list, 9), None);
        assert_eq!(known.find(&memory, &list, 8), Some(0x3000));
        memory.map_u64(LIST, &[LIST + 8, 1 << 32, LIST + 32, 0, 0x3000]);
        memory.map_u64(0x3100, &[5 << 32]);
        assert_eq!(known.find(&memory, &list, 5), Some(0x3000));
        assert_eq!(known.find(&memory, &list, 7), None);
    }

    /// Threads with these addresses and IDs, the oldest first.
    fn listed(is_linked: bool, threads: &[(u64, u64)]) -> CountedMemory<Image> {
        const LIST: u64 = 0x1000;
        let mut memory = Image::new();
        let mut next = 0;
        for (thread, id) in threads {
            memory.map_u64(*thread, &[next, thread + 16, id << 32]);
            next = *thread;
        }
        if is_linked {
            memory.map_u64(LIST, &[next]);
        } else {
            let length = (threads.len() as u64) << 32;
            let addresses: Vec<u64> = threads.iter().map(|it| it.0).collect();
            memory
                .map_u64(LIST, &[LIST + 8, length, LIST + 24])
                .map_u64(LIST + 24, &addresses);
        }
        CountedMemory::new(memory)
    }

    #[test]
    fn a_new_thread_of_many_is_found_with_few_reads() {
        const MANY: usize = 5_000;
        let array = of(ThreadList::Array {
            list: 0x1000,
            length: 4,
            threads: 8,
        });
        let linked = of(ThreadList::Linked {
            first: 0x1000,
            next: 0,
        });
        let thread = |number: u64| (0x100_0000 + 0x100 * number, number);
        for (of, is_linked) in [(array, false), (linked, true)] {
            let mut known = KnownThreads::default();
            let mut threads: Vec<_> = (1..=MANY as u64).map(thread).collect();
            let mut find = |threads: &[(u64, u64)], id: i32| {
                let memory = listed(is_linked, threads);
                let of_list = if is_linked { threads.len() + 1 } else { 4 };
                let found = known.find(&memory, &of, id);
                (found, memory.take_reads().checked_sub(of_list))
            };
            // Each ID takes two reads, and so does its check.
            let (first, _) = threads[0];
            let all = Some(2 * MANY + 2);
            assert_eq!(find(&threads, 1), (Some(first), all));
            let few = Some(2 * NEWEST + 2);
            threads.push(thread(6_000));
            let (last, _) = thread(6_000);
            assert_eq!(find(&threads, 6_000), (Some(last), few));
            // It has the address of one that has ended, and others are newer; or those follow each other as the newest one.
            let (old, _) = threads.remove(70);
            threads.push((old, 7_000));
            threads.extend((6_001..).take(NEWEST).map(thread));
            let few_and_one = few.map(|few| few + 2);
            assert_eq!(find(&threads, 7_000), (Some(old), few_and_one));
            let (newest, ended) = threads.pop().unwrap();
            threads.push((newest, 8_000));
            assert_eq!(find(&threads, 8_000), (Some(newest), few));
            // Threads known before are still found; one that has ended is not.
            for id in [1, 2_500, 5_000] {
                let found = find(&threads, id);
                assert_eq!(found.0, Some(thread(id as u64).0), "{id}");
            }
            assert_eq!(find(&threads, ended as i32).0, None);
        }
    }

    #[test]
    fn lists_that_lie_are_read_up_to_a_limit() {
        // The first thread follows itself.
        let linked = of(ThreadList::Linked {
            first: 0x1000,
            next: 0,
        });
        let mut memory = Image::new();
        memory
            .map_u64(0x1000, &[0x2000])
            .map_u64(0x2000, &[0x2000, 0x2000]);
        let memory = CountedMemory::new(memory);
        assert_eq!(KnownThreads::default().find(&memory, &linked, 1), None);
        assert!(memory.take_reads() <= 3 * MAX_THREADS + 8);
        // The list says that it has 4 billion threads, or is nowhere.
        let array = of(ThreadList::Array {
            list: 0x1000,
            length: 4,
            threads: 8,
        });
        for threads in [0x1008, u64::MAX] {
            let mut memory = Image::new();
            memory
                .map_u64(0x1000, &[0x1000, threads])
                .map(0x1004, [0xff; 4]);
            assert_eq!(KnownThreads::default().find(&memory, &array, 1), None);
        }
    }

    #[test]
    fn names_of_the_kernel_are_parts_of_javas() {
        assert!(agree("short", b"short"));
        assert!(!agree("short", b"sho") && !agree("short", b"shorter"));
        assert!(agree("http-nio-8080-exec-1", b"http-nio-8080-e"));
        assert!(agree("http-nio-8080-exec-1", b"http-ni..exec-1"));
        assert!(!agree("http-nio-8080-exec-1", b"http-nio-8080"));
        assert!(!agree("http-nio-8080-exec-1", b"http-ni..exec-2"));
        assert!(agree("größer", "größer".as_bytes()));
        assert!(agree(
            "\u{20ac}\u{1f600}",
            b"\xe2\x82\xac\xed\xa0\xbd\xed\xb8\x80"
        ));
        assert!(agree("a\0b", b"a\xc0\x80b"));
    }
}
