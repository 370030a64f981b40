//! The tree that the page shows: services, their routes, and the frames of their samples.

use foldhash::{HashMap, HashMapExt};

use crate::Recording;
use crate::order::{Ordered, in_weight_units};

/// The most nodes of the page's tree. What does not fit, the lightest stacks, ends in `[more frames]`.
pub const MAX_TREE_NODES: usize = 1 << 20;

/// The most frames of a stack. Further ones, the innermost, are shown as `[more frames]`.
pub const MAX_DEPTH: u32 = 2000;

/// Depths of the levels above frames.
pub(crate) const SERVICE_DEPTH: u32 = 1;
pub(crate) const ROUTE_DEPTH: u32 = 2;

/// The tree in pre-order, the heaviest child first.
#[derive(Debug)]
pub(crate) struct Tree {
    /// By node: the index of the parent, which precedes it; the root, 0, has itself.
    pub(crate) parent: Vec<u32>,
    /// By node: 0 for the root, 1 for a service, 2 for a route, more for a frame.
    pub(crate) depth: Vec<u32>,
    /// By node: an index of services, of routes + 1 (0 for none), or of `functions`.
    pub(crate) label: Vec<u32>,
    /// Functions that occur, in the order of the tree; the recording's number of functions stands
    /// for frames that are not shown.
    pub(crate) functions: Vec<u32>,
    /// Nodes in which samples end, the most frequent first: the cells.
    pub(crate) cells: Vec<Cell>,
    /// By sample, in the recording's order: the index of its cell.
    pub(crate) cell_of_sample: Vec<u32>,
    /// Samples whose stack is not shown whole.
    pub(crate) cut_samples: u64,
}

/// A node in which samples end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cell {
    /// The index of the node.
    pub(crate) node: u32,
    /// Its samples.
    pub(crate) samples: u32,
    /// The weight of its samples of running threads, in the unit of weights.
    pub(crate) running: u64,
    /// The weight of all of its samples.
    pub(crate) weight: u64,
}

impl Tree {
    pub(crate) fn new(recording: &Recording, ordered: &Ordered) -> Self {
        Self::with_room(recording, ordered, MAX_TREE_NODES)
    }

    /// A tree of at most this many nodes, besides those for frames that are not shown.
    fn with_room(recording: &Recording, ordered: &Ordered, room: usize) -> Self {
        let mut stacks = Stacks::new(recording, ordered);
        let mut draft = Draft::new(recording, room);
        let cut_samples = draft.add_all(&mut stacks.cells);
        let (mut tree, place) = draft.in_pre_order(&stacks.cells);
        tree.cut_samples = cut_samples;
        tree.put_cells(stacks, &place);
        tree
    }

    /// Joins stacks that end in one node, and sorts them by their number of samples.
    fn put_cells(&mut self, stacks: Stacks, place: &[u32]) {
        let mut of_node = vec![u32::MAX; self.parent.len()];
        for stack in &stacks.cells {
            let node = place[stack.end as usize];
            let known = &mut of_node[node as usize];
            if *known == u32::MAX {
                *known = self.cells.len() as u32;
                self.cells.push(Cell {
                    node,
                    ..Cell::default()
                });
            }
            let cell = &mut self.cells[*known as usize];
            cell.samples += stack.samples;
            cell.running += stack.running;
            cell.weight += stack.weight;
        }
        self.cells
            .sort_unstable_by_key(|cell| (u32::MAX - cell.samples, cell.node));
        for (rank, cell) in self.cells.iter().enumerate() {
            of_node[cell.node as usize] = rank as u32;
        }
        let mut rank_of_stack = vec![0; stacks.cells.len()];
        for stack in &stacks.cells {
            rank_of_stack[stack.index as usize] = of_node[place[stack.end as usize] as usize];
        }
        self.cell_of_sample = stacks.of_sample;
        for stack in &mut self.cell_of_sample {
            *stack = rank_of_stack[*stack as usize];
        }
    }

    /// Weights of functions: their own, and with what they call. By index of `functions`.
    pub(crate) fn weights_of_functions(&self, running: bool) -> Vec<(u64, u64)> {
        let mut totals = vec![0_u64; self.parent.len()];
        let mut weights = vec![(0, 0); self.functions.len()];
        for cell in &self.cells {
            let weight = if running { cell.running } else { cell.weight };
            totals[cell.node as usize] += weight;
            if self.depth[cell.node as usize] > ROUTE_DEPTH {
                weights[self.label[cell.node as usize] as usize].0 += weight;
            }
        }
        for node in (1..totals.len()).rev() {
            totals[self.parent[node] as usize] += totals[node];
        }
        // A function that calls itself counts once: where no frame above is the same function.
        let mut open = vec![0_u32; self.functions.len()];
        let mut path: Vec<u32> = Vec::new();
        for (node, total) in totals.iter().enumerate() {
            let frames = self.depth[node].saturating_sub(ROUTE_DEPTH + 1) as usize;
            for function in path.drain(frames.min(path.len())..) {
                open[function as usize] -= 1;
            }
            if self.depth[node] > ROUTE_DEPTH {
                let function = self.label[node];
                if open[function as usize] == 0 {
                    weights[function as usize].1 += total;
                }
                open[function as usize] += 1;
                path.push(function);
            }
        }
        weights
    }
}

/// A service, a route of it, and a stack, which occur together in samples.
#[derive(Debug)]
struct Stack {
    index: u32,
    service: u32,
    /// An index of routes + 1; 0 for none.
    route: u32,
    /// The recording's node.
    node: u32,
    /// The draft's node, when it is known.
    end: u32,
    samples: u32,
    running: u64,
    weight: u64,
}

/// The stacks of all samples.
#[derive(Debug)]
struct Stacks {
    cells: Vec<Stack>,
    of_sample: Vec<u32>,
}

impl Stacks {
    fn new(recording: &Recording, ordered: &Ordered) -> Self {
        let mut known: HashMap<(u32, u32, u32), u32> = HashMap::new();
        let mut cells: Vec<Stack> = Vec::new();
        let mut of_sample = vec![0; recording.samples.len()];
        // In the order of threads, in which a stack often follows itself.
        let (mut last, mut index) = ((u32::MAX, 0, 0), 0);
        for place in &ordered.samples {
            let sample = &recording.samples[*place as usize];
            let context = sample
                .context
                .map(|context| recording.contexts[context as usize]);
            let route = context
                .and_then(|context| context.route)
                .map_or(0, |route| route + 1);
            let service = recording.threads[sample.thread as usize].service;
            let key = (service, route, sample.node);
            if key != last {
                last = key;
                index = *known.entry(key).or_insert_with(|| {
                    let index = cells.len() as u32;
                    cells.push(Stack::new(index, key));
                    index
                });
            }
            let cell = &mut cells[index as usize];
            let weight = u64::from(in_weight_units(sample.weight));
            cell.samples += 1;
            cell.weight += weight;
            if sample.kind == crate::Kind::Running {
                cell.running += weight;
            }
            of_sample[*place as usize] = index;
        }
        Self { cells, of_sample }
    }
}

impl Stack {
    const fn new(index: u32, (service, route, node): (u32, u32, u32)) -> Self {
        let (end, samples, running, weight) = (0, 0, 0, 0);
        Self {
            index,
            service,
            route,
            node,
            end,
            samples,
            running,
            weight,
        }
    }
}

/// A node of the draft: parents precede children, children are in no order.
#[derive(Clone, Copy, Debug)]
struct DraftNode {
    parent: u32,
    depth: u32,
    label: u32,
}

/// The tree while stacks are added, the heaviest first.
struct Draft<'r> {
    recording: &'r Recording,
    room: usize,
    nodes: Vec<DraftNode>,
    /// Nodes by parent and label, for services, routes and `[more frames]`.
    children: HashMap<(u32, u32), u32>,
    /// Nodes of frames, by the node of their route and the recording's node.
    frames: HashMap<(u32, u32), u32>,
    /// By the recording's node: the last that is shown of its stack; empty if all stacks are short.
    deep: Vec<u32>,
    is_full: bool,
}

impl<'r> Draft<'r> {
    fn new(recording: &'r Recording, room: usize) -> Self {
        let root = DraftNode {
            parent: 0,
            depth: 0,
            label: 0,
        };
        Self {
            recording,
            room,
            nodes: vec![root],
            children: HashMap::new(),
            frames: HashMap::new(),
            deep: shown_ancestors(recording),
            is_full: false,
        }
    }

    /// Adds all stacks, the heaviest first; returns the number of samples whose stack was cut.
    fn add_all(&mut self, stacks: &mut [Stack]) -> u64 {
        stacks.sort_unstable_by_key(|stack| (u64::MAX - stack.weight, stack.index));
        let mut cut = 0;
        for stack in stacks {
            let (end, is_whole) = self.add(stack);
            stack.end = end;
            if !is_whole {
                cut += u64::from(stack.samples);
            }
        }
        cut
    }

    /// Adds a stack; returns its last node, and whether all of its frames are there.
    fn add(&mut self, stack: &Stack) -> (u32, bool) {
        let Some(service) = self.child(0, stack.service) else {
            return (self.more(0), false);
        };
        let Some(route) = self.child(service, stack.route) else {
            return (self.more(service), false);
        };
        let shown = self
            .deep
            .get(stack.node as usize)
            .copied()
            .unwrap_or(stack.node);
        let (end, is_whole) = self.add_frames(route, shown);
        if is_whole && shown == stack.node {
            return (end, true);
        }
        (self.more(end), false)
    }

    /// Adds the frames up to the recording's node, as far as there is room.
    fn add_frames(&mut self, route: u32, node: u32) -> (u32, bool) {
        // The frames that are missing, the innermost first, and the node below which they belong.
        let (mut missing, mut above, mut at) = (Vec::new(), route, node);
        while at != 0 {
            if let Some(known) = self.frames.get(&(route, at)) {
                above = *known;
                break;
            }
            // From the first stack without room on, no frames are added: so that many long stacks
            // are not followed in vain.
            self.is_full |= self.nodes.len() + missing.len() >= self.room;
            if self.is_full {
                return (route, false);
            }
            missing.push(at);
            at = self.recording.nodes[at as usize].parent;
        }
        for frame in missing.into_iter().rev() {
            let function = self.recording.nodes[frame as usize].function;
            above = self.push(above, function);
            self.frames.insert((route, frame), above);
        }
        (above, true)
    }

    /// The service or route with this label, if it is known or there is room.
    fn child(&mut self, parent: u32, label: u32) -> Option<u32> {
        if let Some(known) = self.children.get(&(parent, label)) {
            return Some(*known);
        }
        (self.nodes.len() < self.room).then(|| {
            let child = self.push(parent, label);
            self.children.insert((parent, label), child);
            child
        })
    }

    /// The node for frames that are not shown, at most one for each other node. Below the root and
    /// a service, the levels between have the first service and no route.
    fn more(&mut self, parent: u32) -> u32 {
        let label = self.recording.functions.len() as u32;
        let mut parent = parent;
        while self.nodes[parent as usize].depth < ROUTE_DEPTH {
            let known = self.children.get(&(parent, 0)).copied();
            parent = known.unwrap_or_else(|| self.push(parent, 0));
            let above = self.nodes[parent as usize].parent;
            self.children.insert((above, 0), parent);
        }
        if let Some(known) = self.children.get(&(parent, label)) {
            return *known;
        }
        let more = self.push(parent, label);
        self.children.insert((parent, label), more);
        more
    }

    fn push(&mut self, parent: u32, label: u32) -> u32 {
        let depth = self.nodes[parent as usize].depth + 1;
        self.nodes.push(DraftNode {
            parent,
            depth,
            label,
        });
        self.nodes.len() as u32 - 1
    }

    /// Sorts the nodes: every node before its children, and the heaviest child first. Returns also
    /// the place of each of the draft's nodes.
    fn in_pre_order(&self, stacks: &[Stack]) -> (Tree, Vec<u32>) {
        let order = self.order(&self.totals(stacks));
        let mut place = vec![0_u32; order.len()];
        for (at, node) in order.iter().enumerate() {
            place[*node as usize] = at as u32;
        }
        let at = |index: &u32| self.nodes[*index as usize];
        let mut numbers = vec![u32::MAX; self.recording.functions.len() + 1];
        let mut functions = Vec::new();
        let mut label = |node: DraftNode| {
            if node.depth <= ROUTE_DEPTH {
                return node.label;
            }
            let number = &mut numbers[node.label as usize];
            if *number == u32::MAX {
                *number = functions.len() as u32;
                functions.push(node.label);
            }
            *number
        };
        let tree = Tree {
            parent: order
                .iter()
                .map(|node| place[at(node).parent as usize])
                .collect(),
            depth: order.iter().map(|node| at(node).depth).collect(),
            label: order.iter().map(|node| label(at(node))).collect(),
            functions,
            cells: Vec::new(),
            cell_of_sample: Vec::new(),
            cut_samples: 0,
        };
        (tree, place)
    }

    fn totals(&self, stacks: &[Stack]) -> Vec<u64> {
        let mut totals = vec![0_u64; self.nodes.len()];
        for stack in stacks {
            totals[stack.end as usize] += stack.weight;
        }
        for node in (1..totals.len()).rev() {
            let parent = self.nodes[node].parent as usize;
            totals[parent] += totals[node];
        }
        totals
    }

    /// The nodes in pre-order, the heaviest child first.
    fn order(&self, totals: &[u64]) -> Vec<u32> {
        // Children by parent, the lightest first, as the last of a stack is the first taken.
        let mut children: Vec<u32> = (1..self.nodes.len() as u32).collect();
        children.sort_unstable_by_key(|child| {
            let parent = self.nodes[*child as usize].parent;
            (parent, totals[*child as usize], u32::MAX - *child)
        });
        let mut from = vec![0_u32; self.nodes.len() + 1];
        for child in &children {
            from[self.nodes[*child as usize].parent as usize + 1] += 1;
        }
        for node in 0..self.nodes.len() {
            from[node + 1] += from[node];
        }
        let (mut order, mut open) = (Vec::with_capacity(self.nodes.len()), vec![0_u32]);
        while let Some(node) = open.pop() {
            order.push(node);
            let (from, to) = (from[node as usize], from[node as usize + 1]);
            open.extend_from_slice(&children[from as usize..to as usize]);
        }
        order
    }
}

/// By node of the recording: itself, or the ancestor that is the last shown. Empty if all are shown.
fn shown_ancestors(recording: &Recording) -> Vec<u32> {
    let mut depth = vec![0_u32; recording.nodes.len()];
    let mut is_deep = false;
    for (index, node) in recording.nodes.iter().enumerate().skip(1) {
        depth[index] = depth[node.parent as usize] + 1;
        is_deep |= depth[index] > MAX_DEPTH;
    }
    if !is_deep {
        return Vec::new();
    }
    let mut shown: Vec<u32> = (0..recording.nodes.len() as u32).collect();
    for (index, node) in recording.nodes.iter().enumerate().skip(1) {
        if depth[index] > MAX_DEPTH {
            shown[index] = shown[node.parent as usize];
        }
    }
    shown
}

#[cfg(test)]
mod tests;
