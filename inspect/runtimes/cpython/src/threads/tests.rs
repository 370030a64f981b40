//! Lists of thread states of real interpreters.

use std::collections::BTreeSet;
use std::time::Instant;

use otelctx_fixtures::Target;
use otelctx_fixtures::python::Interpreter;
use otelctx_reader::remote::LiveProcess;
use otelctx_reader::remote::memory::CountedMemory;

use super::*;
use crate::process::PythonProcess;
use crate::test_process;

/// A Python program with this many threads, of which one runs.
fn crowd(interpreter: &Interpreter, threads: u32) -> (Target, LiveProcess<'static>, PythonProcess) {
    let target = Target::spawn(interpreter.command("crowd.py").arg(threads.to_string()));
    let process = test_process::open(target.pid());
    let found = test_process::find_python(&process);
    (target, process, found)
}

/// Each read is a system call.
#[test]
fn a_thousand_thread_states_are_listed_with_sixty_reads() {
    for version in ["2.7", "3.9", "3.11", "3.12", "3.13", "3.13t", "3.15"] {
        for interpreter in Interpreter::with_version(version) {
            let (target, process, found) = crowd(&interpreter, 1000);
            let states = target
                .lines
                .iter()
                .filter_map(|line| line.rsplit_once(" 0x"));
            let states = states.map(|(_, address)| u64::from_str_radix(address, 16).unwrap());
            let expected: BTreeSet<u64> = states.collect();
            assert_eq!(expected.len(), 1000, "{interpreter:?}");
            let memory = CountedMemory::new(&process);
            let begin = Instant::now();
            let search = Search {
                memory: &memory,
                layout: &found.layout,
                variables: &found.variables,
                cache: &StateCache::default(),
                thread: ThreadView::new(target.pid(), 0),
                is_on_stack: &|_| None,
            };
            let interpreters = search.interpreters().unwrap();
            let newest = search.newest_of_each(&interpreters[..1]).unwrap();
            let list = search.read_list(&interpreters, newest).unwrap();
            let (took, reads) = (begin.elapsed(), memory.take_reads());
            let listed = list.by_thread.values().flatten().map(|it| it.address);
            assert_eq!(listed.collect::<BTreeSet<_>>(), expected, "{interpreter:?}");
            eprintln!("{interpreter}: {reads} reads, {took:?}");
            // Without a GIL, a thread state contains the allocator's heaps: 16 KiB.
            let limit = if interpreter.is_free_threaded {
                400
            } else {
                60
            };
            assert!(reads <= limit, "{interpreter:?}: {reads}");
            let listed = addresses(&memory, &found.layout, &found.variables).unwrap();
            assert_eq!(listed.len(), 1000, "{interpreter:?}");
            assert_eq!(BTreeSet::from_iter(listed), expected, "{interpreter:?}");
            assert_eq!(memory.take_reads(), reads, "{interpreter:?}");
            // It is not read again for each thread.
            let variables = Variables {
                own: None,
                ..found.variables
            };
            let cache = StateCache::default();
            for (thread, states) in &list.by_thread {
                let pointer = thread.wrapping_add_signed(-found.variables.thread_id);
                let thread = ThreadView::new(target.pid(), pointer);
                let resolved = resolve(&memory, &found.layout, &variables, &cache, thread, &|_| {
                    None
                });
                let state = resolved.unwrap().unwrap().thread_state;
                assert_eq!(
                    [state],
                    *states.iter().map(|it| it.address).collect::<Vec<_>>()
                );
            }
            let reads = memory.take_reads();
            assert!(reads <= limit + 10 * 1000, "{interpreter:?}: {reads}");
        }
    }
}

/// Memory in which a word is replaced.
struct Replaced<'m> {
    memory: &'m dyn Memory,
    at: u64,
    word: u64,
}

impl Memory for Replaced<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read(address, buffer)?;
        let place = self.at.wrapping_sub(address) as usize;
        if let Some(bytes) = place
            .checked_add(8)
            .and_then(|end| buffer.get_mut(place..end))
        {
            bytes.copy_from_slice(&self.word.to_ne_bytes());
        }
        Ok(())
    }
}

/// The last thread state is followed by the first one.
#[test]
fn a_list_that_does_not_end_is_not_read_for_each_thread() {
    for interpreter in Interpreter::with_version("3.11") {
        let (_target, process, found) = crowd(&interpreter, 100);
        let interpreter = process.read_u64(found.variables.interpreters).unwrap();
        let first = interpreter + found.layout.interpreter.threads;
        let first = process.read_u64(first).unwrap();
        let next = found.layout.thread.next;
        let mut last = first;
        while let state @ 1.. = process.read_u64(last + next).unwrap() {
            last = state;
        }
        let memory = Replaced {
            memory: &process,
            at: last + next,
            word: first,
        };
        let counted = CountedMemory::new(&memory);
        let variables = Variables {
            own: None,
            ..found.variables
        };
        let cache = StateCache::default();
        let begin = Instant::now();
        let mut reads = Vec::new();
        for thread in 1..100 {
            let thread = ThreadView::new(thread, 4096 * u64::try_from(thread).unwrap());
            let resolved = resolve(&counted, &found.layout, &variables, &cache, thread, &|_| {
                None
            });
            let error = resolved.unwrap_err().to_string();
            assert_eq!(error, "its list of threads has more than 16384");
            reads.push(counted.take_reads());
        }
        // Then, the first one of the list is read to see whether it is another one.
        assert!(begin.elapsed() >= BACK_OFF || reads[1..].iter().all(|it| *it < 10));
        assert!(reads[0] < MAX_LONG_TRIES * (MAX_THREADS + 10), "{reads:?}");
    }
}

/// A thread executes with a state that it does not store, while the others are read.
#[test]
fn a_list_with_a_state_that_no_thread_stores_is_not_read_for_each_thread() {
    for interpreter in Interpreter::with_version("3.11") {
        let (target, process, found) = crowd(&interpreter, 1000);
        let memory = CountedMemory::new(&process);
        // A thread pointer points to itself, which is no thread state.
        let variables = Variables {
            own: Some(OwnState::ThreadLocal(0)),
            ..found.variables
        };
        let cache = StateCache::default();
        let mut reads = Vec::new();
        for line in &target.lines {
            let Some((_, address)) = line.rsplit_once(" 0x") else {
                continue;
            };
            let address = u64::from_str_radix(address, 16).unwrap();
            let state = State::read(&process, &found.layout, address).unwrap();
            let pointer = state.thread.wrapping_add_signed(-found.variables.thread_id);
            let thread = ThreadView::new(target.pid(), pointer);
            let is_on_stack = |_| None;
            let search = Search {
                memory: &process,
                layout: &found.layout,
                variables: &variables,
                cache: &cache,
                thread,
                is_on_stack: &is_on_stack,
            };
            let is_holder = || search.holds_gil(&state).unwrap();
            let before = is_holder();
            let resolved = resolve(
                &memory,
                &found.layout,
                &variables,
                &cache,
                thread,
                &is_on_stack,
            );
            reads.push(memory.take_reads());
            let resolved = resolved.unwrap();
            // On a busy machine, the last threads may not wait yet.
            if is_holder() == before {
                let expected = (before == Some(false)).then_some(address);
                assert_eq!(resolved.map(|it| it.thread_state), expected);
            }
        }
        assert_eq!(reads.len(), 1000);
        // And then another thread has the GIL.
        let again = reads.iter().filter(|it| **it >= 20).count();
        assert!(again < 50, "{reads:?}");
    }
}
