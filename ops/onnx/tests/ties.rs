//! Gradients of maxima and minima at ties, and of norms at 0: as PyTorch, whose models the operators are exported from, defines them.

mod graphs;

use autobwd::{Executor, Feed, Result, Tensor, append_backward};
use autobwd_onnx::{LoadOptions, from_bytes};
use graphs::{floats, graph, model, node, proto::NodeProto, value};

/// The gradient of the sum of `y` with respect to `w`, which is added to the input.
fn gradient(nodes: Vec<NodeProto>, dims: &[i64], x: &[f32]) -> Result<Vec<f64>> {
    let shape: Vec<usize> = dims.iter().map(|dim| *dim as usize).collect();
    let mut all = vec![node("Add", &["x", "w"], &["sum"])];
    all.extend(nodes);
    all.push(node("ReduceSum", &["y"], &["loss"]).int("keepdims", 0));
    let initializers = vec![floats("w", &shape, &vec![0.0; x.len()])];
    let bytes = model(graph(&[value("x", dims)], &["loss"], all, initializers));
    let mut model = from_bytes(&bytes, &LoadOptions::default())?;
    let mut program = model.program.clone();
    append_backward(&mut program, "loss", &Default::default())?;
    let x = Tensor::from_vec(&shape[..], x.to_vec())?;
    let feeds: [(&str, &dyn Feed); 1] = [("x", &x)];
    Ok(Executor::new().run(&program, &mut model.scope, &feeds, &["w@GRAD"])?[0].to_f64s())
}

const X: [f32; 5] = [2.0, 9.0, 1.0, 9.0, 0.0];

#[test]
fn reductions_share_the_gradient() -> Result<()> {
    let reduced = |op: &str| vec![node(op, &["sum"], &["y"]).ints("axes", &[-1])];
    assert_eq!(gradient(reduced("ReduceMax"), &[1, 5], &X)?, [0.0, 0.5, 0.0, 0.5, 0.0]);
    assert_eq!(gradient(reduced("ReduceMin"), &[1, 5], &X.map(|x| -x))?, [0.0, 0.5, 0.0, 0.5, 0.0]);
    assert_eq!(gradient(reduced("ReduceMax"), &[1, 3], &[7.0; 3])?, [1.0_f32 / 3.0; 3].map(f64::from));
    Ok(())
}

#[test]
fn global_pooling_takes_the_first_of_equal_elements() -> Result<()> {
    let pooled = || vec![node("GlobalMaxPool", &["sum"], &["y"])];
    for dims in [&[1, 1, 5][..], &[1, 1, 5, 1], &[1, 1, 1, 5], &[1, 1, 1, 5, 1]] {
        assert_eq!(gradient(pooled(), dims, &X)?, [0.0, 1.0, 0.0, 0.0, 0.0], "{dims:?}");
    }
    // After pooling with overlapping windows, which repeats the largest element, it gets the whole gradient once.
    let after = vec![
        node("MaxPool", &["sum"], &["pooled"]).ints("kernel_shape", &[3]).ints("pads", &[1, 1]),
        node("GlobalMaxPool", &["pooled"], &["y"]),
    ];
    assert_eq!(gradient(after, &[1, 1, 5], &[1.0, 2.0, 9.0, 3.0, 4.0])?, [0.0, 0.0, 1.0, 0.0, 0.0]);
    Ok(())
}

#[test]
fn pooling_takes_the_first_of_equal_elements() -> Result<()> {
    let equal = [4.0; 8];
    let first = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    let pool = |outputs: &[&str], sizes: &[i64]| {
        vec![node("MaxPool", &["sum"], outputs).ints("kernel_shape", sizes)]
    };
    // By the operator of the library, of three dimensions, and with positions.
    assert_eq!(gradient(pool(&["y"], &[2, 4]), &[1, 1, 2, 4], &equal)?, first);
    assert_eq!(gradient(pool(&["y"], &[2, 2, 2]), &[1, 1, 2, 2, 2], &equal)?, first);
    assert_eq!(gradient(pool(&["y", "positions"], &[2, 4]), &[1, 1, 2, 4], &equal)?, first);
    Ok(())
}

#[test]
fn norms_are_flat_at_zero() -> Result<()> {
    let norm = vec![node("ReduceL2", &["sum"], &["y"]).ints("axes", &[1])];
    assert_eq!(gradient(norm, &[2, 2], &[0.0, 0.0, 3.0, 4.0])?, [0.0, 0.0, 0.6_f32.into(), 0.8_f32.into()]);
    Ok(())
}
