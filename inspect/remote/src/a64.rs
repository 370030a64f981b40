//! Instructions of A64, the instruction set of aarch64, as far as they tell where code leads and what registers hold (Arm
//! Architecture Reference Manual for A-profile, chapter C4 "A64 Instruction Set Encoding").
//!
//! Every instruction is decoded far enough to tell which general registers it may change.

/// The number of the stack pointer, where an instruction does not mean zero by that.
pub const STACK_POINTER: u8 = 31;
/// The number of the link register, which a call leaves its return address in.
pub const LINK: u8 = 30;

/// An instruction. Registers are numbers of X0 to X30.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Instruction {
    /// ADR, ADRP: an address.
    Address {
        /// The changed register.
        to: u8,
        /// The address.
        address: u64,
    },
    /// MOVZ: a number.
    Number {
        /// The changed register.
        to: u8,
        /// The number.
        number: u64,
    },
    /// MOV between registers.
    Move {
        /// The changed register.
        to: u8,
        /// The copied register, or 31 for zero.
        from: u8,
        /// False if only the lower half is copied.
        is_whole: bool,
    },
    /// ADD or SUB of a number, of 64 bits. Both registers may be [`STACK_POINTER`]; that is MOV, if the number is 0.
    Add {
        /// The changed register.
        to: u8,
        /// The register that is added to.
        from: u8,
        /// The number, negative for SUB.
        number: i64,
    },
    /// ADD or SUB of two registers, of 64 bits.
    Sum {
        /// The changed register, which may be [`STACK_POINTER`].
        to: u8,
        /// The register that is added to, which may be [`STACK_POINTER`].
        from: u8,
        /// The register that is added or subtracted, if it is as it is.
        by: Option<u8>,
        /// True for SUB.
        is_subtraction: bool,
    },
    /// A load from memory, or a store to it.
    Access(Access),
    /// MRS of TPIDR_EL0, the thread pointer.
    ThreadPointer {
        /// The changed register.
        to: u8,
    },
    /// B.
    Jump {
        /// The address of the next instruction.
        target: u64,
    },
    /// B.cond, CBZ, CBNZ, TBZ, TBNZ, and others with a condition.
    ConditionalJump {
        /// The address of the next instruction if the condition holds.
        target: u64,
    },
    /// BL.
    Call {
        /// The address of the function.
        target: u64,
    },
    /// BR, and its forms with pointer authentication.
    IndirectJump {
        /// The register with the address.
        register: u8,
    },
    /// BLR, and its forms with pointer authentication.
    IndirectCall {
        /// The register with the address.
        register: u8,
    },
    /// RET, and its forms with pointer authentication.
    Return {
        /// The register with the address, usually [`LINK`].
        register: u8,
    },
    /// SVC: a call of the kernel, which changes X0 alone.
    SystemCall,
    /// BRK, HLT, UDF and others that nothing follows.
    Trap,
    /// Code that is no instruction.
    Invalid,
    /// Another instruction.
    Other {
        /// A bit for each general register that it may change, and bit 31 for [`STACK_POINTER`].
        changed: u32,
    },
}

/// A load or store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Access {
    /// True for a load.
    pub is_load: bool,
    /// General registers that are loaded or stored, in the order of their memory; 31 is zero. `None` for others.
    pub registers: [Option<u8>; 2],
    /// True if a load extends the sign.
    pub is_signed: bool,
    /// The register with the address, which may be [`STACK_POINTER`].
    pub base: u8,
    /// The distance of the memory from the base in bytes; `None` if it is in a register.
    pub offset: Option<i64>,
    /// The size of each register in memory, in bytes.
    pub size: u8,
    /// The number of registers.
    pub count: u8,
    /// Bytes that are added to the base.
    pub base_moves: Option<i64>,
}

impl Instruction {
    /// Decodes an instruction at an address.
    pub fn decode(word: u32, address: u64) -> Self {
        let word = Word(word);
        match word.bits(25, 4) {
            0b1000 | 0b1001 => word.immediate(address),
            0b1010 | 0b1011 => word.branch(address),
            0b0100 | 0b0110 | 0b1100 | 0b1110 => word.load_or_store(),
            0b0101 | 0b1101 => word.of_registers(),
            0b0111 | 0b1111 => word.vector(),
            0b0010 => word.scalable_vector(),
            // Scalable matrices.
            0b0000 if word.bit(31) => Self::Other { changed: 0 },
            0b0000 if word.0 >> 16 == 0 => Self::Trap,
            _ => Self::Invalid,
        }
    }

    /// Decodes code at an address, which is a multiple of four.
    pub fn all(code: &[u8], address: u64) -> impl Iterator<Item = Self> {
        let (words, _) = code.as_chunks();
        (0..).zip(words).map(move |(index, word): (u64, _)| {
            Self::decode(u32::from_le_bytes(*word), address.wrapping_add(4 * index))
        })
    }
}

#[derive(Clone, Copy)]
struct Word(u32);

impl Word {
    fn bits(self, at: u32, count: u32) -> u32 {
        self.0 >> at & ((1 << count) - 1)
    }

    fn bit(self, at: u32) -> bool {
        self.bits(at, 1) == 1
    }

    fn signed(self, at: u32, count: u32) -> i64 {
        i64::from(self.bits(at, count).cast_signed() << (32 - count) >> (32 - count))
    }

    fn register(self, at: u32) -> u8 {
        self.bits(at, 5) as u8
    }

    /// The register that most instructions change.
    fn to(self) -> u8 {
        self.register(0)
    }

    fn is(self, mask: u32, value: u32) -> bool {
        self.0 & mask == value
    }

    /// The target of a jump by a signed number of instructions.
    fn target(self, address: u64, at: u32, count: u32) -> u64 {
        address.wrapping_add_signed(4 * self.signed(at, count))
    }

    /// An instruction that changes its first register, if that is not zero.
    fn changes_first(self) -> Instruction {
        Instruction::Other {
            changed: general(self.to()),
        }
    }

    /// "Data Processing -- Immediate".
    fn immediate(self, address: u64) -> Instruction {
        let (to, from) = (self.to(), self.register(5));
        // Without flags, 31 is the stack pointer.
        let or_stack = |sets_flags: bool| Instruction::Other {
            changed: if sets_flags { general(to) } else { 1 << to },
        };
        match self.bits(23, 3) {
            0b000 | 0b001 => {
                let distance = self.signed(5, 19) << 2 | i64::from(self.bits(29, 2));
                let address = if self.bit(31) {
                    (address & !0xfff).wrapping_add_signed(distance << 12)
                } else {
                    address.wrapping_add_signed(distance)
                };
                Instruction::Address { to, address }
            }
            0b010 if self.bit(31) && !self.bit(29) => {
                let number = i64::from(self.bits(10, 12)) << (12 * self.bits(22, 1));
                let number = if self.bit(30) { -number } else { number };
                Instruction::Add { to, from, number }
            }
            0b010 => or_stack(self.bit(29)),
            0b100 => or_stack(self.bits(29, 2) == 0b11),
            // Addresses with tags.
            0b011 => or_stack(false),
            0b101 if self.bits(29, 2) == 0b10 => Instruction::Number {
                to,
                number: u64::from(self.bits(5, 16)) << (16 * self.bits(21, 2)),
            },
            _ => self.changes_first(),
        }
    }

    /// "Branches, Exception Generating and System instructions".
    fn branch(self, address: u64) -> Instruction {
        let register = self.register(5);
        match self.0 {
            _ if self.is(0xfc00_0000, 0x1400_0000) => Instruction::Jump {
                target: self.target(address, 0, 26),
            },
            _ if self.is(0xfc00_0000, 0x9400_0000) => Instruction::Call {
                target: self.target(address, 0, 26),
            },
            // B.cond, CBZ and CBNZ; TBZ and TBNZ; comparisons of Armv9.6
            _ if self.is(0xff00_0000, 0x5400_0000) || self.is(0x7e00_0000, 0x3400_0000) => {
                Instruction::ConditionalJump {
                    target: self.target(address, 5, 19),
                }
            }
            _ if self.is(0x7e00_0000, 0x3600_0000) => Instruction::ConditionalJump {
                target: self.target(address, 5, 14),
            },
            _ if self.is(0x7e00_0000, 0x7400_0000) => Instruction::ConditionalJump {
                target: self.target(address, 5, 9),
            },
            // Plain, with a modifier of zero, and with one in a register
            _ if self.is(0xffff_fc1f, 0xd61f_0000)
                || self.is(0xffff_f81f, 0xd61f_081f)
                || self.is(0xffff_f800, 0xd71f_0800) =>
            {
                Instruction::IndirectJump { register }
            }
            _ if self.is(0xffff_fc1f, 0xd63f_0000)
                || self.is(0xffff_f81f, 0xd63f_081f)
                || self.is(0xffff_f800, 0xd73f_0800) =>
            {
                Instruction::IndirectCall { register }
            }
            _ if self.is(0xffff_fc1f, 0xd65f_0000) => Instruction::Return { register },
            // RETAA and RETAB; with another modifier than the stack pointer (Armv9.5)
            _ if self.is(0xffff_fbe0, 0xd65f_0be0) || self.is(0xff00_001f, 0x5500_001f) => {
                Instruction::Return { register: LINK }
            }
            _ if self.is(0xffe0_001f, 0xd400_0001) => Instruction::SystemCall,
            _ if self.is(0xff00_0000, 0xd400_0000) || self.is(0xfe00_0000, 0xd600_0000) => {
                Instruction::Trap
            }
            _ if self.is(0xffff_ffe0, 0xd53b_d040) => Instruction::ThreadPointer { to: self.to() },
            // MRS; SYSL
            _ if self.is(0xfff0_0000, 0xd530_0000) || self.is(0xfff8_0000, 0xd528_0000) => {
                self.changes_first()
            }
            // MRRS
            _ if self.is(0xfff0_0000, 0xd570_0000) => Instruction::Other {
                changed: general(self.to()) | general(self.to() | 1),
            },
            // Hints that sign or check X17 with X16, or tell features in X16. Others, which sign or check the link register,
            // change nothing of where it leads.
            _ if self.is(0xffff_ff1f, 0xd503_211f) || self.is(0xffff_ffff, 0xd503_251f) => {
                Instruction::Other { changed: 3 << 16 }
            }
            _ if self.is(0xff00_0000, 0xd500_0000) => Instruction::Other { changed: 0 },
            _ => Instruction::Invalid,
        }
    }

    /// "Loads and Stores".
    fn load_or_store(self) -> Instruction {
        let is_vector = self.bit(26);
        let (first, base) = (self.to(), self.register(5));
        match self.bits(28, 2) {
            0b00 if is_vector => self.structures(),
            // Exclusive and ordered accesses, compare and swap. STXR changes its status register, LDXP two registers, CASP the
            // neighbour of its first one.
            0b00 => {
                let status = self.register(16);
                let loaded = general(first) | general(self.register(10));
                Instruction::Other {
                    changed: general(status)
                        | general(status | u8::from(self.bit(21)))
                        | if self.bit(22) { loaded } else { 0 },
                }
            }
            0b01 if !self.bit(24) => match is_vector || self.bits(30, 2) == 0b11 {
                true => Instruction::Other { changed: 0 },
                false => self.changes_first(),
            },
            0b01 => {
                let is_unscaled = !self.bit(21) && self.bits(10, 2) == 0;
                Instruction::Other {
                    changed: match is_vector && self.bits(10, 2) == 0b10 {
                        true => 0,
                        // LDAPUR, STLUR
                        false if is_unscaled && self.bits(22, 2) == 0 => 0,
                        false if is_unscaled => general(first),
                        // Tags, and copies of memory, which move their addresses.
                        false => general(first) | general(self.register(16)) | 1 << base,
                    },
                }
            }
            0b10 => self.pair(),
            _ if self.bit(24) => {
                let scale = self.single_size();
                let offset = i64::from(self.bits(10, 12)) << scale;
                self.single(Some(offset), None)
            }
            _ if !self.bit(21) => {
                let offset = self.signed(12, 9);
                match self.bits(10, 2) {
                    0b01 => self.single(Some(0), Some(offset)),
                    0b11 => self.single(Some(offset), Some(offset)),
                    _ => self.single(Some(offset), None),
                }
            }
            _ if self.bits(10, 2) == 0b10 => self.single(None, None),
            // LDRAA and LDRAB, which may move the base
            _ if self.bit(10) => Instruction::Other {
                changed: general(first) | if self.bit(11) { 1 << base } else { 0 },
            },
            // Atomic operations
            _ => Instruction::Other {
                changed: general(first) | general(self.register(16)),
            },
        }
    }

    /// The size of a single register in memory, as a power of two.
    fn single_size(self) -> u32 {
        let is_128 = self.bit(26) && self.bit(23);
        self.bits(30, 2) + if is_128 { 4 } else { 0 }
    }

    fn single(self, offset: Option<i64>, base_moves: Option<i64>) -> Instruction {
        let is_vector = self.bit(26);
        let kind = self.bits(22, 2);
        // PRFM
        if !is_vector && self.bits(30, 2) == 0b11 && kind == 0b10 {
            return Instruction::Other { changed: 0 };
        }
        Instruction::Access(Access {
            is_load: if is_vector { kind & 1 != 0 } else { kind != 0 },
            registers: [Some(self.to()).filter(|_| !is_vector), None],
            is_signed: !is_vector && kind & 2 != 0,
            base: self.register(5),
            offset,
            size: 1 << self.single_size().min(4),
            count: 1,
            base_moves,
        })
    }

    fn pair(self) -> Instruction {
        let is_vector = self.bit(26);
        let is_load = self.bit(22);
        let kind = self.bits(30, 2);
        let is_signed = !is_vector && kind == 0b01 && is_load;
        let size = match (is_vector, kind) {
            (true, kind) => 4 << kind.min(2),
            (false, 0b00) => 4,
            (false, 0b01) if is_load => 4,
            (false, _) => 8,
        };
        // STGP counts in granules of tags.
        let is_tagged = !is_vector && kind == 0b01 && !is_load;
        let scale = if is_tagged { 16 } else { i64::from(size) };
        let distance = self.signed(15, 7) * scale;
        let (offset, base_moves) = match self.bits(23, 2) {
            0b01 => (0, Some(distance)),
            0b11 => (distance, Some(distance)),
            _ => (distance, None),
        };
        let register = |at| Some(self.register(at)).filter(|_| !is_vector);
        Instruction::Access(Access {
            is_load,
            registers: [register(0), register(10)],
            is_signed,
            base: self.register(5),
            offset: Some(offset),
            size,
            count: 2,
            base_moves,
        })
    }

    /// LD1 to LD4, ST1 to ST4, of vectors.
    fn structures(self) -> Instruction {
        let base = self.register(5);
        let is_moved = self.bit(23);
        let count = match self.bits(12, 4) {
            0b0000 | 0b0010 => 4,
            0b0100 | 0b0110 => 3,
            0b1000 | 0b1010 => 2,
            0b0111 => 1,
            _ => 0,
        };
        let is_single = self.bit(24);
        if is_single || is_moved && self.register(16) != 31 || count == 0 {
            // A few bytes, or the base is moved by a register.
            let changed = if is_moved { 1 << base } else { 0 };
            return Instruction::Other { changed };
        }
        let size = if self.bit(30) { 16 } else { 8 };
        let all = i64::from(size) * i64::from(count);
        Instruction::Access(Access {
            is_load: self.bit(22),
            registers: [None; 2],
            is_signed: false,
            base,
            offset: Some(0),
            size,
            count,
            base_moves: is_moved.then_some(all),
        })
    }

    /// "Data Processing -- Register".
    fn of_registers(self) -> Instruction {
        let to = self.to();
        let is_whole = self.bit(31);
        match self.bits(21, 8) {
            // MOV, which is ORR
            _ if self.is(0x7fe0_ffe0, 0x2a00_03e0) => Instruction::Move {
                to,
                from: self.register(16),
                is_whole,
            },
            // ADD and SUB of an extended register, which may be of the stack pointer.
            _ if self.is(0x1fe0_0000, 0x0b20_0000) && !self.bit(29) => match is_whole {
                true => self.sum(self.bits(10, 6) == 0b01_1000),
                false => Instruction::Other { changed: 1 << to },
            },
            // ADD and SUB of a shifted register, of which 31 is zero
            _ if self.is(0xbf20_0000, 0x8b00_0000) && to != 31 && self.register(5) != 31 => {
                self.sum(self.bits(22, 2) == 0 && self.bits(10, 6) == 0)
            }
            // Conditional comparisons
            0b1101_0010 => Instruction::Other { changed: 0 },
            // Signatures of pointers, and checks of them, change nothing of where the link register leads.
            _ if self.is(0xffff_001f, 0xdac1_001e) => Instruction::Other { changed: 0 },
            _ => self.changes_first(),
        }
    }

    fn sum(self, is_unchanged: bool) -> Instruction {
        Instruction::Sum {
            to: self.to(),
            from: self.register(5),
            by: Some(self.register(16)).filter(|_| is_unchanged),
            is_subtraction: self.bit(30),
        }
    }

    /// "Data Processing -- Scalar Floating-Point and Advanced SIMD".
    fn vector(self) -> Instruction {
        // FCVT*, FMOV to a general register; with a fixed point; UMOV and SMOV
        let is_conversion = self.is(0x7f20_fc00, 0x1e20_0000)
            && matches!(self.bits(16, 3), 0b000 | 0b001 | 0b100..=0b110);
        let is_fixed = self.is(0x7f20_0000, 0x1e00_0000) && matches!(self.bits(16, 3), 0 | 1);
        let is_element = self.is(0xbfe0_fc00, 0x0e00_3c00) || self.is(0xbfe0_fc00, 0x0e00_2c00);
        match is_conversion || is_fixed || is_element {
            true => self.changes_first(),
            false => Instruction::Other { changed: 0 },
        }
    }

    /// "SVE Encodings".
    fn scalable_vector(self) -> Instruction {
        match self.bits(24, 8) {
            // ADDVL, ADDPL, and those of streaming vectors
            _ if self.is(0xffa0_f000, 0x0420_5000) => Instruction::Other {
                changed: 1 << self.to(),
            },
            // Where counts and elements are moved to general registers.
            0x04 | 0x05 | 0x25 => self.changes_first(),
            _ => Instruction::Other { changed: 0 },
        }
    }
}

/// The bit of a general register, unless it is zero.
fn general(register: u8) -> u32 {
    if register == 31 { 0 } else { 1 << register }
}

#[cfg(test)]
mod tests;
