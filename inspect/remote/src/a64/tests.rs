use std::process::Command;

use super::*;

#[test]
fn code_that_is_no_instruction_is_invalid() {
    let decode = |word| Instruction::decode(word, 0x1000);
    assert_eq!(decode(0), Instruction::Trap);
    assert_eq!(decode(0xd420_0000), Instruction::Trap);
    for word in [0x0001_0000, 0x0200_0000, 0x0600_0000] {
        assert_eq!(decode(word), Instruction::Invalid, "{word:#x}");
    }
}

/// Registers that instructions change beside the first one that the disassembler names.
#[test]
fn all_registers_that_an_instruction_changes_are_known() {
    let changed = |word| match Instruction::decode(word, 0) {
        Instruction::Other { changed } => (0..32).filter(|it| changed >> it & 1 != 0).collect(),
        other => panic!("{word:#x}: {other:?}"),
    };
    let cases: [(u32, &[u32]); 12] = [
        // ldxr x30, [x0]; stxr w29, x30, [x0]; ldxp x30, x29, [x0]; casp x28, x29, x0, x1, [x2]
        (0xc85f_7c1e, &[30]),
        (0xc81d_7c1e, &[29]),
        (0xc87f_741e, &[29, 30]),
        (0x483c_7c40, &[28, 29]),
        // swp x30, x29, [x0], of which the first one is only read; sdiv x30, x30, x1
        (0xf83e_801d, &[29, 30]),
        (0x9ac1_0fde, &[30]),
        // fmov x30, d0; fmov d30, x0; mov x30, v0.d[0]; fadd v30.4s, v0.4s, v1.4s
        (0x9e66_001e, &[30]),
        (0x9e67_001e, &[]),
        (0x4e08_3c1e, &[30]),
        (0x4e21_d41e, &[]),
        // mrs x30, nzcv; addvl sp, sp, #-1
        (0xd53b_421e, &[30]),
        (0x043f_57ff, &[31]),
    ];
    for (word, registers) in cases {
        let found: Vec<u32> = changed(word);
        assert_eq!(found, registers, "{word:#x}");
    }
    // ld1 {v0.16b}, [sp], #16
    let Instruction::Access(load) = Instruction::decode(0x4cdf_73e0, 0) else {
        panic!("no access");
    };
    assert_eq!((load.base, load.base_moves), (STACK_POINTER, Some(16)));
    assert_eq!(load.registers, [None; 2]);
}

/// What GNU's disassembler says of an instruction.
struct Text<'a> {
    address: u64,
    word: u32,
    name: &'a str,
    operands: Vec<&'a str>,
}

impl<'a> Text<'a> {
    /// Parses a line with an address, a word, a name and operands.
    fn parse(line: &'a str) -> Option<Self> {
        let (address, rest) = line.split_once(":\t")?;
        let (word, rest) = rest.split_once('\t')?;
        let rest = rest.split("//").next()?.trim();
        let (name, operands) = rest.split_once('\t').unwrap_or((rest, ""));
        Some(Text {
            address: u64::from_str_radix(address.trim(), 16).ok()?,
            word: u32::from_str_radix(word.trim(), 16).ok()?,
            name,
            operands: operands.split(", ").collect(),
        })
    }

    /// The number of a general register, of which only the whole one counts if `is_whole`.
    fn register(&self, operand: usize, is_whole: bool) -> Option<u8> {
        let text = self
            .operands
            .get(operand)?
            .trim_matches(['[', ']', '!', '{', '}']);
        match text {
            "sp" | "wsp" => Some(31),
            "xzr" | "wzr" => None,
            _ => {
                let letter = if is_whole { &['x'][..] } else { &['x', 'w'] };
                text.strip_prefix(letter)?.parse().ok()
            }
        }
    }

    fn number(&self, operand: usize) -> Option<i64> {
        let text = self.operands.get(operand)?.trim_matches(['[', ']', '!']);
        let text = text.strip_prefix('#')?;
        let (sign, digits) = text.strip_prefix('-').map_or((1, text), |it| (-1, it));
        let digits: u64 = match digits.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok()?,
            None => digits.parse().ok()?,
        };
        Some(digits.cast_signed().wrapping_mul(sign))
    }

    /// The target of a jump, the last operand.
    fn target(&self) -> Option<u64> {
        let target = self.operands.last()?.split(' ').next()?;
        u64::from_str_radix(target, 16).ok()
    }

    /// The base, the distance, and what is added to the base.
    fn memory(&self) -> Option<(u8, i64, Option<i64>)> {
        let first = self.operands.iter().position(|it| it.starts_with('['))?;
        let base = self.register(first, true)?;
        let last = self.operands.len() - 1;
        let is_closed = self.operands[first].ends_with(']');
        Some(match (first == last, is_closed) {
            (true, _) => (base, 0, None),
            (false, true) => (base, 0, Some(self.number(first + 1)?)),
            (false, false) => {
                let number = self.number(first + 1)?;
                let is_moved = self.operands[first + 1].ends_with('!');
                (base, number, is_moved.then_some(number))
            }
        })
    }

    fn check_access(&self, access: &Access) {
        let is_pair = self.name.contains('p') && self.name != "ldapr";
        let is_load = self.name.starts_with("ld");
        assert_eq!(access.is_load, is_load);
        let count = if is_pair { 2 } else { 1 };
        assert_eq!(access.count, count);
        let is_vector = !self.operands[0].starts_with(['x', 'w']);
        for index in 0..usize::from(count) {
            let expected = (!is_vector).then(|| self.register(index, false).unwrap_or(31));
            assert_eq!(access.registers[index], expected);
        }
        if let Some((base, offset, moves)) = self.memory() {
            assert_eq!(
                (access.base, access.offset, access.base_moves),
                (base, Some(offset), moves)
            );
        }
    }

    /// Compares it with what was decoded.
    fn check(&self) {
        let found = Instruction::decode(self.word, self.address);
        let name = self.name;
        match found {
            Instruction::Jump { target } => assert_eq!(("b", Some(target)), (name, self.target())),
            Instruction::Call { target } => assert_eq!(("bl", Some(target)), (name, self.target())),
            Instruction::ConditionalJump { target } => {
                assert!(name.starts_with("b.") || name.starts_with("cb") || name.starts_with("tb"));
                assert_eq!(Some(target), self.target());
            }
            Instruction::IndirectJump { register } => {
                assert!(name.starts_with("br"));
                assert_eq!(Some(register), self.register(0, true));
            }
            Instruction::IndirectCall { register } => {
                assert!(name.starts_with("blr"));
                assert_eq!(Some(register), self.register(0, true));
            }
            Instruction::Return { register } => {
                assert!(name.starts_with("ret"));
                assert_eq!(register, self.register(0, true).unwrap_or(LINK));
            }
            Instruction::SystemCall => assert_eq!(name, "svc"),
            Instruction::Trap => assert!(matches!(name, "brk" | "udf" | "hlt"), "{name}"),
            Instruction::Invalid => assert!(name.starts_with('.'), "{name}"),
            Instruction::Address { to, address } => {
                assert!(name.starts_with("adr"));
                assert_eq!(
                    (Some(to), Some(address)),
                    (self.register(0, true), self.target())
                );
            }
            Instruction::Number { to, number } => {
                assert_eq!(name, "mov");
                assert_eq!(Some(to), self.register(0, false));
                assert_eq!(Some(number.cast_signed()), self.number(1));
            }
            Instruction::Move { to, from, is_whole } => {
                assert_eq!((name, Some(to)), ("mov", self.register(0, is_whole)));
                assert_eq!(from, self.register(1, is_whole).unwrap_or(31));
            }
            Instruction::Add { to, from, number } => {
                assert_eq!(
                    (Some(to), Some(from)),
                    (self.register(0, true), self.register(1, true))
                );
                let is_shifted = self.operands.len() == 4;
                let shown = self.number(2).unwrap_or(0) << if is_shifted { 12 } else { 0 };
                let shown = if name == "sub" { -shown } else { shown };
                assert_eq!(
                    (number, matches!(name, "add" | "sub" | "mov")),
                    (shown, true)
                );
            }
            Instruction::Sum {
                to,
                from,
                by,
                is_subtraction,
            } => {
                assert_eq!(if is_subtraction { "sub" } else { "add" }, name);
                let registers = [to, from].map(Some);
                assert_eq!(registers, [self.register(0, true), self.register(1, true)]);
                let is_plain = self.operands.len() == 3;
                assert_eq!(by, self.register(2, true).filter(|_| is_plain));
            }
            Instruction::ThreadPointer { to } => {
                assert_eq!(("mrs", Some(to)), (name, self.register(0, true)));
            }
            Instruction::Access(access)
                if name.starts_with(['l', 's'])
                    && name.len() < 4
                    && name.ends_with(|it: char| it.is_ascii_digit()) =>
            {
                assert_eq!(access.registers, [None; 2]);
            }
            Instruction::Access(access) => self.check_access(&access),
            Instruction::Other { changed } => self.check_changed(changed),
        }
    }

    /// All but stores, comparisons, jumps and instructions of the system name what they change first.
    fn check_changed(&self, changed: u32) {
        const OTHERS: [&str; 22] = [
            "cmp", "cmn", "tst", "ccmp", "ccmn", "prfm", "prfum", "msr", "dc", "ic", "at", "tlbi",
            "sys", "nop", "bti", "hint", "isb", "dmb", "dsb", "yield", "clrex", "eret",
        ];
        let is_store = self.name.starts_with("st");
        if OTHERS.contains(&self.name) {
            assert_eq!(changed, 0);
            return;
        }
        let is_zero = matches!(self.operands[0], "xzr" | "wzr");
        let first = self.register(0, false).filter(|_| !is_zero);
        let first = first.map_or(0, |register| 1 << register);
        // The link register stays what it is.
        let is_signature =
            self.name.starts_with("pac") || self.name.starts_with("aut") || self.name == "xpaci";
        match is_store || is_signature {
            // Status registers come first in stores that fail.
            true => assert!(changed & !first == 0 || changed.count_ones() <= 2),
            false => assert_eq!(changed & first, first),
        }
    }
}

/// Every instruction of real libraries, compared with what GNU's disassembler shows.
#[test]
fn instructions_are_those_of_the_disassembler() {
    for library in ["libm.so.6", "libc.so.6", "libgomp.so.1"] {
        let path = format!("/usr/aarch64-linux-gnu/lib/{library}");
        let objdump = Command::new("aarch64-linux-gnu-objdump")
            .args(["-d", &path])
            .output();
        let Some(output) = objdump.ok().filter(|output| output.status.success()) else {
            println!("skipped: no objdump for aarch64, or no {path}");
            continue;
        };
        let text = String::from_utf8(output.stdout).expect("ASCII");
        let mut count = 0;
        for text in text.lines().filter_map(Text::parse) {
            let shown = format!(
                "{:#x}: {:08x} {} {:?}",
                text.address, text.word, text.name, text.operands
            );
            let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| text.check()));
            assert!(
                checked.is_ok(),
                "{shown}: {:?}",
                Instruction::decode(text.word, text.address)
            );
            count += 1;
        }
        println!("{library}: {count} instructions");
        assert!(count > 10_000, "{count}");
    }
}
