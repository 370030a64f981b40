//! Key indexes beside another publisher, which has published its context after this one.

#![cfg(target_os = "linux")]

mod common;

use std::fs;

use common::in_own_process;
use otelctx::{Key, ProcessContext, Published};
use otelctx_format::process_context::{Header, Payload, Value, HEADER_SIZE};
use otelctx_format::{KeyMap, KEY_MAP};

/// A context as another publisher makes it: a header, and a payload behind it.
struct Other(*mut u8);

impl Other {
    fn publish(attributes: Vec<(String, Value)>) -> Self {
        // SAFETY: a new mapping.
        let mapping = unsafe {
            let file = libc::memfd_create(c"OTEL_CTX".as_ptr(), 0);
            libc::ftruncate(file, 4096);
            let rw = libc::PROT_READ | libc::PROT_WRITE;
            let (address, flags) = (std::ptr::null_mut(), libc::MAP_PRIVATE);
            libc::mmap(address, 4096, rw, flags, file, 0)
        };
        let other = Self(mapping.cast());
        other.update(attributes);
        other
    }

    fn with_keys(names: &[&str]) -> Self {
        Self::publish(key_map(names))
    }

    fn update(&self, attributes: Vec<(String, Value)>) {
        let resource = Vec::new();
        let bytes = Payload {
            resource,
            attributes,
        }
        .encode();
        // SAFETY: nobody else writes to the mapping, which has room for both.
        unsafe {
            let behind = self.0.add(HEADER_SIZE);
            let header = Header {
                payload_size: bytes.len() as u32,
                monotonic_published_at_ns: 1,
                payload_address: behind as u64,
            };
            behind.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            self.0.cast::<[u8; HEADER_SIZE]>().write(header.encode());
        }
    }
}

fn key_map(names: &[&str]) -> Vec<(String, Value)> {
    let keys = KeyMap::new(names.iter().copied()).unwrap();
    vec![(KEY_MAP.into(), keys.to_value())]
}

fn publish(keys: &[&Key]) -> Published {
    keys.iter().for_each(|key| key.register().unwrap());
    ProcessContext::new().publish().unwrap()
}

/// The key map that this copy announces: that of the mapping with its mark (docs/publishing.md).
fn announced() -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let lines = maps.lines().filter(|line| line.contains("OTEL_CTX"));
    let addresses =
        lines.map(|line| usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap());
    let own = addresses.filter(|address| {
        // SAFETY: each mapping is a page, and stays.
        unsafe { *((address + 40) as *const [u8; 16]) == *b"otelctx_withdraw" }
    });
    let own: Vec<usize> = own.collect();
    let [own] = own[..] else { panic!("{own:?}") };
    // SAFETY: the header says where the payload is; nobody changes either.
    let payload = unsafe {
        let header = Header::decode(&*(own as *const [u8; HEADER_SIZE])).unwrap();
        let address = header.payload_address as *const u8;
        let bytes = std::slice::from_raw_parts(address, header.payload_size as usize);
        Payload::decode(bytes).unwrap()
    };
    let keys = KeyMap::of(&payload).unwrap().unwrap();
    keys.names().to_vec()
}

#[test]
fn keys_that_nobody_has_used_continue_the_other_key_map() {
    in_own_process(
        "keys_that_nobody_has_used_continue_the_other_key_map",
        || {
            static ROUTE: Key = Key::new("http.route");
            static USER: Key = Key::new("user");
            static LATER: Key = Key::new("later");
            let _guard = publish(&[&ROUTE, &USER]);
            assert_eq!(announced(), ["http.route", "user"]);
            assert_eq!(ProcessContext::find_other(), None);
            let other = Other::with_keys(&["root", "user", "query"]);
            let line = ProcessContext::find_other().unwrap();
            assert!(
                line.starts_with(&format!("{:x}-", other.0 as usize)),
                "{line}"
            );
            // Nothing happens before an index is needed.
            assert_eq!(announced(), ["http.route", "user"]);
            assert_eq!(ROUTE.index(), Some(3));
            assert_eq!(announced(), ["root", "user", "query", "http.route"]);
            assert_eq!((USER.index(), ROUTE.index()), (Some(1), Some(3)));

            // It appends a key, which would take the place of the one that this copy has used.
            other.update(key_map(&["root", "user", "query", "new"]));
            assert_eq!(LATER.index(), Some(4));
            let all = ["root", "user", "query", "http.route", "later"];
            assert_eq!(announced(), all);
            // The other's names are keys like others.
            assert_eq!(Key::new("query").index(), Some(2));
            assert_eq!(announced(), all);
        },
    );
}

#[test]
fn an_index_that_was_used_keeps_its_name() {
    in_own_process("an_index_that_was_used_keeps_its_name", || {
        static ROUTE: Key = Key::new("http.route");
        static USER: Key = Key::new("user");
        static QUERY: Key = Key::new("query");
        let _guard = publish(&[&ROUTE, &USER, &QUERY]);
        assert_eq!(ROUTE.index(), Some(0));
        let other = Other::with_keys(&["root", "user"]);
        assert_eq!(USER.index(), Some(1));
        assert_eq!(announced(), ["http.route", "user", "query"]);
        // The same beginning.
        other.update(key_map(&["http.route", "user", "x"]));
        assert_eq!(QUERY.index(), Some(3));
        assert_eq!(announced(), ["http.route", "user", "x", "query"]);
    });
}

#[test]
fn unused_keys_avoid_the_indexes_of_a_key_map_that_contradicts_a_used_one() {
    let name = "unused_keys_avoid_the_indexes_of_a_key_map_that_contradicts_a_used_one";
    in_own_process(name, || {
        static ROUTE: Key = Key::new("http.route");
        static USER: Key = Key::new("user");
        let _guard = publish(&[&ROUTE, &USER]);
        assert_eq!(ROUTE.index(), Some(0));
        Other::with_keys(&["root", "query"]);
        assert_eq!(USER.index(), Some(2));
        assert_eq!(announced(), ["http.route", "query", "user"]);
    });
}

#[test]
fn the_key_maps_of_all_other_publishers_are_continued() {
    in_own_process("the_key_maps_of_all_other_publishers_are_continued", || {
        static USER: Key = Key::new("user");
        static LAST: Key = Key::new("last");
        let _guard = publish(&[&USER, &LAST]);
        // The last two disagree; of these, the own name is less likely to be read.
        let maps = [
            &["root"][..],
            &["root", "user", "a"],
            &["root", "query", "a", "b"],
        ];
        for keys in maps {
            Other::with_keys(keys);
        }
        assert_eq!(LAST.index(), Some(5));
        assert_eq!(announced(), ["root", "query", "a", "b", "user", "last"]);
        assert_eq!(USER.index(), Some(4));
    });
}

/// Each search reads all mappings of the process.
#[test]
fn the_first_uses_of_many_keys_take_few_searches() {
    in_own_process("the_first_uses_of_many_keys_take_few_searches", || {
        let names: Vec<String> = (0..40).map(|number| format!("key {number}")).collect();
        let keys = names.iter().map(|name| Key::from_string(name.clone()));
        let keys: Vec<Key> = keys.map(Result::unwrap).collect();
        let _guard = publish(&[]);
        let use_keys = |range: std::ops::Range<usize>| {
            for index in range {
                assert_eq!(keys[index].index(), Some(index as u8));
            }
        };
        // One search for each of the first eight, and then one for eight keys.
        use_keys(0..9);
        let mut theirs: Vec<&str> = names[..16].iter().map(String::as_str).collect();
        theirs.push("root");
        Other::with_keys(&theirs);
        use_keys(9..16);
        assert_eq!(announced(), names);
        assert_eq!(keys[16].index(), Some(17));
        assert_eq!(announced()[15..18], ["key 15", "root", "key 16"]);
        // And one for the next 17, also for a key that is registered later.
        let mut all = announced();
        all.truncate(34);
        let all: Vec<&str> = all.iter().map(String::as_str).chain(["late"]).collect();
        Other::with_keys(&all);
        assert_eq!(keys[32].index(), Some(33));
        assert_eq!(announced()[34], "key 33");
        assert_eq!(keys[33].index(), Some(35));
        assert_eq!(announced()[34], "late");
    });
}

#[test]
fn a_key_map_that_cannot_be_continued_changes_nothing() {
    in_own_process("a_key_map_that_cannot_be_continued_changes_nothing", || {
        let many: Vec<String> = (5..256).map(|number| number.to_string()).collect();
        let many = many.iter().map(String::as_str);
        let many: Vec<&str> = ["a", "b", "c", "d", "e"].into_iter().chain(many).collect();
        static KEYS: [Key; 6] = [
            Key::new("a"),
            Key::new("b"),
            Key::new("c"),
            Key::new("d"),
            Key::new("e"),
            Key::new("f"),
        ];
        let _guard = publish(&KEYS.each_ref());
        let other = Other::publish(vec![]);
        for (index, attributes) in [
            vec![],
            vec![(KEY_MAP.into(), 7_i64.into())],
            key_map(&[]),
            key_map(&["a", "b", "c", "x", "x"]),
            key_map(&["a", "b", "c", "d", ""]),
            key_map(&many),
        ]
        .into_iter()
        .enumerate()
        {
            other.update(attributes);
            assert_eq!(KEYS[index].index(), Some(index as u8));
            assert_eq!(announced(), ["a", "b", "c", "d", "e", "f"]);
        }
    });
}
