//! A flame graph: functions below their callers, as wide as their time.

mod colours;
mod layout;
mod svg;

use std::collections::HashMap;

use foldhash::fast::RandomState;
use indexmap::IndexSet;
use otelctx_page::Language;

use super::room::{OTHER, Room};
use crate::report::Cost;

pub use svg::utc;
pub(crate) use svg::{Facts, Kinds, write};

/// Maximum memory of functions and nodes, in bytes (estimated).
const MAX_MEMORY: usize = 64 << 20;
/// Maximum number of levels. Further ones, the innermost, are shown as [`MORE`].
const MAX_DEPTH: usize = otelctx_page::MAX_DEPTH as usize;
/// The name of frames that are not shown.
const MORE: &str = "[more frames]";
/// Estimated memory of a node with its entry in the index of children, in bytes.
const NODE: usize = size_of::<Node>() + size_of::<((u32, u32), u32)>();

/// A function that is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Frame {
    pub(crate) name: String,
    /// Empty if unknown.
    pub(crate) file: String,
    /// 0 if unknown.
    pub(crate) line: u32,
    /// `None` for plumbing.
    pub(crate) language: Option<Shown>,
}

/// A language, by its position in the table of colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Shown(u8);

impl From<Language> for Shown {
    fn from(language: Language) -> Self {
        Self(language as u8)
    }
}

impl Frame {
    /// Stands for plumbing at the end of a stack.
    pub(crate) fn plumbing(name: String) -> Self {
        Self {
            name,
            ..Self::default()
        }
    }
}

/// What a box stands for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Label {
    /// Everything.
    All,
    /// A service.
    Service(String),
    /// A level that services are divided by, from 0, and its value; `None` without it.
    Value(u32, Option<String>),
    /// A function.
    Frame(Frame),
}

impl Label {
    /// Returns the memory of its texts, in bytes.
    fn len(&self) -> usize {
        match self {
            Self::All | Self::Value(_, None) => 0,
            Self::Service(text) | Self::Value(_, Some(text)) => text.len(),
            Self::Frame(frame) => frame.name.len() + frame.file.len(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Node {
    /// An index of the labels.
    label: u32,
    cost: Cost,
    /// Most equal frames that follow each other and are shown as this one.
    repeats: u32,
    /// Most frames of plumbing that are left out above it.
    through: u32,
}

impl Node {
    fn note(&mut self, repeats: u32, through: u32) {
        self.repeats = self.repeats.max(repeats);
        self.through = self.through.max(through);
    }
}

/// The tree of all stacks. Its memory is bounded.
#[derive(Debug)]
pub(crate) struct Graph {
    labels: IndexSet<Label, RandomState>,
    /// The first one is the root.
    nodes: Vec<Node>,
    /// Nodes by parent and label.
    children: HashMap<(u32, u32), u32, RandomState>,
    /// Labels and nodes of the stack that was added last, as far as they have room: the next one mostly
    /// starts like it, and finding a child takes most of the time.
    last: Vec<(u32, u32)>,
    room: Room,
}

/// The graph of what is shown, and that of time off a CPU, which is shown if the other is empty.
#[derive(Debug)]
pub(crate) struct Graphs {
    pub(crate) shown: Graph,
    pub(crate) others: Graph,
}

impl Graphs {
    pub(crate) fn new() -> Self {
        Self {
            shown: Graph::new(),
            others: Graph::new(),
        }
    }

    /// Returns the graph that is shown, and true if it is the other one.
    pub(crate) fn chosen(&self) -> (&Graph, bool) {
        match self.shown.nodes[0].cost.samples {
            0 if self.others.nodes[0].cost.samples > 0 => (&self.others, true),
            _ => (&self.shown, false),
        }
    }
}

impl Graph {
    fn new() -> Self {
        Self::bounded(MAX_MEMORY)
    }

    fn bounded(memory: usize) -> Self {
        Self {
            labels: IndexSet::from_iter([Label::All]),
            nodes: vec![Node::default()],
            children: HashMap::default(),
            last: Vec::new(),
            room: Room::new(memory),
        }
    }

    /// Returns the number of a label. `None` if there is no room for it.
    pub(crate) fn label(&mut self, label: Label) -> Option<u32> {
        if let Some(index) = self.labels.get_index_of(&label) {
            return Some(index as u32);
        }
        let size = size_of::<Label>() + label.len();
        let new = || self.labels.insert_full(label).0 as u32;
        self.room.take(size).then(new)
    }

    /// Adds a stack of labels from the service on, each with the number of frames of plumbing that
    /// are left out above it. What has no room is in one box, `(other)`.
    pub(crate) fn add(&mut self, path: &[(Option<u32>, u32)], cost: Cost) {
        let mut node = 0;
        self.nodes[0].cost.add(cost);
        let (mut last, mut repeats) = (0, 1);
        for (depth, (label, through)) in path.iter().enumerate() {
            let is_too_deep = depth + 1 >= MAX_DEPTH;
            let known = self.last.get(depth).filter(|it| Some(it.0) == *label);
            let known = known.map(|(_, node)| *node);
            if known.is_none() {
                self.last.truncate(depth);
            }
            if let (Some(label), false) = (label, is_too_deep)
                && *label == last
            {
                repeats += 1;
                self.nodes[node as usize].note(repeats, *through);
                if known.is_none() {
                    self.last.push((*label, node));
                }
                continue;
            }
            repeats = 1;
            let child = match label {
                _ if is_too_deep => None,
                Some(label) => known.or_else(|| self.child(node, *label)),
                None => None,
            };
            if let (Some(child), Some(label), None) = (child, label, known) {
                self.last.push((*label, child));
            }
            let name = if is_too_deep { MORE } else { OTHER };
            let added = child.unwrap_or_else(|| self.without_room(node, name));
            node = added;
            let of_node = &mut self.nodes[node as usize];
            of_node.cost.add(cost);
            of_node.note(repeats, *through);
            match (child, label) {
                (Some(_), Some(label)) => last = *label,
                _ => return,
            }
        }
    }

    /// Returns the child of a node. `None` if there is no room for it.
    fn child(&mut self, parent: u32, label: u32) -> Option<u32> {
        if let Some(node) = self.children.get(&(parent, label)) {
            return Some(*node);
        }
        if !self.room.take(NODE) {
            return None;
        }
        let node = self.nodes.len() as u32;
        self.children.insert((parent, label), node);
        self.nodes.push(Node {
            label,
            repeats: 1,
            ..Node::default()
        });
        Some(node)
    }

    /// Returns the child of a node with a name for all that is not shown: at most two for each node.
    fn without_room(&mut self, parent: u32, name: &str) -> u32 {
        let room = std::mem::replace(&mut self.room, Room::new(usize::MAX));
        let label = self.label(Label::Frame(Frame::plumbing(name.to_owned())));
        let node = label.and_then(|label| self.child(parent, label));
        self.room = room;
        node.unwrap_or_default()
    }

    fn label_of(&self, node: u32) -> &Label {
        &self.labels[self.nodes[node as usize].label as usize]
    }

    /// Returns the size of a cost: nanoseconds, or samples if the recording has no times.
    fn weight(&self, cost: Cost) -> u64 {
        match self.nodes[0].cost.nanoseconds {
            0 => cost.samples,
            _ => cost.nanoseconds,
        }
    }

    /// Returns the services, the costliest first.
    fn services(&self) -> Vec<&str> {
        let children = self.children_by_node();
        let mut services = children.first().into_iter().flatten();
        let services = services
            .by_ref()
            .filter_map(|node| match self.label_of(*node) {
                Label::Service(name) => Some(&name[..]),
                _ => None,
            });
        services.collect()
    }

    /// Returns the children of each node, the costliest first, then by name.
    fn children_by_node(&self) -> Vec<Vec<u32>> {
        let mut children = vec![Vec::new(); self.nodes.len()];
        for ((parent, _), node) in &self.children {
            children[*parent as usize].push(*node);
        }
        let weight = |node: &u32| self.weight(self.nodes[*node as usize].cost);
        for of_node in &mut children {
            of_node.sort_unstable_by(|one, other| {
                let order = weight(other).cmp(&weight(one));
                order.then_with(|| self.label_of(*one).cmp(self.label_of(*other)))
            });
        }
        children
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Label {
        Label::Frame(Frame::plumbing(name.to_owned()))
    }

    fn add(graph: &mut Graph, names: &[&str], cost: Cost) {
        let path: Vec<_> = names
            .iter()
            .map(|name| (graph.label(named(name)), 0))
            .collect();
        graph.add(&path, cost);
    }

    #[test]
    fn stacks_without_room_are_in_one_box_and_none_gets_lost() {
        let mut graph = Graph::bounded(10_000);
        let one = Cost {
            samples: 1,
            nanoseconds: 5,
        };
        for index in 0..1000 {
            add(&mut graph, &["main", &format!("f{index}"), "g"], one);
        }
        let nodes = graph.nodes.len();
        assert!((20..200).contains(&nodes), "{nodes}");
        assert_eq!(graph.nodes[0].cost.samples, 1000);
        let other = (0..nodes as u32).find(|it| *graph.label_of(*it) == named(OTHER));
        let other = graph.nodes[other.unwrap() as usize].cost;
        let of_others: u64 = (0..nodes as u32)
            .filter(|it| *graph.label_of(*it) == named("g"))
            .map(|it| graph.nodes[it as usize].cost.samples)
            .sum();
        assert!(of_others > 5 && of_others + other.samples <= 1000);
        assert!(other.samples > 500);
    }

    #[test]
    fn a_stack_of_any_depth_is_cut() {
        let mut graph = Graph::new();
        let names: Vec<String> = (0..100_000).map(|index| format!("f{index}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        add(&mut graph, &names, Cost::default());
        assert_eq!(graph.nodes.len(), MAX_DEPTH + 1);
        assert_eq!(*graph.label_of(MAX_DEPTH as u32), named(MORE));
    }
}
