//! Methods and their bytecode, as the interpreter has them.

use otelctx_reader::remote::{Memory, MemoryError};

use crate::layout::{Layout, Object};
use crate::record::MethodIdentity;
use crate::tables::Field;

/// Flags of a method in a class file: its body is native code, or no other method overrides it.
const NATIVE: u64 = 0x100;
const PRIVATE: u64 = 0x2;
const STATIC: u64 = 0x8;
/// Bytes read behind a `ConstMethod`: the bytecode of most methods, and their lines.
const CODE_SIZE: u64 = 256;
/// Bytes read of a `ConstantPool`: a few members.
const CONSTANTS_SIZE: u64 = 64;

/// The parts of a method that do not change.
#[derive(Debug)]
pub(crate) struct Method {
    pub(crate) address: u64,
    pub(crate) is_native: bool,
    /// It is called by the receiver's class, unless it initializes objects.
    is_virtual: bool,
    pub(crate) constant: Object,
    /// Its class, as far as it is needed, and the constants of that.
    pub(crate) class: Object,
    pub(crate) constants: Object,
    /// The addresses of its bytecode.
    pub(crate) code: (u64, u64),
}

impl Method {
    /// Reads the method at an address, which may be anything. `None` if it leads to no class, or that has other constants.
    pub(crate) fn read(memory: &dyn Memory, layout: &Layout, address: u64) -> Option<Self> {
        let of = &layout.method;
        let method = Object::read(memory, address, of.size).ok()?;
        let access = method.int(of.access);
        let constant = method.word(of.const_method);
        let constant = Object::read(memory, constant, of.const_method_size + CODE_SIZE)
            .or_else(|_| Object::read(memory, constant, of.const_method_size))
            .ok()?;
        let constants = constant.word(of.constants);
        let constants = Object::read(memory, constants, CONSTANTS_SIZE).ok()?;
        let class = constants.word(of.holder);
        let class = Object::read(memory, class, layout.class_size()).ok()?;
        if class.word(of.class_constants) != constants.address {
            return None;
        }
        let start = constant.address.wrapping_add(of.const_method_size);
        let code = (start, start.wrapping_add(constant.int(of.code_size)));
        Some(Self {
            address,
            is_native: access & NATIVE != 0,
            is_virtual: access & (PRIVATE | STATIC) == 0,
            constant,
            class,
            constants,
            code,
        })
    }

    /// What it has in common with methods that override it, or that it overrides: the addresses of its name and signature. There is one
    /// of each text. `None` if there are no such methods.
    pub(crate) fn overridden(&self, memory: &dyn Memory, layout: &Layout) -> Option<[u64; 2]> {
        let of = &layout.method;
        let symbol = |index: Field| {
            let index = self.constant.int(index);
            let place = layout.constant_at(self.constants.address, index);
            memory.read_u64(place).ok()
        };
        let name = symbol(of.name).filter(|_| self.is_virtual)?;
        let first = memory.read_u8(name.wrapping_add(of.symbol_body)).ok()?;
        // `<init>` and `<clinit>`
        let both = [name, symbol(of.signature)?];
        (first != b'<').then_some(both)
    }

    /// The position in the bytecode of an address of it, in bytes.
    pub(crate) fn position(&self, address: u64) -> Option<u16> {
        let (start, end) = self.code;
        let position = address.checked_sub(start).filter(|_| address < end)?;
        position.try_into().ok()
    }

    /// What distinguishes it from later methods at its address. `class_number` is the offset of the number in a class, if that is
    /// known.
    pub(crate) fn identity(&self, layout: &Layout, class_number: Option<u64>) -> MethodIdentity {
        let class = match class_number {
            Some(offset) => self.class.word(offset) >> CLASS_NUMBER_SHIFT,
            None => self.class.address,
        };
        let number = self.constant.int(layout.method.id) as u16;
        MethodIdentity { class, number }
    }

    /// Reads the same of the class that its constants belong to now: their memory may have become other ones'.
    pub(crate) fn identity_now(
        &self,
        memory: &dyn Memory,
        layout: &Layout,
        class_number: Option<u64>,
    ) -> Result<MethodIdentity, MemoryError> {
        let holder = self.constants.address.wrapping_add(layout.method.holder);
        let holder = memory.read_u64(holder)?;
        let class = match class_number {
            Some(offset) => memory.read_u64(holder.wrapping_add(offset))? >> CLASS_NUMBER_SHIFT,
            None => holder,
        };
        let number = self.identity(layout, class_number).number;
        Ok(MethodIdentity { class, number })
    }
}

/// The lowest bits of the word with JDK Flight Recorder's number of a class are flags (`jfrTraceIdBits.hpp`).
pub(crate) const CLASS_NUMBER_SHIFT: u32 = 16;

/// Finds the offset in a class of the word with its number: the only one whose upper bits are small, not 0, and different in
/// all classes. HotSpot's tables do not have it. `None` where there is none, as in builds without Flight Recorder.
pub(crate) fn find_class_number(memory: &dyn Memory, layout: &Layout) -> Option<u64> {
    /// Number of classes that are compared.
    const CLASSES: usize = 200;
    /// Fewer are not enough to tell the word from others.
    const MIN_CLASSES: usize = 20;
    const MAX_NUMBER: u64 = 1 << 24;
    let of = layout.classes.as_ref()?;
    let word = |address: u64| memory.read_u64(address).ok();
    let mut classes = Vec::new();
    let mut loader = word(of.first_loader)?;
    'all: for _ in 0..CLASSES {
        if loader == 0 {
            break;
        }
        let mut class = word(loader.wrapping_add(of.first))?;
        while class != 0 {
            classes.push(Object::read(memory, class, of.size).ok()?);
            if classes.len() == CLASSES {
                break 'all;
            }
            class = word(class.wrapping_add(of.next))?;
        }
        loader = word(loader.wrapping_add(of.next_loader))?;
    }
    if classes.len() < MIN_CLASSES {
        return None;
    }
    let is_number = |offset: &u64| {
        let numbers = classes
            .iter()
            .map(|class| class.word(*offset) >> CLASS_NUMBER_SHIFT);
        let mut numbers: Vec<u64> = numbers.collect();
        numbers.sort_unstable();
        let has_gaps = numbers.windows(2).all(|pair| pair[0] < pair[1]);
        has_gaps && numbers[0] > 0 && numbers[numbers.len() - 1] < MAX_NUMBER
    };
    let mut offsets = (0..of.size).step_by(8).filter(is_number);
    let found = offsets.next()?;
    offsets.next().is_none().then_some(found)
}
