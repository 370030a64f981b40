//! Who calls whom in an ELF file, as binutils disassemble it.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use otelctx_reader::remote::FileBytes;
use otelctx_reader::remote::elf::{Elf, Source};

/// The call before a return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    To(u64),
    Indirect,
}

/// Whether a return address can be the caller of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Its call leads there.
    Right,
    /// It follows a call, whose target is in a register or in another module, or makecontext wrote it.
    Open,
    /// It follows no call, or one that leads elsewhere.
    Wrong,
}

/// The calls of a file. Addresses are those of its program headers.
pub(crate) struct Graph {
    /// Address, size in the file and offset of each segment.
    segments: Vec<(u64, u64, u64)>,
    /// By return address.
    calls: HashMap<u64, Call>,
    /// Start and end of each function, in order.
    functions: Vec<(u64, u64)>,
    /// Functions that each function jumps to, by their starts.
    jumps: HashMap<u64, HashSet<u64>>,
    /// Functions with jumps whose target is in a register or in memory: any function may follow.
    open: HashSet<u64>,
    /// Addresses of `mov %rbx,%rsp`.
    stack_switches: HashSet<u64>,
    /// The starts of functions that return to another context than that of their caller.
    context_switches: Vec<u64>,
}

impl Graph {
    pub(crate) fn of(path: &Path) -> Self {
        let file = File::open(path).unwrap();
        let bytes = FileBytes(&file);
        let elf = Elf::read(Source::File(&bytes)).unwrap().unwrap();
        let loads = elf.loads().iter();
        let mut graph = Self {
            segments: loads
                .map(|it| (it.address, it.file_size, it.offset))
                .collect(),
            calls: HashMap::new(),
            functions: functions(path),
            jumps: HashMap::new(),
            open: HashSet::new(),
            stack_switches: HashSet::new(),
            context_switches: Vec::new(),
        };
        for name in ["setcontext", "swapcontext"] {
            let symbol = elf.exported_symbol(name.as_bytes()).unwrap();
            graph.context_switches.extend(symbol.map(|it| it.value));
        }
        // Without optimization, searching so much text takes this program seconds.
        let script =
            r#"objdump -d --insn-width=16 -- "$0" | grep -P '\t((\w+ )*(call|j)|mov +%rbx,%rsp)'"#;
        for line in output(Command::new("sh").args(["-c", script]).arg(path)).lines() {
            graph.add(line);
        }
        graph
    }

    /// Adds an instruction: its address, its bytes and its text, separated by tabs.
    fn add(&mut self, line: &str) {
        let mut fields = line.split('\t');
        let (Some(address), Some(bytes), Some(text)) =
            (fields.next(), fields.next(), fields.next())
        else {
            return;
        };
        let Some(address) = hexadecimal(address.trim().trim_end_matches(':')) else {
            return;
        };
        let mut words = text.split_whitespace();
        if words.clone().eq(["mov", "%rbx,%rsp"]) {
            self.stack_switches.insert(address);
            return;
        }
        let is_branch = |word: &&str| word.starts_with("call") || word.starts_with('j');
        let Some(name) = words.find(is_branch) else {
            return;
        };
        let target = words.next().and_then(hexadecimal);
        if name.starts_with("call") {
            let size = bytes.split_whitespace().count() as u64;
            let call = target.map_or(Call::Indirect, Call::To);
            self.calls.insert(address + size, call);
            return;
        }
        let Some(from) = self.function(address) else {
            return;
        };
        match target.map(|target| self.function(target)) {
            Some(Some(to)) if to == from => {}
            Some(Some(to)) => drop(self.jumps.entry(from).or_default().insert(to)),
            Some(None) | None => drop(self.open.insert(from)),
        }
    }

    /// The start of the function that an address belongs to.
    fn function(&self, address: u64) -> Option<u64> {
        let behind = self.functions.partition_point(|it| it.0 <= address);
        let (start, end) = *self.functions.get(behind.checked_sub(1)?)?;
        (address < end).then_some(start)
    }

    /// Whether makecontext can have written this return address on a new stack: that of the function which leaves
    /// the stack (sysdeps/unix/sysv/linux/x86_64/__start_context.S in glibc).
    fn starts_a_stack(&self, address: u64) -> bool {
        self.stack_switches.contains(&address) && self.is_start(address)
    }

    /// Whether an address is in a function that returns to another context than its caller's.
    pub(crate) fn switches_contexts(&self, address: u64) -> bool {
        let function = self.function(address);
        function.is_some_and(|start| self.context_switches.contains(&start))
    }

    /// Whether a function starts at this address.
    pub(crate) fn is_start(&self, address: u64) -> bool {
        self.function(address) == Some(address)
    }

    /// The address of a byte of the file.
    pub(crate) fn address(&self, offset: u64) -> u64 {
        let mut segments = self.segments.iter();
        let contains = |it: &&(u64, u64, u64)| (it.2..it.2 + it.1).contains(&offset);
        let (address, _, start) = segments.find(contains).unwrap();
        offset - start + address
    }

    /// Whether the call before `caller` can have led to the instruction at `called`, `None` for one in
    /// another file.
    pub(crate) fn check(&self, caller: u64, called: Option<u64>) -> Verdict {
        let target = match self.calls.get(&caller) {
            None if self.starts_a_stack(caller) => return Verdict::Open,
            None => return Verdict::Wrong,
            Some(Call::Indirect) => return Verdict::Open,
            Some(Call::To(target)) => *target,
        };
        let called = match called.map(|called| self.function(called)) {
            Some(None) => return Verdict::Open,
            Some(Some(called)) => Some(called),
            None => None,
        };
        let mut ways: Vec<u64> = self.function(target).into_iter().collect();
        if ways.is_empty() {
            return Verdict::Open;
        }
        let mut seen = HashSet::new();
        let mut is_open = false;
        while let Some(way) = ways.pop() {
            if Some(way) == called {
                return Verdict::Right;
            }
            if seen.insert(way) {
                is_open |= self.open.contains(&way);
                ways.extend(self.jumps.get(&way).into_iter().flatten());
            }
        }
        if is_open {
            Verdict::Open
        } else {
            Verdict::Wrong
        }
    }
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

/// Start and end of what each entry of the unwind tables describes, and each PLT.
fn functions(path: &Path) -> Vec<(u64, u64)> {
    let text = output(Command::new("objdump").arg("--dwarf=frames").arg(path));
    let ranges = text.lines().filter_map(|line| {
        let (start, end) = line.split_once(" pc=")?.1.split_once("..")?;
        Some((hexadecimal(start)?, hexadecimal(end)?))
    });
    let mut functions: Vec<_> = ranges.collect();
    functions.sort_unstable();
    functions
}

fn output(command: &mut Command) -> String {
    let output = command.stderr(Stdio::null()).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}
