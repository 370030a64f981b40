use super::*;
use crate::{Context, Function, Kind, Node, Sample, Thread};

/// A recording of one thread with these frames, of which each has a function of its own.
fn recording(nodes: Vec<Node>, samples: Vec<Sample>) -> Recording {
    let function = |index| Function {
        name: format!("f{index}"),
        ..Function::default()
    };
    Recording {
        services: vec!["one".to_owned()],
        functions: (0..nodes.len()).map(function).collect(),
        nodes,
        threads: vec![Thread::default()],
        samples,
        ..Recording::default()
    }
}

fn sample(node: u32, microseconds: u64) -> Sample {
    Sample {
        time: u64::from(node),
        node,
        weight: microseconds * 1_000,
        ..Sample::default()
    }
}

fn tree(recording: &Recording, room: usize) -> Tree {
    Tree::with_room(recording, &Ordered::new(recording), room)
}

/// The labels from the service to a sample's node.
fn path(tree: &Tree, sample: usize) -> Vec<u32> {
    let mut node = tree.cells[tree.cell_of_sample[sample] as usize].node as usize;
    let mut path = Vec::new();
    while node != 0 {
        let label = tree.label[node];
        let is_frame = tree.depth[node] > ROUTE_DEPTH;
        path.insert(
            0,
            if is_frame {
                tree.functions[label as usize]
            } else {
                label
            },
        );
        node = tree.parent[node] as usize;
    }
    path
}

#[test]
fn nodes_are_in_pre_order_with_the_heaviest_child_first() {
    // 1 calls 2 and 3; 4 calls nothing.
    let node = |parent, function| Node { parent, function };
    let nodes = vec![node(0, 0), node(0, 1), node(1, 2), node(1, 3), node(0, 4)];
    let samples = vec![sample(2, 10), sample(3, 20), sample(4, 25), sample(3, 1)];
    let tree = tree(&recording(nodes, samples), 100);
    assert_eq!(tree.depth, [0, 1, 2, 3, 4, 4, 3]);
    assert_eq!(tree.parent, [0, 0, 1, 2, 3, 3, 2]);
    assert_eq!(tree.functions, [1, 3, 2, 4]);
    // In the order of cells: the most samples first.
    let cells = tree
        .cells
        .iter()
        .map(|cell| (cell.node, cell.samples, cell.weight));
    assert_eq!(
        cells.collect::<Vec<_>>(),
        [(4, 2, 21), (5, 1, 10), (6, 1, 25)]
    );
    assert_eq!(tree.cut_samples, 0);
    // Own, and with what is called, by function of the tree.
    assert_eq!(
        tree.weights_of_functions(true),
        [(0, 31), (21, 21), (10, 10), (25, 25)]
    );
}

#[test]
fn a_function_that_calls_itself_counts_once() {
    let node = |parent, function| Node { parent, function };
    let nodes = vec![node(0, 0), node(0, 1), node(1, 2), node(2, 1), node(0, 2)];
    let tree = tree(
        &recording(nodes, vec![sample(3, 10), sample(2, 5), sample(4, 1)]),
        100,
    );
    assert_eq!(tree.functions, [1, 2]);
    assert_eq!(tree.weights_of_functions(true), [(10, 15), (6, 16)]);
}

#[test]
fn only_time_of_running_threads_is_in_the_first_picture() {
    let waiting = Sample {
        kind: Kind::Waiting,
        ..sample(1, 7)
    };
    let nodes = vec![
        Node::default(),
        Node {
            parent: 0,
            function: 1,
        },
    ];
    let tree = tree(&recording(nodes, vec![waiting, sample(1, 5)]), 100);
    assert_eq!((tree.cells[0].running, tree.cells[0].weight), (5, 12));
    assert_eq!(tree.weights_of_functions(true), [(5, 5)]);
    assert_eq!(tree.weights_of_functions(false), [(12, 12)]);
}

#[test]
fn the_lightest_stacks_are_cut_where_there_is_no_room() {
    const ROOM: usize = 20;
    // Each in a stack of its own, and the last is the heaviest.
    let nodes = (0..=100)
        .map(|function| Node {
            parent: 0,
            function,
        })
        .collect();
    let samples = (1..=100)
        .map(|node| sample(node, u64::from(node)))
        .collect();
    let recording = recording(nodes, samples);
    let tree = tree(&recording, ROOM);
    // The room holds the root, the service and its route; what has none shares one more node.
    assert_eq!(tree.parent.len(), ROOM + 1);
    assert_eq!(tree.cut_samples, 83);
    let more = recording.functions.len() as u32;
    for index in 0..100 {
        let last = if index < 83 { more } else { index as u32 + 1 };
        assert_eq!(path(&tree, index), [0, 0, last]);
    }
    let weight: u64 = tree.cells.iter().map(|cell| cell.weight).sum();
    assert_eq!(weight, 5050);
}

#[test]
fn a_long_stack_without_room_ends_in_its_route() {
    const ROOM: usize = 20;
    let nodes = (0..=30_u32).map(|node| Node {
        parent: node.saturating_sub(1),
        function: node,
    });
    let recording = recording(
        nodes.collect(),
        vec![sample(30, 9), sample(5, 1), sample(6, 10)],
    );
    let tree = tree(&recording, ROOM);
    let more = recording.functions.len() as u32;
    // The heaviest fits, the next does not, and nothing but known frames is shown from then on.
    assert_eq!(path(&tree, 2), [0, 0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(path(&tree, 0), [0, 0, more]);
    assert_eq!(path(&tree, 1), [0, 0, 1, 2, 3, 4, 5]);
    assert_eq!(tree.cut_samples, 1);
}

#[test]
fn routes_and_services_without_room_are_joined() {
    const ROOM: usize = 20;
    let mut recording = recording(vec![Node::default()], Vec::new());
    recording.services = (0..100).map(|index| format!("s{index}")).collect();
    recording.routes = (0..100).map(|index| format!("/{index}")).collect();
    for index in 0..100 {
        recording.contexts.push(Context {
            route: Some(index),
            ..Context::default()
        });
        recording.threads.push(Thread {
            service: index,
            ..Thread::default()
        });
        let (context, thread) = (Some(index), index + 1);
        recording.samples.push(Sample {
            context,
            thread,
            ..sample(0, 100 + u64::from(index))
        });
    }
    let tree = tree(&recording, ROOM);
    let more = recording.functions.len() as u32;
    // Nine services with a route each, and the tenth without room for its route.
    for index in 91..100 {
        assert_eq!(path(&tree, index), [index as u32, index as u32 + 1]);
    }
    assert_eq!(path(&tree, 90), [90, 0, more]);
    assert_eq!(path(&tree, 0), [0, 0, more]);
    assert_eq!(tree.cut_samples, 91);
    let weight: u64 = tree.cells.iter().map(|cell| cell.weight).sum();
    assert_eq!(weight, (100..200).sum::<u64>());
}
