//! Functions below their callers, or below their callees.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::fold::{Folded, Folding, Frame};
use crate::report::{Cost, FunctionCost, Selection, TreeNode};

/// Smallest share of a node that is shown, as a part of this many.
const MIN_SHARE: u64 = 100;

/// A tree of functions.
#[derive(Default)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    /// Nodes by parent and function.
    children: HashMap<(Option<usize>, Folded), usize, RandomState>,
}

struct Node {
    parent: Option<usize>,
    function: Folded,
    cost: FunctionCost,
}

impl Tree {
    /// Adds a path, from the root on.
    fn add<'p>(&mut self, path: impl Iterator<Item = &'p Folded>, cost: Cost) {
        let mut parent = None;
        for function in path {
            let next = self.nodes.len();
            let index = *self.children.entry((parent, *function)).or_insert(next);
            if index == next {
                self.nodes.push(Node {
                    parent,
                    function: *function,
                    cost: FunctionCost::default(),
                });
            }
            self.nodes[index].cost.total.add(cost);
            parent = Some(index);
        }
        if let Some(last) = parent {
            self.nodes[last].cost.own.add(cost);
        }
    }

    /// Returns the nodes that have a share of `total`, each before those below it, the costliest
    /// first.
    pub(super) fn nodes(&self, folding: &Folding<'_>, total: Cost) -> Vec<TreeNode> {
        let mut below: HashMap<Option<usize>, Vec<usize>, RandomState> = HashMap::default();
        let is_shown = |cost: Cost| {
            let (time, samples) = cost.size();
            let (all, all_samples) = total.size();
            let (part, all) = if all > 0 {
                (time, all)
            } else {
                (samples, all_samples)
            };
            part.saturating_mul(MIN_SHARE) >= all
        };
        for (index, node) in self.nodes.iter().enumerate() {
            if is_shown(node.cost.total) {
                below.entry(node.parent).or_default().push(index);
            }
        }
        let mut nodes = Vec::new();
        let mut next: Vec<(usize, usize)> = Vec::new();
        let mut add_below = |parent: Option<usize>, depth, next: &mut Vec<(usize, usize)>| {
            let mut children = below.remove(&parent).unwrap_or_default();
            children.sort_by_key(|child| (self.nodes[*child].cost.total.size(), *child));
            next.extend(children.into_iter().map(|child| (depth, child)));
        };
        add_below(None, 0, &mut next);
        while let Some((depth, index)) = next.pop() {
            let node = &self.nodes[index];
            nodes.push(TreeNode {
                depth,
                function: folding.function(node.function),
                cost: node.cost,
            });
            add_below(Some(index), depth + 1, &mut next);
        }
        nodes
    }
}

/// What selected functions call, and what calls them.
pub(super) struct Trees<'s> {
    selection: &'s Selection,
    pub(super) down: Tree,
    pub(super) up: Tree,
}

impl<'s> Trees<'s> {
    pub(super) fn new(selection: &'s Selection) -> Self {
        Self {
            selection,
            down: Tree::default(),
            up: Tree::default(),
        }
    }

    /// Adds a stack: below the outermost selected function, or the whole.
    pub(super) fn add(&mut self, folding: &Folding<'_>, frames: &[Frame], cost: Cost) {
        let frames: Vec<Folded> = frames.iter().map(|frame| frame.function).collect();
        if self.selection.functions.is_empty() {
            return self.down.add(frames.iter().rev(), cost);
        }
        let is_selected = |frame: &Folded| {
            let function = folding.function(*frame);
            self.selection.has_function(&function.name, &function.file)
        };
        let innermost = frames.iter().position(is_selected);
        let outermost = frames.iter().rposition(is_selected);
        if let (Some(innermost), Some(outermost)) = (innermost, outermost) {
            self.down.add(frames[..=outermost].iter().rev(), cost);
            self.up.add(frames[innermost..].iter(), cost);
        }
    }
}
