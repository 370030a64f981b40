//! Tasks of processes whose structures are malformed: those of a real one, with other words here and there.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use otelctx_fixtures::python::Interpreter;
use otelctx_fixtures::{Random, Target as Program};
use otelctx_reader::remote::{LiveProcess, MemoryError};
use otelctx_reader::runtime::MAX_FRAMES;

use super::layout::{Generator, Stack};
use super::*;
use crate::test_process;

/// Memory of a process in which words are replaced: these, and others at random.
struct Changed<'m> {
    memory: &'m dyn Memory,
    words: HashMap<u64, u64>,
    /// Number of reads of which one has a changed word. Zero: none has.
    rate: u64,
    random: RefCell<Random>,
    /// Words that were read before: most are addresses.
    seen: RefCell<Vec<u64>>,
    reads: Cell<u64>,
}

impl<'m> Changed<'m> {
    fn new(memory: &'m dyn Memory, words: &[(u64, u64)]) -> Self {
        Self {
            memory,
            words: words.iter().copied().collect(),
            rate: 0,
            random: RefCell::new(Random::new(1)),
            seen: RefCell::default(),
            reads: Cell::new(0),
        }
    }

    fn next(&self) -> u64 {
        self.random.borrow_mut().number()
    }
}

impl Memory for Changed<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        self.reads.set(self.reads.get() + 1);
        self.memory.read(address, buffer)?;
        for (at, word) in &self.words {
            let place = at.wrapping_sub(address) as usize;
            if let Some(bytes) = place
                .checked_add(8)
                .and_then(|end| buffer.get_mut(place..end))
            {
                bytes.copy_from_slice(&word.to_ne_bytes());
            }
        }
        let (words, _) = buffer.as_chunks_mut::<8>();
        let mut seen = self.seen.borrow_mut();
        seen.extend(words.iter().map(|word| u64::from_ne_bytes(*word)));
        if seen.len() > 4096 {
            seen.truncate(2048);
        }
        if self.rate > 0 && self.next().is_multiple_of(self.rate) && !words.is_empty() {
            let place = self.next() as usize % words.len();
            words[place] = match self.next() % 5 {
                0 => 0,
                1 => u64::MAX,
                2 => self.next(),
                3 => address,
                _ => seen[self.next() as usize % seen.len()],
            }
            .to_ne_bytes();
        }
        Ok(())
    }
}

/// A process with tasks, and their layout.
struct Fixture {
    _program: Program,
    target: LiveProcess<'static>,
}

impl Fixture {
    fn new(interpreter: &Interpreter) -> Self {
        let mut command = interpreter.command("tasks.py");
        let program = Program::spawn(command.arg("blocks"));
        let target = test_process::open(program.pid());
        Self {
            _program: program,
            target,
        }
    }

    /// Reads the tasks with these words changed.
    fn read(&self, memory: &Changed<'_>) -> (Vec<Task>, Result<(), RuntimeError>) {
        let (python, found) = self.layout();
        let mut codes = Codes::default();
        let mut tasks = Vec::new();
        let interpreters = python.variables.interpreters;
        let memory = Limited::new(memory, MAX_READS, None);
        let result = visit_all(
            &memory,
            &python.layout,
            found,
            &mut codes,
            interpreters,
            &mut |task| {
                tasks.push(task);
                ControlFlow::Continue(())
            },
        );
        (tasks, result)
    }

    fn layout(&self) -> (crate::process::PythonProcess, TaskLayout) {
        let python = test_process::find_python(&self.target);
        let runtime = python.layout.runtime.unwrap().interpreters;
        let runtime = python.variables.interpreters - runtime;
        let found = layout::find(&self.target, python.version, Some(runtime));
        (python, found.unwrap().unwrap())
    }

    fn word(&self, address: u64) -> u64 {
        self.target.read_u64(address).unwrap()
    }

    fn changed(&self, words: &[(u64, u64)]) -> (Vec<Task>, Result<(), RuntimeError>) {
        self.read(&Changed::new(&self.target, words))
    }
}

fn is_named(task: &Task, name: &str) -> bool {
    let name = Value::String(name.to_owned());
    task.facts.contains(&("name".to_owned(), name))
}

#[test]
fn arbitrary_words_give_no_endless_work() {
    let versions = ["3.7", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15"];
    for interpreter in versions.iter().filter_map(|it| {
        let mut found = Interpreter::with_version(it);
        found.pop()
    }) {
        let fixture = Fixture::new(&interpreter);
        let mut missing = 0;
        for seed in 1..60 {
            let mut memory = Changed::new(&fixture.target, &[]);
            memory.rate = [10, 50, 300][seed as usize % 3];
            memory.random.replace(Random::new(seed * 0x9e37_79b9));
            let (tasks, result) = fixture.read(&memory);
            missing += u32::from(result.is_err());
            assert!(tasks.iter().all(|task| task.frames.len() <= MAX_FRAMES + 2));
            let facts = tasks.iter().flat_map(|task| &task.facts);
            let is_short = |value: &Value| !matches!(value, Value::Array(it) if it.len() > 64);
            assert!(facts.map(|(_, value)| value).all(is_short));
            assert!(tasks.len() <= MAX_TASKS);
            // Some 15 tasks, of which each takes fewer than a hundred without changes; a list of threads,
            // interpreters or modules may have more entries.
            let reads = memory.reads.get();
            assert!(reads < 200_000, "{interpreter:?}: {reads} reads");
        }
        assert!(missing > 30, "{interpreter:?}: {missing}");
    }
}

#[test]
fn a_chain_of_coroutines_that_await_each_other_is_truncated() {
    for version in ["3.12", "3.14", "3.15"] {
        for interpreter in Interpreter::with_version(version) {
            let fixture = Fixture::new(&interpreter);
            let (_, found) = fixture.layout();
            let (tasks, result) = fixture.changed(&[]);
            assert_eq!(result, Ok(()));
            let task = tasks.iter().find(|task| is_named(task, "a name")).unwrap();
            assert_eq!((task.frames.len(), task.is_truncated), (3, false));
            let coroutine = fixture.word(task.id + found.task.coroutine);
            let Generator::Embedded { frame, stack, .. } = found.generator else {
                panic!("{found:?}")
            };
            let frame = coroutine + frame;
            let top = fixture.word(frame + Stack::TOP);
            let place = match stack {
                Stack::Count { .. } => frame + stack.values() + 8 * ((top & 0xffff_ffff) - 1),
                Stack::End { above } => top - 8 * (above + 1),
            };
            let (tasks, result) = fixture.changed(&[(place, coroutine)]);
            assert_eq!(result, Ok(()));
            let task = tasks.iter().find(|task| is_named(task, "a name")).unwrap();
            let names: Vec<&str> = task.frames.iter().map(|it| &*it.function).collect();
            let unknown = "[incomplete: inner frames unknown, more than 1]";
            let expected = vec![unknown, "checkout"];
            assert_eq!((names, task.is_truncated), (expected, true));
            // A stack outside the frame is not read.
            let wrong = [(frame + Stack::TOP, u64::MAX)];
            let (tasks, result) = fixture.changed(&wrong);
            assert!(!tasks.iter().any(|task| is_named(task, "a name")));
            let frame = format!("the frame at {frame:#x} has no stack");
            assert_eq!(result, Err(RuntimeError::new(frame)));
        }
    }
}

#[test]
fn what_awaits_a_task_is_counted_where_it_cannot_be_read() {
    for version in ["3.14", "3.15"] {
        for interpreter in Interpreter::with_version(version) {
            let fixture = Fixture::new(&interpreter);
            let (_, found) = fixture.layout();
            let facts = |words: &[(u64, u64)]| {
                let (tasks, result) = fixture.changed(words);
                assert_eq!(result, Ok(()));
                let task = tasks.iter().find(|task| is_named(task, "of many")).unwrap();
                let fact = |name| task.facts.iter().find(|(key, _)| key == name);
                let ids = fact("awaited_by_ids").map(|(_, ids)| ids.clone());
                let omitted = fact("awaited_by_omitted").map(|(_, number)| number.clone());
                (ids, omitted, task.id)
            };
            let (Some(Value::Array(ids)), None, task) = facts(&[]) else {
                panic!("{:?}", facts(&[]))
            };
            assert_eq!(ids.len(), 30);
            let object = task + found.task.awaited_by.unwrap().object;
            let set = fixture.word(object);
            // No set, one with more objects than entries, and one whose entries cannot be read.
            let unreadable: [&[_]; 4] = [
                &[(object, task)],
                &[(object, 8)],
                &[(set + 24, u64::MAX)],
                &[(set + 40, 8)],
            ];
            for words in unreadable {
                assert_eq!(facts(words), (None, Some(Value::Int(1)), task), "{words:?}");
            }
            // Entries beyond the part that is read.
            let (_, omitted, _) = facts(&[(set + 24, 1 << 40), (set + 32, u64::MAX)]);
            let Some(Value::Int(omitted)) = omitted else {
                panic!("{omitted:?}")
            };
            assert!(omitted >= (1 << 40) - 1024, "{omitted}");
            assert_eq!(facts(&[(object, 0)]), (None, None, task));
            // An entry that is no object, and one that is no task.
            let table = fixture.word(set + 40);
            let mut entries = (0..).map(|index| table + 16 * index);
            let used = entries.find(|entry| {
                let (key, hash) = (fixture.word(*entry), fixture.word(entry + 8));
                key != 0 && hash != u64::MAX
            });
            let used = used.unwrap();
            for (key, expected) in [(8, Some(Value::Int(1))), (set, None)] {
                let (ids, omitted, _) = facts(&[(used, key)]);
                let Some(Value::Array(ids)) = ids else {
                    panic!("{ids:?}")
                };
                assert_eq!((ids.len(), omitted), (29, expected));
            }
        }
    }
}

#[test]
fn lists_of_tasks_without_an_end_are_errors() {
    for version in ["3.14", "3.15"] {
        for interpreter in Interpreter::with_version(version) {
            let fixture = Fixture::new(&interpreter);
            let (_, found) = fixture.layout();
            let node = found.rings.unwrap().node;
            let (tasks, _) = fixture.changed(&[]);
            let node = tasks[2].id + node;
            let (found, result) = fixture.changed(&[(node, node)]);
            assert_eq!(found, tasks[..3]);
            let error = RuntimeError::new("a list of its tasks does not end");
            assert_eq!(result, Err(error));
            // What is not a task ends it, too.
            let (found, result) = fixture.changed(&[(node, node + 8)]);
            assert_eq!(found, tasks[..3]);
            assert!(result.is_err());
        }
    }
}

#[test]
fn tasks_of_another_size_are_not_read() {
    for version in ["3.9", "3.12", "3.14"] {
        for interpreter in Interpreter::with_version(version) {
            let fixture = Fixture::new(&interpreter);
            let (tasks, _) = fixture.changed(&[]);
            // `tp_basicsize`
            let size = fixture.word(tasks[0].id + TYPE) + 32;
            let (found, result) = fixture.changed(&[(size, fixture.word(size) + 8)]);
            let error = result.unwrap_err().to_string();
            let expected = "its tasks have an unknown layout: ";
            assert!(error.starts_with(expected), "{interpreter:?}: {error}");
            assert_eq!(found, [], "{interpreter:?}");
        }
    }
}
