//! Words of the heap, of the structure and of the record that are not what they should be: the step in the kernel comes to
//! the same outcome as the walk in user space.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use otelctx_fixtures::{Random, Target};
use otelctx_reader::Thread;
use otelctx_reader::runtime::Present;
use otelctx_reader::sample::{Catalog, Found, Sample};
use otelctx_sampler::{INTERVAL, Sampler, monotonic};

use crate::{heap, open, shown, start};

/// An object of `node_heap.c`, and what its words are in the beginning.
struct Object {
    address: u64,
    words: Vec<u64>,
}

/// A program whose words are changed, and changed back.
struct Program {
    target: Target,
    objects: BTreeMap<String, Object>,
}

impl Program {
    fn start() -> Option<Self> {
        let target = heap(&[])?;
        let process = open(target.pid());
        let memory = process.as_target().unwrap();
        let lines = target.lines.iter();
        let object = |line: &str| {
            let [name, address, count] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            let number = |digits: &str| u64::from_str_radix(digits, 16).unwrap();
            let address = number(address);
            let words = (0..number(count)).map(|at| memory.read_u64(address + 8 * at).unwrap());
            let words = words.collect();
            (name.to_owned(), Object { address, words })
        };
        let objects = lines.filter_map(|line| line.strip_prefix("object "));
        let objects = objects.map(object).collect();
        Some(Self { target, objects })
    }

    fn address(&self, name: &str) -> u64 {
        self.objects[name].address
    }

    /// A reference to an object.
    fn tagged(&self, name: &str) -> u64 {
        self.address(name) + 1
    }

    fn write(&mut self, (name, at, word): &Change) {
        let address = self.address(name) + 8 * *at as u64;
        self.target.command(&format!("write {address:x} {word:x}"));
    }

    fn undo(&mut self, (name, at, _): &Change) {
        let word = self.objects[*name].words[*at];
        self.write(&(name, *at, word));
    }
}

/// An object's name, the index of its word, and a value for it.
type Change = (&'static str, usize, u64);

fn integer(number: i32) -> u64 {
    u64::from(number.cast_unsigned()) << 32
}

/// One change for each check of the walk, and those around it.
fn chosen(program: &Program) -> Vec<Vec<Change>> {
    let tagged = |name: &str| program.tagged(name);
    let undefined = program.objects["structure"].words[3];
    let hash = program.objects["structure"].words[2];
    let own = |name: &str, at: usize| program.objects[name].words[at];
    const NOWHERE: u64 = 0x1234_5000;
    let one = [
        ("structure", 0, 0),
        ("structure", 0, NOWHERE),
        ("structure", 0, u64::MAX - 3),
        ("structure", 1, 0),
        ("structure", 1, NOWHERE),
        // The hash leads to the other bucket; there is no place for the record.
        ("structure", 2, hash - 1),
        ("structure", 2, hash & 0xffff_ffff),
        ("structure", 2, hash | 0xff << 32),
        ("structure", 3, 0),
        ("structure", 3, NOWHERE),
        ("frame", 0, undefined),
        ("frame", 0, tagged("map") - 1),
        ("frame", 0, 0),
        ("frame", 0, NOWHERE + 1),
        ("frame", 0, u64::MAX),
        ("handle", 0, undefined),
        ("handle", 0, 0),
        ("map", 3, tagged("map")),
        ("map", 3, program.address("table")),
        ("map", 3, tagged("table") + 8),
        ("map", 3, tagged("table") + 4),
        ("map", 3, NOWHERE + 1),
        // Its length, elements, deleted elements and buckets.
        ("table", 1, integer(16)),
        ("table", 1, integer(17) + 1),
        ("table", 1, integer(i32::MIN)),
        ("table", 2, integer(0)),
        ("table", 2, integer(5)),
        ("table", 2, integer(-1)),
        ("table", 2, integer(i32::MAX)),
        ("table", 3, integer(1)),
        ("table", 3, integer(-4)),
        ("table", 3, 7),
        ("table", 4, integer(0)),
        ("table", 4, integer(1)),
        ("table", 4, integer(3)),
        ("table", 4, integer(i32::MIN)),
        ("table", 4, tagged("table")),
        // The bucket, and the entries that it leads to.
        ("table", 6, integer(-1)),
        ("table", 6, integer(-2)),
        ("table", 6, integer(4)),
        ("table", 6, integer(0)),
        ("table", 6, 1),
        // A chain that leads back.
        ("table", 12, integer(2)),
        ("table", 15, integer(3)),
        ("table", 18, integer(3)),
        ("table", 18, integer(i32::MAX)),
        ("table", 7, tagged("map")),
        ("table", 7, NOWHERE + 1),
        ("table", 8, undefined),
        ("table", 8, 0),
        ("table", 8, NOWHERE + 1),
        ("table", 8, tagged("value") - 1),
        ("value", 4, 0),
        ("value", 4, NOWHERE),
        ("value", 4, u64::MAX),
        ("value", 4, own("value", 4) + 1),
        // The valid flag, the flags, and the size of the attributes.
        ("record", 3, 0),
        ("record", 3, 0x0000_0000_0000_0102),
        ("record", 3, 0x0000_0000_0004_0101),
        ("record", 3, 0x0000_0000_ffff_0101),
        ("record", 0, 0),
    ];
    let mut all: Vec<_> = one.into_iter().map(|change| vec![change]).collect();
    // A key that was moved: the first word of its old place is the address of the new one.
    all.push(vec![
        ("table", 7, tagged("value")),
        ("key", 0, program.address("value")),
    ]);
    all.push(vec![
        ("handle", 0, tagged("record")),
        ("record", 0, program.address("key")),
    ]);
    // That of another object, or of none.
    all.push(vec![
        ("table", 7, tagged("value")),
        ("key", 0, program.address("map")),
    ]);
    all.push(vec![
        ("table", 7, tagged("value")),
        ("key", 0, program.address("value") + 1),
    ]);
    all
}

/// One to three changes of any words.
fn random_changes(random: &mut Random, program: &Program) -> Vec<Change> {
    const NAMES: [&str; 8] = [
        "structure",
        "frame",
        "handle",
        "map",
        "table",
        "key",
        "value",
        "record",
    ];
    let count = 1 + random.below(3);
    let changes = (0..count).map(|_| {
        let name = NAMES[random.below(8) as usize];
        let at = random.below(program.objects[name].words.len() as u64) as usize;
        let object = program.address(NAMES[random.below(8) as usize]);
        let word = match random.below(8) {
            0 => random.below(u64::MAX),
            1 => integer(random.below(8) as i32 - 2),
            2 => integer(random.below(u64::from(u32::MAX)) as u32 as i32),
            3 => object,
            4 => object + 1,
            5 => object + random.below(64),
            // The kernel's, and what no address can be.
            6 => u64::MAX - random.below(1 << 46),
            _ => 1 << random.below(64),
        };
        (name, at, word)
    });
    changes.collect()
}

/// Returns the result of the walk in user space.
fn walked(thread: &Thread<'_>, present: &[Present]) -> String {
    // On a busy machine, it may not stop in time.
    let mut states = (0..10).map(|_| thread.state(present, None));
    let state = states.find_map(Result::ok).expect("it stops");
    let Some(reading) = state.runtimes.first() else {
        return "nothing".to_owned();
    };
    match &reading.thread {
        Ok(read) => match &read.context {
            Found::Attached(context) => shown(context),
            other => format!("{other:?}"),
        },
        Err(_) => "error".to_owned(),
    }
}

/// Takes samples of one thread.
struct Samples {
    sampler: Sampler,
    catalog: Catalog,
}

impl Samples {
    /// The outcomes of samples that are taken from now on, at least three of them.
    fn take(&mut self, tid: i32) -> BTreeSet<String> {
        self.sampler.drain(&mut self.catalog, &mut |_| {});
        let (start, incomplete) = (monotonic(), self.sampler.counts().incomplete_steps);
        let deadline = Instant::now() + otelctx_fixtures::HANG_TIMEOUT;
        let mut samples = Vec::<Sample>::new();
        while samples.len() < 3 {
            assert!(Instant::now() < deadline, "no samples");
            std::thread::sleep(INTERVAL);
            let drained = &mut |sample| samples.push(sample);
            self.sampler.drain(&mut self.catalog, drained);
            let catalog = &self.catalog;
            samples.retain(|it| it.time >= start && catalog.thread_facts(it.thread).tid == tid);
        }
        let incomplete = self.sampler.counts().incomplete_steps - incomplete;
        let outcome = |sample: &Sample| match sample.found {
            Found::Attached(context) => shown(self.catalog.context_facts(context)),
            // What the step could not read is counted, and nothing else.
            Found::NotPublished if incomplete >= samples.len() as u64 => "error".to_owned(),
            Found::NotPublished => "nothing".to_owned(),
            other => format!("{other:?}"),
        };
        samples.iter().map(outcome).collect()
    }
}

#[test]
fn the_kernel_comes_to_the_outcome_of_the_walk_whatever_the_words_are() {
    let Some(mut program) = Program::start() else {
        return;
    };
    let Some(sampler) = start(program.target.pid(), 1999, false) else {
        return;
    };
    let mut samples = Samples {
        sampler,
        catalog: Catalog::new(),
    };
    let mut process = open(program.target.pid());
    let present = process.runtimes().unwrap();
    let threads = process.threads().unwrap();
    let is_spinning = |it: &&Thread<'_>| it.tid() != program.target.pid();
    let thread = threads.iter().find(is_spinning).unwrap();
    let good = walked(thread, &present);
    // Until it is known to the sampler.
    let is_known = (0..100).any(|_| samples.take(thread.tid()) == BTreeSet::from([good.clone()]));
    assert!(is_known, "{good}");

    let mut cases = chosen(&program);
    let mut random = Random::new(0x9e37_79b9_7f4a_7c15);
    cases.extend((0..60).map(|_| random_changes(&mut random, &program)));
    let mut counts = BTreeMap::<String, usize>::new();
    for changes in cases {
        for change in &changes {
            program.write(change);
        }
        let expected = walked(thread, &present);
        let found = samples.take(thread.tid());
        assert_eq!(found, BTreeSet::from([expected.clone()]), "{changes:x?}");
        for change in changes.iter().rev() {
            program.undo(change);
        }
        // Trace, span, flags and attributes.
        let kind = if expected.contains(' ') {
            "attached"
        } else {
            &expected
        };
        *counts.entry(kind.to_owned()).or_default() += 1;
    }
    println!("{counts:?}");
    // Each of them was there.
    let kinds: Vec<_> = counts.keys().map(String::as_str).collect();
    assert_eq!(
        kinds,
        ["Detached", "Invalid", "attached", "error", "nothing"]
    );
    assert_eq!(walked(thread, &present), good);
    assert_eq!(samples.take(thread.tid()), BTreeSet::from([good]));
}
