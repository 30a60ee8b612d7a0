//! Graphs that are not what ONNX allows, and sizes beyond what operators take: errors, not other results.

mod graphs;

use autobwd::{ErrorKind, Result};
use autobwd_onnx::{LoadOptions, from_bytes};
use graphs::{
    constant, floats, graph, ints, model, node,
    proto::{GraphProto, NodeProto, TensorProto},
    typed_value, value,
};

fn load(graph: GraphProto) -> Result<()> {
    from_bytes(&model(graph), &LoadOptions::default()).map(drop)
}

/// The error of a graph of one input `x` [2, 3] and the output `y`.
fn refused(nodes: Vec<NodeProto>, initializers: Vec<TensorProto>) -> String {
    let e = load(graph(&[value("x", &[2, 3])], &["y"], nodes, initializers)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Format, "{e}");
    e.to_string()
}

#[test]
fn names_that_are_assigned_twice_are_refused() -> Result<()> {
    let twice = "it is assigned twice: names must be unique in a graph (value `";
    let relu = || node("Relu", &["x"], &["y"]);
    // By two nodes, by one node, by a node and an input, an initializer, a constant.
    for nodes in [
        vec![relu(), node("Exp", &["x"], &["y"])],
        vec![node("Split", &["x"], &["a", "a"]).int("axis", 0), relu()],
        vec![node("Exp", &["x"], &["x"]), relu()],
        vec![node("Exp", &["x"], &["w"]), node("Relu", &["w"], &["y"])],
        vec![constant("c", &[], &[1.0]), constant("c", &[], &[2.0]), relu()],
    ] {
        let e = refused(nodes, vec![floats("w", &[3], &[1.0; 3])]);
        assert!(e.contains(twice), "{e}");
    }
    let w = || floats("w", &[3], &[1.0; 3]);
    assert!(refused(vec![relu()], vec![w(), w()]).contains("(value `w`)"));
    let inputs = [value("x", &[2, 3]), value("x", &[2, 3])];
    let e = load(graph(&inputs, &["y"], vec![relu()], vec![])).unwrap_err().to_string();
    assert!(e.contains("(value `x`)"), "{e}");
    // An input with an initializer is one value; branches have names of their own.
    let inputs = [value("x", &[2, 3]), value("w", &[3]), typed_value("c", 9, &[])];
    let branch = || graph(&[], &["z"], vec![node("Mul", &["x", "w"], &["z"])], vec![]);
    let choice = node("If", &["c"], &["y"]).graph("then_branch", branch()).graph("else_branch", branch());
    load(graph(&inputs, &["y"], vec![choice], vec![w()]))
}

#[test]
fn sizes_beyond_32_bits_are_refused() {
    let large = 1_i64 << 32;
    let by = |op: &str, sizes: &[i64]| {
        refused(vec![node(op, &["x", "sizes"], &["y"])], vec![ints("sizes", sizes)])
    };
    for e in [
        by("Expand", &[large, 2, 3]),
        by("Tile", &[large, 1]),
        by("Reshape", &[large, -1]),
        refused(
            vec![node("Split", &["x", "sizes"], &["y", "z"]).int("axis", 0)],
            vec![ints("sizes", &[large + 1, 1])],
        ),
    ] {
        assert!(e.contains(&format!("{large} is too large")) || e.contains("4294967297 is too large"), "{e}");
    }
}
