//! The names of methods, and lines in their files.

use std::sync::Arc;

use otelctx_reader::remote::{Memory, MemoryError};
use otelctx_reader::sample::{FrameKind, NamedFrame};

use crate::compressed::Stream;
use crate::layout::{Layout, Object, SourceFile, read_int};
use crate::method::Method;

/// Maximum number of bytes kept of a name, and of a file's.
const MAX_NAME: u64 = 512;
const MAX_FILE: u64 = 4096;
/// Maximum number of entries kept of a table of lines.
const MAX_LINE_ENTRIES: usize = 64 << 10;
/// Maximum size of a compressed table of lines, in bytes: each entry has some bytes, and a method at most 65,535 of them.
const MAX_LINES: usize = 1 << 20;
/// The bit of a `ConstMethod`'s flags that says that it has a table of lines.
const HAS_LINES: u64 = 1;

/// The texts that all methods of a class share.
#[derive(Debug)]
pub(crate) struct ClassNames {
    /// `shop.Cart`
    name: String,
    file: String,
}

impl ClassNames {
    /// Reads those of a method's class.
    pub(crate) fn read(
        memory: &dyn Memory,
        layout: &Layout,
        method: &Method,
    ) -> Result<Self, MemoryError> {
        let (of, constants) = (&layout.method, &method.constants);
        let holder = method.class.address;
        let name = memory.read_u64(holder.wrapping_add(of.class_name))?;
        let source = match of.source_file {
            SourceFile::InConstants(field) => read_int(memory, constants.address, field)?,
            SourceFile::InClass(field) => read_int(memory, holder, field)?,
            SourceFile::Unknown => 0,
        };
        Ok(Self {
            name: class_name(&symbol(memory, layout, name, MAX_NAME)?),
            file: match source {
                0 => String::new(),
                index => constant(memory, layout, constants.address, index, MAX_FILE)?,
            },
        })
    }

    /// Its memory, in bytes.
    pub(crate) fn memory(&self) -> usize {
        size_of::<Self>() + self.name.len() + self.file.len()
    }
}

/// The texts and lines of a method, for frames at any of its places.
#[derive(Debug)]
pub(crate) struct MethodNames {
    /// `checkout`
    name: String,
    class: Arc<ClassNames>,
    /// Positions in the bytecode, and the lines from there on, in the order of the table.
    lines: Vec<(u32, u32)>,
}

impl MethodNames {
    pub(crate) fn read(
        memory: &dyn Memory,
        layout: &Layout,
        method: &Method,
        class: Arc<ClassNames>,
    ) -> Result<Self, MemoryError> {
        let of = &layout.method;
        let (pool, name) = (method.constants.address, method.constant.int(of.name));
        let name = constant(memory, layout, pool, name, MAX_NAME)?;
        let has_lines = method.constant.int(of.flags) & HAS_LINES != 0 && !method.is_native;
        let lines = match has_lines {
            true => lines(memory, layout, method)?,
            false => Vec::new(),
        };
        Ok(Self { name, class, lines })
    }

    pub(crate) fn class(&self) -> &Arc<ClassNames> {
        &self.class
    }

    /// Its memory, in bytes, without its class's.
    pub(crate) fn memory(&self) -> usize {
        size_of::<Self>() + self.name.len() + size_of_val(&*self.lines)
    }

    /// The frame at a position in the bytecode.
    pub(crate) fn frame(&self, position: Option<u16>) -> NamedFrame {
        NamedFrame {
            kind: FrameKind::JVM,
            function: self.name.clone(),
            qualified_name: format!("{}.{}", self.class.name, self.name),
            file: self.class.file.clone(),
            line: position.map_or(0, |position| self.line(position.into())),
        }
    }

    /// The line of the last entry before a position, as the virtual machine finds it (`Method::line_number_from_bci`).
    fn line(&self, position: u32) -> u32 {
        let before = self.lines.iter().filter(|(start, _)| *start <= position);
        // Of equal starts, the first one.
        let mut best = None;
        for (start, line) in before {
            if best.is_none_or(|(known, _)| known < *start) {
                best = Some((*start, *line));
            }
        }
        best.map_or(0, |(_, line)| line)
    }
}

/// The frame of a method of which nothing is known.
pub(crate) fn unnamed() -> NamedFrame {
    NamedFrame {
        kind: FrameKind::JVM,
        function: "[Java]".into(),
        ..NamedFrame::default()
    }
}

/// The frame of code of the virtual machine.
pub(crate) fn stub(name: &str) -> NamedFrame {
    NamedFrame {
        kind: FrameKind::JVM,
        function: name.into(),
        ..NamedFrame::default()
    }
}

/// Reads a constant that is a text, at most `limit` bytes of it. `pool` is the address of a class's constants.
pub(crate) fn constant(
    memory: &dyn Memory,
    layout: &Layout,
    pool: u64,
    index: u64,
    limit: u64,
) -> Result<String, MemoryError> {
    let place = layout.constant_at(pool, index);
    symbol(memory, layout, memory.read_u64(place)?, limit)
}

/// Reads a symbol, at most `limit` bytes of it.
fn symbol(
    memory: &dyn Memory,
    layout: &Layout,
    address: u64,
    limit: u64,
) -> Result<String, MemoryError> {
    /// Most names are not longer, and take one read.
    const SHORT: u64 = 64;
    let of = &layout.method;
    let short = Object::read(memory, address, of.symbol_body.saturating_add(SHORT)).ok();
    let length = match &short {
        Some(short) => short.int(of.symbol_length),
        None => read_int(memory, address, of.symbol_length)?,
    };
    let length = length.min(limit);
    if let Some(short) = short.filter(|_| length <= SHORT) {
        let bytes = short.bytes(of.symbol_body, length);
        return Ok(String::from_utf8_lossy(bytes).into_owned());
    }
    let body = address.wrapping_add(of.symbol_body);
    let bytes = memory.read_vec(body, length, limit as usize)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Converts `shop/Cart$Item` to `shop.Cart$Item`. The numbers and addresses that make the names of generated classes unique
/// differ in each run, and are left out: `Cart$$Lambda`.
fn class_name(internal: &str) -> String {
    /// The start of what a hidden class has behind its name: `+0x` before JDK 21, and `/0x`.
    const ADDRESSES: [&str; 2] = ["+0x", "/0x"];
    const LAMBDA: &str = "$$Lambda";
    let end = ADDRESSES
        .iter()
        .filter_map(|start| internal.rfind(start))
        .max()
        .filter(|at| {
            let address = &internal.as_bytes()[at + ADDRESSES[0].len()..];
            !address.is_empty() && address.iter().all(u8::is_ascii_hexdigit)
        });
    let mut name = &internal[..end.unwrap_or(internal.len())];
    if let Some(start) = name.find(LAMBDA) {
        let rest = &name[start + LAMBDA.len()..];
        let is_number = |rest: &str| {
            rest.bytes()
                .all(|byte| byte.is_ascii_digit() || b"/$".contains(&byte))
        };
        if is_number(rest) {
            name = &name[..start + LAMBDA.len()];
        }
    }
    name.replace('/', ".")
}

/// Decodes the compressed table of lines of a method (`CompressedLineNumberReadStream`), which follows its bytecode.
fn lines(
    memory: &dyn Memory,
    layout: &Layout,
    method: &Method,
) -> Result<Vec<(u32, u32)>, MemoryError> {
    /// The byte before an entry that does not fit in one byte, and the one behind the last entry.
    const LONG: u8 = 0xff;
    const END: u8 = 0;
    let words = method.constant.int(layout.method.const_method_words);
    let end = method.constant.address.wrapping_add(words.wrapping_mul(8));
    let start = method.code.1;
    let size = end.saturating_sub(start);
    let known = method
        .constant
        .bytes(start.wrapping_sub(method.constant.address), size);
    let read = match known.is_empty() {
        true => memory.read_vec(start, size, MAX_LINES)?,
        false => Vec::new(),
    };
    let bytes = if known.is_empty() { &read } else { known };
    let mut stream = Stream::new(bytes, layout.excluded_bytes());
    let (mut position, mut line, mut lines) = (0_u32, 0_u32, Vec::new());
    while lines.len() < MAX_LINE_ENTRIES
        && let Some(byte) = stream.byte()
    {
        let (more, further) = match byte {
            END => break,
            LONG => match (stream.signed(), stream.signed()) {
                (Some(more), Some(further)) => (more.cast_unsigned(), further.cast_unsigned()),
                _ => break,
            },
            byte => (u32::from(byte >> 3), u32::from(byte & 7)),
        };
        position = position.wrapping_add(more);
        line = line.wrapping_add(further);
        lines.push((position, line));
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::class_name;

    #[test]
    fn names_of_classes_are_those_of_each_run() {
        for (internal, expected) in [
            ("java/lang/String", "java.lang.String"),
            ("shop/Cart$Item", "shop.Cart$Item"),
            ("Cart$$Lambda$14+0x0000000800c03000", "Cart$$Lambda"),
            (
                "shop/Cart$$Lambda$267/0x00007f714815b000",
                "shop.Cart$$Lambda",
            ),
            ("Cart$$Lambda/0x00007f714815b000", "Cart$$Lambda"),
            (
                "java/lang/invoke/LambdaForm$MH+0x0000000800c04400",
                "java.lang.invoke.LambdaForm$MH",
            ),
            ("Cart$$Lambdas", "Cart$$Lambdas"),
            ("a/0xff/B", "a.0xff.B"),
            ("a/0xff/B$$Lambda/0x00007f714815b000", "a.0xff.B$$Lambda"),
            ("a/0x", "a.0x"),
            ("[I", "[I"),
            ("", ""),
        ] {
            assert_eq!(class_name(internal), expected);
        }
    }
}
