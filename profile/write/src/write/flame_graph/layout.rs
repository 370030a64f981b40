//! Where the boxes of a flame graph are: the rules of the page (`layout` in `icicle.js`).

use super::{Graph, Label};
use crate::report::Cost;

/// Width of the whole graph and of the narrowest box, in tenths of a pixel.
pub(super) const WIDTH: u64 = 12_000;
const MIN_WIDTH: u64 = 12;
/// Maximum number of boxes. Rows below are left out.
const MAX_BOXES: usize = 50_000;

/// What a box shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Node(u32),
    /// Neighbours that are narrower than [`MIN_WIDTH`].
    Joined {
        boxes: u64,
        cost: Cost,
    },
}

/// A box, its place and width in the unit of [`Graph::weight`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub(super) row: usize,
    pub(super) x: u64,
    pub(super) width: u64,
    pub(super) content: Content,
}

/// Places boxes row by row, from left to right.
pub(super) fn boxes(graph: &Graph) -> Vec<Placed> {
    let children = graph.children_by_node();
    let all = graph.weight(graph.nodes[0].cost);
    let mut placed = vec![Placed {
        row: 0,
        x: 0,
        width: all,
        content: Content::Node(0),
    }];
    let mut last_row = 0..1;
    while !last_row.is_empty() && placed.len() < MAX_BOXES {
        let start = placed.len();
        for index in last_row {
            let above = placed[index];
            let Content::Node(node) = above.content else {
                continue;
            };
            let mut x = above.x;
            for child in below(graph, &children, node) {
                let cost = graph.nodes[*child as usize].cost;
                let width = graph.weight(cost);
                let row = above.row + 1;
                if is_narrow(width, all) {
                    join(&mut placed, start, row, x, width, cost);
                } else {
                    let content = Content::Node(*child);
                    placed.push(Placed {
                        row,
                        x,
                        width,
                        content,
                    });
                }
                x = x.saturating_add(width);
            }
        }
        last_row = start..placed.len();
    }
    placed
}

/// Returns the children of a node. That samples have no value says nothing where a service has no
/// other: it is left out.
fn below<'c>(graph: &Graph, children: &'c [Vec<u32>], mut node: u32) -> &'c [u32] {
    loop {
        match &children[node as usize][..] {
            [only] if matches!(graph.label_of(*only), Label::Value(_, None)) => node = *only,
            all => return all,
        }
    }
}

fn is_narrow(width: u64, all: u64) -> bool {
    u128::from(width) * u128::from(WIDTH) < u128::from(all) * u128::from(MIN_WIDTH)
}

/// Adds a narrow box to the joined one on its left, or starts one.
fn join(placed: &mut Vec<Placed>, start: usize, row: usize, x: u64, width: u64, cost: Cost) {
    if width == 0 {
        return;
    }
    let is_new = start == placed.len();
    if let Some(last) = placed.last_mut().filter(|_| !is_new)
        && let Content::Joined { boxes, cost: sum } = &mut last.content
        && last.x.saturating_add(last.width) == x
    {
        *boxes += 1;
        sum.add(cost);
        last.width = last.width.saturating_add(width);
        return;
    }
    let content = Content::Joined { boxes: 1, cost };
    placed.push(Placed {
        row,
        x,
        width,
        content,
    });
}
