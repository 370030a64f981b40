//! The columns of every file.

use super::thrift::Thrift;

/// The type of stored values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Physical {
    Int32 = 1,
    Int64 = 2,
    Bytes = 6,
}

/// How many values a row has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    One,
    OneOrNone,
    Many,
}

/// A column.
#[derive(Clone, Copy, Debug)]
enum Column {
    /// In nanoseconds after 1970-01-01 UTC.
    Time(&'static str),
    Single(&'static str, Physical, Shape),
    List(&'static str, Physical),
    /// From text to text.
    Map(&'static str),
}

use Physical::{Bytes, Int32, Int64};
use Shape::{Many, One, OneOrNone};

/// In the order of `Rows::write_group`. Parts of a recording, and recordings of different programs,
/// are one table only if all have these.
const COLUMNS: [Column; 19] = [
    Column::Time("time"),
    Column::Single("host", Bytes, OneOrNone),
    Column::Single("service", Bytes, One),
    Column::Single("pid", Int64, OneOrNone),
    Column::Single("tid", Int64, OneOrNone),
    Column::Single("thread", Bytes, One),
    Column::Single("kind", Bytes, One),
    Column::Single("state", Bytes, OneOrNone),
    Column::Single("reason", Bytes, OneOrNone),
    Column::Single("weight", Int64, One),
    Column::Single("samples", Int64, One),
    Column::Single("trace_id", Bytes, OneOrNone),
    Column::Single("span_id", Bytes, OneOrNone),
    Column::Single("route", Bytes, OneOrNone),
    Column::Map("attributes"),
    Column::Map("resource"),
    Column::List("functions", Bytes),
    Column::List("files", Bytes),
    Column::List("lines", Int32),
];

/// A column of stored values.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    pub(super) path: Vec<&'static str>,
    pub(super) physical: Physical,
    pub(super) shape: Shape,
}

/// Returns all columns of stored values, in their order.
pub(super) fn leaves() -> impl Iterator<Item = Leaf> {
    let leaf = |path: &[&'static str], physical, shape| Leaf {
        path: path.to_vec(),
        physical,
        shape,
    };
    COLUMNS.into_iter().flat_map(move |column| match column {
        Column::Time(name) => vec![leaf(&[name], Int64, One)],
        Column::Single(name, physical, shape) => vec![leaf(&[name], physical, shape)],
        Column::List(name, physical) => vec![leaf(&[name, "list", "element"], physical, Many)],
        Column::Map(name) => ["key", "value"]
            .map(|part| leaf(&[name, "key_value", part], Bytes, Many))
            .to_vec(),
    })
}

/// Values of `FieldRepetitionType`.
const REQUIRED: i32 = 0;
const OPTIONAL: i32 = 1;
const REPEATED: i32 = 2;

/// An element of the schema (`SchemaElement` in parquet.thrift).
struct Element {
    name: &'static str,
    repetition: Option<i32>,
    physical: Option<Physical>,
    children: usize,
    logical: Logical,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Logical {
    None,
    Text,
    Map,
    List,
    Time,
}

/// Writes the schema as a field of the metadata.
pub(super) fn write(thrift: &mut Thrift, id: i16) {
    let mut elements = vec![Element {
        name: "sample",
        repetition: None,
        physical: None,
        children: COLUMNS.len(),
        logical: Logical::None,
    }];
    let value = |name, physical, repetition, logical| Element {
        name,
        repetition: Some(repetition),
        physical: Some(physical),
        children: 0,
        logical,
    };
    let group = |name, repetition, children, logical| Element {
        name,
        repetition: Some(repetition),
        physical: None,
        children,
        logical,
    };
    let text = |physical| match physical {
        Bytes => Logical::Text,
        _ => Logical::None,
    };
    for column in COLUMNS {
        match column {
            Column::Time(name) => elements.push(value(name, Int64, REQUIRED, Logical::Time)),
            Column::Single(name, physical, shape) => {
                let repetition = if shape == One { REQUIRED } else { OPTIONAL };
                elements.push(value(name, physical, repetition, text(physical)));
            }
            Column::List(name, physical) => elements.extend([
                group(name, REQUIRED, 1, Logical::List),
                group("list", REPEATED, 1, Logical::None),
                value("element", physical, REQUIRED, text(physical)),
            ]),
            Column::Map(name) => elements.extend([
                group(name, REQUIRED, 1, Logical::Map),
                group("key_value", REPEATED, 2, Logical::None),
                value("key", Bytes, REQUIRED, Logical::Text),
                value("value", Bytes, REQUIRED, Logical::Text),
            ]),
        }
    }
    thrift.structures(id, &elements, write_element);
}

fn write_element(thrift: &mut Thrift, element: &Element) {
    if let Some(physical) = element.physical {
        thrift.i32(1, physical as i32);
    }
    if let Some(repetition) = element.repetition {
        thrift.i32(3, repetition);
    }
    thrift.binary(4, element.name.as_bytes());
    if element.physical.is_none() {
        thrift.i32(5, element.children as i32);
    }
    // Older readers know `ConvertedType`, which has no nanoseconds, others `LogicalType`.
    let (converted, logical) = match element.logical {
        Logical::None => return,
        Logical::Text => (Some(0), 1),
        Logical::Map => (Some(1), 2),
        Logical::List => (Some(3), 3),
        Logical::Time => (None, 8),
    };
    if let Some(converted) = converted {
        thrift.i32(6, converted);
    }
    thrift.structure(10, |thrift| {
        thrift.structure(logical, |thrift| {
            if element.logical == Logical::Time {
                // In UTC, in nanoseconds.
                thrift.set(1);
                thrift.structure(2, |thrift| thrift.structure(3, |_| ()));
            }
        });
    });
}
