//! The rows of Go programs, whose tables are those of Go's runtime.

use std::fs::File;
use std::sync::Arc;

use otelctx_fixtures::go_program_for;
use otelctx_remote::Machine;
use otelctx_remote::elf::{Elf, FileBytes, GoTable, Source};
use otelctx_unwind::{Dictionary, FileRows, Rule, Saved};

#[test]
fn rows_of_the_runtime_of_go_lead_to_its_first_functions_alone() {
    for (architecture, flags) in [
        ("amd64", &[][..]),
        ("amd64", &["-ldflags=-s -w"]),
        // Wrappers of the same names come first.
        ("amd64", &["-ldflags=-s -w -randlayout=7"]),
        ("arm64", &["-ldflags=-s -w"]),
    ] {
        let Some(program) = go_program_for(architecture, "leaf.go", flags) else {
            return;
        };
        let file = File::open(program).unwrap();
        let bytes = FileBytes(&file);
        let elf = Elf::read(Source::File(&bytes)).unwrap().unwrap();
        let rows = FileRows::of(&elf, &Arc::new(Dictionary::new())).unwrap();
        let table = GoTable::read(&elf).unwrap().unwrap();
        let range = |name: &str| {
            let functions = table.functions();
            let found = functions.filter(|it| it.name().trim_end_matches(".abi0") == name);
            let ranges = found.map(|it| it.range());
            let longest = ranges.max_by_key(|it| it.end - it.start);
            longest.unwrap_or_else(|| panic!("no {name}"))
        };
        for name in ["runtime.goexit", "runtime.mstart", "runtime.rt0_go"] {
            assert_eq!(rows.rule_at(range(name).start), Rule::End, "{name}");
        }
        assert_ne!(rows.rule_at(elf.entry()), Rule::Gap);
        // What it calls runs on the stack of the thread, which another one may have left for it.
        let other_stack = range("runtime.mcall");
        let ends = other_stack.filter(|at| rows.rule_at(*at) == Rule::End);
        assert_ne!(ends.count(), 0);
        // So does what runs once a goroutine was put aside whose stack was to grow; while that grows, it is still the
        // goroutine's.
        let growing = range("runtime.newstack");
        let ends = growing.filter(|at| rows.rule_at(*at) == Rule::End);
        assert_eq!(ends.count(), 2);
        // Functions that never return have rows, too, up to where they go to another stack.
        for name in ["gogo", "runtime.mcall", "runtime.morestack"] {
            let function = range(name);
            let before = function.start..function.start + 4;
            let mut rules = before.map(|at| rows.rule_at(at));
            assert!(rules.all(|it| matches!(it, Rule::Frame(_))), "{name}");
        }
        if elf.machine() != Machine::X86_64 {
            continue;
        }
        // From where it has gone to the goroutine's stack, neither pointer leads to that one's innermost function.
        let mut others = range("gogo").map(|at| rows.rule_at(at));
        assert!(others.any(|it| it == Rule::Unsupported));
        let mut after = others.take_while(|it| *it != Rule::Gap);
        assert!(after.all(|it| it == Rule::Unsupported));
        // What a signal has interrupted comes behind the handler. It pushes registers in its own order.
        let handler = range("runtime.sigtramp");
        let frame = |at| match rows.rule_at(at) {
            Rule::Frame(frame) => frame,
            other => panic!("{at:#x}: {other:?}"),
        };
        assert_eq!(frame(handler.start).frame_pointer, Saved::Same);
        let middle = frame(handler.start + (handler.end - handler.start) / 2);
        assert_eq!(middle.frame_pointer, Saved::Unknown);
        // The walk knows it by its code where there is no rule, from one byte before it on.
        let signal_return = range("runtime.sigreturn__sigaction");
        for at in [signal_return.start - 1, signal_return.start] {
            assert_eq!(rows.rule_at(at), Rule::Gap, "{at:#x}");
        }
        let leaf = frame(range("main.serve").end - 1);
        assert_ne!(leaf.frame_pointer, Saved::Unknown);
    }
}
