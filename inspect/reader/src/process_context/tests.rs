use std::cell::RefCell;

use otelctx_format::process_context::Value;
use otelctx_remote::memory::Image;

use super::*;

const HEADER: u64 = 0x1000;
const PAYLOAD: u64 = 0x9000;
const LIMIT: usize = 1 << 20;

fn payload(service: &str) -> Vec<u8> {
    Payload {
        resource: vec![("service.name".into(), service.into())],
        attributes: vec![],
    }
    .encode()
}

fn header(timestamp: u64, payload: &[u8]) -> Header {
    Header {
        payload_size: payload.len() as u32,
        monotonic_published_at_ns: timestamp,
        payload_address: PAYLOAD,
    }
}

/// A process that publishes `service`.
fn published(service: &str) -> Image {
    let bytes = payload(service);
    let mut image = Image::new();
    image
        .map(HEADER, header(7, &bytes).encode())
        .map(PAYLOAD, bytes);
    image
}

fn place() -> Place {
    Place {
        name: "/memfd:OTEL_CTX (deleted)".into(),
        address: HEADER,
        is_saved: false,
    }
}

fn found(memory: &dyn Memory) -> Found {
    read_first(&[place()], memory, LIMIT, &PastKeys::default())
        .unwrap()
        .unwrap()
}

fn service(context: &ProcessContext) -> Option<&Value> {
    context.payload.resource_attribute("service.name")
}

type Change = Box<dyn Fn(&mut Image)>;

/// Memory that changes after certain reads, and logs reads.
struct Changing {
    image: RefCell<Image>,
    reads: RefCell<Vec<(u64, usize)>>,
    /// Changes, and the number of reads after which each happens.
    changes: Vec<(usize, Change)>,
}

impl Changing {
    fn new(image: Image) -> Self {
        Self {
            image: image.into(),
            reads: RefCell::default(),
            changes: Vec::new(),
        }
    }

    fn after(mut self, reads: usize, change: impl Fn(&mut Image) + 'static) -> Self {
        self.changes.push((reads, Box::new(change)));
        self
    }
}

impl Memory for Changing {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        let result = self.image.borrow().read(address, buffer);
        let mut reads = self.reads.borrow_mut();
        reads.push((address, buffer.len()));
        for (after, change) in &self.changes {
            if reads.len() == *after {
                change(&mut self.image.borrow_mut());
            }
        }
        result
    }
}

#[test]
fn a_poll_of_what_is_unchanged_is_one_read_of_the_header() {
    let memory = Changing::new(published("shop"));
    let found = found(&memory);
    memory.reads.borrow_mut().clear();
    assert!(matches!(found.poll(&memory, LIMIT), Polled::Unchanged));
    assert_eq!(*memory.reads.borrow(), [(HEADER, HEADER_SIZE)]);
}

#[test]
fn a_poll_compares_every_byte_of_the_header() {
    let found = found(&published("shop"));
    for position in 0..HEADER_SIZE {
        let mut image = published("shop");
        let mut bytes = [0; HEADER_SIZE];
        image.read(HEADER, &mut bytes).unwrap();
        bytes[position] ^= 0x10;
        image.map(HEADER, bytes);
        let polled = found.poll(&image, LIMIT);
        assert!(!matches!(polled, Polled::Unchanged), "byte {position}");
    }
    assert!(matches!(found.poll(&Image::new(), LIMIT), Polled::Gone));
}

#[test]
fn an_update_is_read_and_noticed() {
    let found = found(&published("shop"));
    let mut image = published("bank");
    image.map(HEADER, header(8, &payload("bank")).encode());
    let Polled::Changed(new) = found.poll(&image, LIMIT) else {
        panic!()
    };
    assert_eq!(service(&new.context), Some(&"bank".into()));
    assert_eq!(new.context.monotonic_published_at_ns, 8);
}

#[test]
fn an_update_reads_the_others_once_more() {
    let at = |address| Place { address, ..place() };
    let mut image = published("shop");
    image
        .map(0x2000, header(9, b"").encode())
        .map(0x3000, header(9, b"").encode());
    let places = [at(HEADER), at(0x2000), at(0x3000)];
    let found = read_first(&places, &image, LIMIT, &PastKeys::default())
        .unwrap()
        .unwrap();
    assert_eq!(found.context.others, [0x2000, 0x3000]);
    image
        .map(HEADER, header(8, &payload("shop")).encode())
        .map(0x2000, [0; HEADER_SIZE]);
    let Polled::Changed(new) = found.poll(&image, LIMIT) else {
        panic!()
    };
    assert_eq!(new.context.others, [0x3000]);
}

#[test]
fn a_payload_that_changes_while_it_is_read_is_read_again() {
    // Reads: header, payload, header. The update happens between the first two, or the last two.
    for after in [1, 2] {
        let memory = Changing::new(published("shop")).after(after, |image| {
            let bytes = payload("bank");
            image
                .map(HEADER, header(8, &bytes).encode())
                .map(PAYLOAD, bytes);
        });
        let found = found(&memory);
        assert_eq!(service(&found.context), Some(&"bank".into()));
        assert_eq!(memory.reads.borrow().len(), 6, "after read {after}");
    }
}

#[test]
fn a_payload_that_cannot_be_read_is_broken_only_if_the_header_stays() {
    let nowhere = Header {
        payload_address: 0x10,
        ..header(7, &payload("shop"))
    };
    let mut image = published("shop");
    image.map(HEADER, nowhere.encode());
    let unreadable = read_first(&[place()], &image, LIMIT, &PastKeys::default()).unwrap_err();
    assert!(
        matches!(unreadable, Broken::PayloadUnreadable(_)),
        "{unreadable:?}"
    );
    // The old payload was freed by a concurrent update.
    let memory = Changing::new(image).after(2, |image| {
        image.map(HEADER, header(8, &payload("shop")).encode());
    });
    assert_eq!(service(&found(&memory).context), Some(&"shop".into()));
}

#[test]
fn an_update_that_does_not_end_is_reported() {
    let mut image = published("shop");
    image.map(HEADER, header(0, &payload("shop")).encode());
    assert_eq!(
        read_first(&[place()], &image, LIMIT, &PastKeys::default()).unwrap_err(),
        Broken::BeingUpdated { tries: 5 }
    );
    let found = found(&published("shop"));
    let polled = found.poll(&image, LIMIT);
    assert!(matches!(
        polled,
        Polled::Broken(_, Broken::BeingUpdated { tries: 5 })
    ));
}

#[test]
fn a_core_written_in_the_middle_of_an_update_says_so() {
    let mut image = published("shop");
    image.map(HEADER, header(0, &payload("shop")).encode());
    let place = Place::saved(b"/memfd:OTEL_CTX (deleted)", HEADER);
    let why = read_first(&[place], &image, LIMIT, &PastKeys::default()).unwrap_err();
    assert_eq!(why, Broken::LeftInUpdate);
}

#[test]
fn a_mapping_that_nothing_was_written_to_yet_is_being_published() {
    let mut image = published("shop");
    image.map(HEADER, [0; HEADER_SIZE]);
    assert_eq!(
        read_first(&[place()], &image, LIMIT, &PastKeys::default()).unwrap_err(),
        Broken::BeingUpdated { tries: 5 }
    );
    let memory = Changing::new(image).after(2, |image| {
        image.map(HEADER, header(7, &payload("shop")).encode());
    });
    let found = found(&memory);
    assert_eq!(service(&found.context), Some(&"shop".into()));

    // At a known context's address, zeroes may have any reason.
    let mut image = Image::new();
    image.map(HEADER, [0; HEADER_SIZE]);
    assert!(matches!(found.poll(&image, LIMIT), Polled::Gone));
}

#[test]
fn a_payload_above_the_limit_is_not_read() {
    let size = payload("shop").len();
    let memory = Changing::new(published("shop"));
    assert!(read_first(&[place()], &memory, size, &PastKeys::default()).is_ok());
    memory.reads.borrow_mut().clear();
    let error = read_first(&[place()], &memory, size - 1, &PastKeys::default()).unwrap_err();
    let (size, limit) = (size as u32, size - 1);
    assert_eq!(error, Broken::TooLarge { size, limit });
    assert!(memory.reads.borrow().iter().all(|(at, _)| *at == HEADER));
}

#[test]
fn empty_and_repeated_keys_are_skipped_and_reported() {
    let bytes = Payload {
        resource: vec![("a".into(), 1.into()), ("a".into(), 2.into())],
        attributes: vec![(String::new(), 3.into())],
    }
    .encode();
    let mut image = Image::new();
    image
        .map(HEADER, header(7, &bytes).encode())
        .map(PAYLOAD, bytes);
    let context = found(&image).context;
    assert_eq!(context.payload.resource, [("a".into(), Value::Int(1))]);
    assert_eq!(context.payload.attributes, []);
    assert_eq!(
        context.problems,
        [Problem::RepeatedKey("a".into()), Problem::EmptyKey]
    );
}

#[test]
fn of_several_places_the_first_that_validates_counts() {
    let at = |address| Place { address, ..place() };
    let mut image = published("shop");
    image
        .map(0x100, *b"something else, 32 bytes of it..")
        .map(0x2000, header(9, b"").encode());
    let places = [at(0x10), at(0x100), at(HEADER), at(0x2000), at(0x3000)];
    let found = read_first(&places, &image, LIMIT, &PastKeys::default())
        .unwrap()
        .unwrap();
    assert_eq!(found.context.address, HEADER);
    assert_eq!(found.context.others, [0x2000]);
    assert!(matches!(
        read_first(&[], &image, LIMIT, &PastKeys::default()),
        Ok(None)
    ));

    // The error of the one that is a context is more informative than those of the others.
    image.map(HEADER, header(7, &[0; 99]).encode());
    let why = read_first(&places[..3], &image, LIMIT, &PastKeys::default()).unwrap_err();
    assert!(matches!(why, Broken::PayloadUnreadable(_)), "{why:?}");
}

#[test]
fn a_mapping_is_looked_into_for_its_name() {
    for name in [
        "[anon_shmem:OTEL_CTX]",
        "[anon:OTEL_CTX]",
        "/memfd:OTEL_CTX",
        "/memfd:OTEL_CTX (deleted)",
    ] {
        assert!(is_named(name.as_bytes()), "{name}");
    }
    for name in [
        "",
        "[heap]",
        "/tmp/memfd:OTEL_CTX",
        "[anon:OTEL_CT",
        "/memfd:otel_ctx",
    ] {
        assert!(!is_named(name.as_bytes()), "{name}");
    }
}

/// A context with this key map at `address`; its payload is behind the header.
fn with_keys(image: &mut Image, address: u64, attributes: &[(&str, Value)]) {
    let attributes = attributes.iter();
    let attributes = attributes.map(|(key, value)| ((*key).into(), value.clone()));
    let bytes = Payload {
        resource: vec![],
        attributes: attributes.collect(),
    }
    .encode();
    let mut header = header(7, &bytes);
    header.payload_address = address + HEADER_SIZE as u64;
    image.map(address, [&header.encode()[..], &bytes].concat());
}

fn keys(names: &[&str]) -> (&'static str, Value) {
    let keys = KeyMap::new(names.iter().copied()).unwrap();
    (otelctx_format::KEY_MAP, keys.to_value())
}

fn at(addresses: &[u64]) -> Vec<Place> {
    let addresses = addresses.iter();
    addresses
        .map(|&address| Place { address, ..place() })
        .collect()
}

fn names_of(found: &Found) -> Vec<String> {
    let keys = found.context.keys.clone().unwrap().unwrap();
    keys.names().to_vec()
}

#[test]
fn the_first_context_that_announces_contexts_of_threads_counts() {
    let schema = (otelctx_format::SCHEMA_VERSION, Value::from("tls_v1"));
    let mut image = Image::new();
    with_keys(&mut image, 0x2000, &[]);
    with_keys(&mut image, 0x3000, &[schema.clone(), keys(&["a"])]);
    with_keys(&mut image, 0x4000, &[schema, keys(&["a"])]);
    let found = read_first(
        &at(&[0x2000, 0x3000, 0x4000]),
        &image,
        LIMIT,
        &PastKeys::default(),
    );
    let found = found.unwrap().unwrap();
    assert_eq!(found.context.address, 0x3000);
    assert_eq!(found.context.others, [0x2000, 0x4000]);
    // One without a key map disagrees with nobody.
    assert_eq!(names_of(&found), ["a"]);
    let none = read_first(&at(&[0x2000, 0x1000]), &image, LIMIT, &PastKeys::default());
    assert_eq!(none.unwrap().unwrap().context.keys, Ok(None));
}

#[test]
fn another_context_that_cannot_be_read_may_have_other_names() {
    let mut image = Image::new();
    with_keys(&mut image, 0x2000, &[keys(&["a"])]);
    let two = at(&[0x2000, 0x3000]);
    let read = |image: &Image| {
        read_first(&two, image, LIMIT, &PastKeys::default())
            .unwrap()
            .unwrap()
    };
    for attribute in [keys(&["a"]), (otelctx_format::KEY_MAP, Value::Int(1))] {
        let is_known = attribute == keys(&["a"]);
        with_keys(&mut image, 0x3000, &[attribute]);
        assert_eq!(
            names_of(&read(&image)).len(),
            if is_known { 1 } else { 256 }
        );
    }
    let nowhere = Header {
        payload_address: 0x10,
        ..header(7, &payload("shop"))
    };
    image.map(0x3000, nowhere.encode());
    assert_eq!(names_of(&read(&image))[..2], ["#0", "#1"]);
    // Its next update is noticed, although the first context stays the same.
    let found = read(&image);
    with_keys(&mut image, 0x3000, &[keys(&["a", "b"])]);
    let Polled::Changed(new) = found.poll(&image, LIMIT) else {
        panic!()
    };
    assert_eq!(names_of(&new), ["a", "b"]);
    let keys = new.context.keys.clone().unwrap().unwrap();
    assert_eq!(
        [0, 1].map(|index| keys.is_provisional(index)),
        [false, true]
    );
    image.map(0x3000, [0; HEADER_SIZE]);
    let Polled::Changed(new) = new.poll(&image, LIMIT) else {
        panic!()
    };
    assert_eq!(
        (names_of(&new), new.context.others.len()),
        (vec!["a".into(), "#1".into()], 0)
    );
}

#[test]
fn of_more_contexts_than_are_read_the_names_are_unknown() {
    for (number, names) in [(MAX_OTHERS, 1), (MAX_OTHERS + 1, 256)] {
        let mut image = Image::new();
        let addresses: Vec<u64> = (0..=number as u64).map(|it| 0x2000 + (it << 12)).collect();
        for address in &addresses {
            with_keys(&mut image, *address, &[keys(&["a"])]);
        }
        let found = read_first(&at(&addresses), &image, LIMIT, &PastKeys::default())
            .unwrap()
            .unwrap();
        assert_eq!(found.context.others.len(), number);
        assert_eq!(names_of(&found).len(), names);
    }
}

/// Otherwise the records of the first publisher have the names of the second one.
#[test]
fn another_key_map_at_the_same_address_is_searched_for_and_contests_names() {
    let mut image = Image::new();
    with_keys(&mut image, HEADER, &[keys(&["a", "b"])]);
    let first = found(&image);
    with_keys(&mut image, HEADER, &[("z", 1.into()), keys(&["a", "x"])]);
    assert!(matches!(first.poll(&image, LIMIT), Polled::Gone));
    let second = read_first(&[place()], &image, LIMIT, &first.past);
    assert_eq!(names_of(&second.unwrap().unwrap()), ["a", "#1"]);
}

/// A scan may come between the steps of a publisher.
#[test]
fn memory_to_which_a_context_is_written_later_is_polled() {
    let mut image = Image::new();
    with_keys(&mut image, HEADER, &[keys(&["a"])]);
    image.map(0x3000, [0; HEADER_SIZE]);
    let places = at(&[HEADER, 0x3000]);
    let found = read_first(&places, &image, LIMIT, &PastKeys::default());
    let found = found.unwrap().unwrap();
    assert_eq!(
        (names_of(&found), &found.context.others[..]),
        (vec!["a".into()], &[][..])
    );
    with_keys(&mut image, 0x3000, &[keys(&["x"])]);
    let Polled::Changed(new) = found.poll(&image, LIMIT) else {
        panic!()
    };
    assert_eq!(
        (names_of(&new), &new.context.others[..]),
        (vec!["#0".into()], &[0x3000][..])
    );
}
