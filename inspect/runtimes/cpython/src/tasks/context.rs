//! The thread context in a task's `contextvars.Context`.
//!
//! The package `otelctx` has its context in a context variable: an `otelctx.Context`, or an
//! `otelctx.Entry` with one and a context of OpenTelemetry. For readers, both start with a mark and an
//! address: of the record, and of the `otelctx.Context` (`publish/python/src/outside.rs`).

use otelctx_reader::runtime::RuntimeError;

use super::objects::{FIRST, Kind, Objects, TYPE};
use crate::structure::Structure;

/// The marks, after the object's header, and before the address.
const CONTEXT_MARK: [u8; 8] = *b"otelctx1";
const ENTRY_MARK: [u8; 8] = *b"otelctxE";
/// The name of the variable.
const VARIABLE: &str = "otelctx";
/// `ctx_vars` of `PyContext`, and `h_root` of `PyHamtObject` (`pycore_context.h`, `pycore_hamt.h`).
const VARIABLES: u64 = 24;
const ROOT: u64 = 16;
/// `ob_size` of nodes; the pairs of a key and a value of a bitmap or collision node; the children of an
/// array node.
const SIZE: u64 = 16;
const PAIRS: u64 = 32;
const CHILDREN: u64 = 16;
/// Maximum number of pairs of a bitmap node, and number of children of an array node.
const MAX_PAIRS: u64 = 32;
/// Maximum depth of the tree: hashes have 32 bits, of which each level takes five, and one level has
/// keys with the same hash.
const MAX_DEPTH: u32 = 8;
/// Maximum number of nodes that are read of a context: one of a program with a thousand variables has fewer.
const MAX_NODES: usize = 256;

/// The address of the record that a thread publishes in this context. `None` if there is none.
///
/// # Errors
/// If the context cannot be read, or has too many variables.
pub(super) fn record(objects: &mut Objects<'_>, context: u64) -> Result<Option<u64>, RuntimeError> {
    objects.expect(context, &Kind::Context)?;
    let variables = objects.memory.read_u64(context.wrapping_add(VARIABLES))?;
    let root = objects.memory.read_u64(variables.wrapping_add(ROOT))?;
    let mut nodes = vec![(root, 1)];
    let mut count = 0;
    while let Some((node, depth)) = nodes.pop() {
        count += 1;
        if count > MAX_NODES || depth > MAX_DEPTH {
            return Err(RuntimeError::new("its context has too many variables"));
        }
        let kind = objects.kind(node)?;
        let pairs = match kind {
            Kind::ArrayNode => {
                let children = objects.words(node.wrapping_add(CHILDREN), MAX_PAIRS)?;
                let children = children.into_iter().filter(|child| *child != 0);
                nodes.extend(children.map(|child| (child, depth + 1)));
                continue;
            }
            Kind::BitmapNode | Kind::CollisionNode => {
                let count = objects.memory.read_u64(node.wrapping_add(SIZE))?;
                let is_bitmap = kind == Kind::BitmapNode;
                if count > if is_bitmap { 2 * MAX_PAIRS } else { 1024 } {
                    return Err(RuntimeError::new("its context is malformed"));
                }
                objects.words(node.wrapping_add(PAIRS), count)?
            }
            _ => return Err(RuntimeError::new("its context is malformed")),
        };
        for pair in pairs.chunks_exact(2) {
            match pair {
                [0, child] if kind == Kind::BitmapNode => nodes.push((*child, depth + 1)),
                [variable, value] => {
                    if let Some(record) = of_value(objects, *variable, *value)? {
                        return Ok((record != 0).then_some(record));
                    }
                }
                _ => {}
            }
        }
    }
    Ok(None)
}

/// The address of the record in the value of a variable, 0 if there is none. `None` for another variable.
fn of_value(
    objects: &mut Objects<'_>,
    variable: u64,
    value: u64,
) -> Result<Option<u64>, RuntimeError> {
    let kind = objects.kind(value)?;
    if !matches!(kind, Kind::OwnContext | Kind::OwnEntry) {
        return Ok(None);
    }
    objects.expect(variable, &Kind::ContextVariable)?;
    let name = objects.memory.read_u64(variable.wrapping_add(FIRST))?;
    if objects.string(name)? != VARIABLE {
        return Ok(None);
    }
    let mut context = value;
    if kind == Kind::OwnEntry {
        context = marked(objects, value, ENTRY_MARK)?;
        if context == 0 {
            return Ok(Some(0));
        }
        objects.expect(context, &Kind::OwnContext)?;
    }
    marked(objects, context, CONTEXT_MARK).map(Some)
}

/// The address in an object of the package.
fn marked(objects: &Objects<'_>, object: u64, mark: [u8; 8]) -> Result<u64, RuntimeError> {
    let structure = Structure::read(objects.memory, object, &[TYPE, FIRST, FIRST + 8])?;
    if structure.pointer(FIRST) != u64::from_ne_bytes(mark) {
        let reason = "its context is of another version of the package otelctx";
        return Err(RuntimeError::new(reason));
    }
    Ok(structure.pointer(FIRST + 8))
}
