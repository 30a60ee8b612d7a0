//! Graphs that compute with dimensions, as exporters write them: they load with unknown dimensions, and give what they give
//! where dimensions are known.

mod graphs;

use autobwd::{DType, Executor, Result, Tensor};
use autobwd_onnx::{LoadOptions, from_bytes};
use graphs::{
    ints, model, node,
    proto::{GraphProto, NodeProto, StringStringEntryProto, TensorProto, ValueInfoProto},
    typed_value,
};

fn numbers(dims: &[usize]) -> Tensor {
    let count = dims.iter().product::<usize>();
    Tensor::from_vec(dims, (0..count).map(|i| (i * 7 % 11) as f32 * 0.25 - 1.0).collect()).unwrap()
}

fn indices(dims: &[usize], size: i64) -> Tensor {
    let count = dims.iter().product::<usize>() as i64;
    Tensor::from_vec(dims, (0..count).map(|i| i * 5 % (2 * size) - size).collect()).unwrap()
}

/// A graph of inputs with unknown dimensions except those that are the same in both runs. Its result is `out`.
fn open_graph(runs: &[Vec<Tensor>; 2], nodes: Vec<NodeProto>, initializers: Vec<TensorProto>) -> GraphProto {
    let input = |i: usize| -> ValueInfoProto {
        let [first, second] = runs.each_ref().map(|run| &run[i]);
        let dims = first.dims().iter().zip(second.dims());
        let dims: Vec<i64> = dims.map(|(a, b)| if a == b { *a as i64 } else { -1 }).collect();
        typed_value(&format!("x{i}"), if first.dtype() == DType::I64 { 7 } else { 1 }, &dims)
    };
    let inputs: Vec<ValueInfoProto> = (0..runs[0].len()).map(input).collect();
    graphs::graph(&inputs, &["out"], nodes, initializers)
}

#[track_caller]
fn assert_loads_open(runs: [Vec<Tensor>; 2], nodes: Vec<NodeProto>, initializers: Vec<TensorProto>) {
    assert_loads_open_within(0.0, runs, nodes, initializers);
}

#[track_caller]
fn assert_loads_open_within(
    tolerance: f64,
    runs: [Vec<Tensor>; 2],
    nodes: Vec<NodeProto>,
    initializers: Vec<TensorProto>,
) {
    let bytes = model(open_graph(&runs, nodes, initializers));
    let mut executor = Executor::with_threads(1);
    let mut open = from_bytes(&bytes, &LoadOptions::default()).unwrap();
    for run in &runs {
        let shapes = run.iter().enumerate().map(|(i, x)| (format!("x{i}"), x.dims().to_vec())).collect();
        let mut known = from_bytes(&bytes, &LoadOptions { shapes, ..LoadOptions::default() }).unwrap();
        let inputs: Vec<&Tensor> = run.iter().collect();
        let [out, expected] =
            [&mut open, &mut known].map(|model| model.run(&mut executor, &inputs).unwrap().remove(0));
        assert_eq!(out.dims(), expected.dims());
        for (x, y) in out.to_f64s().into_iter().zip(expected.to_f64s()) {
            assert!((x - y).abs() <= tolerance, "for {:?}: {x} is not {y}", run[0].dims());
        }
    }
}

/// Dimension `axis` of `x0`, as PyTorch writes it.
fn dimension(axis: i64, name: &str) -> (Vec<NodeProto>, TensorProto) {
    let (shape, index) = (format!("{name}_shape"), format!("{name}_index"));
    let nodes =
        vec![node("Shape", &["x0"], &[&shape]), node("Gather", &[&shape, &index], &[name]).int("axis", 0)];
    (nodes, graphs::tensor(&index, &Tensor::scalar(axis).unwrap()))
}

/// `[dimension 0, dimension 1, 2, width / 2]` of `x0`, computed step by step.
fn heads() -> (Vec<NodeProto>, Vec<TensorProto>) {
    let (mut nodes, mut initializers) = (vec![], vec![ints("axes", &[0]), ints("two", &[2])]);
    for axis in 0..3 {
        let name = format!("d{axis}");
        let (own, index) = dimension(axis, &name);
        nodes.extend(own);
        nodes.push(node("Unsqueeze", &[&name, "axes"], &[&format!("{name}_1")]));
        initializers.push(index);
    }
    nodes.push(node("Div", &["d2_1", "two"], &["half"]));
    nodes.push(node("Concat", &["d0_1", "d1_1", "two", "half"], &["shape"]).int("axis", 0));
    (nodes, initializers)
}

fn sequences() -> [Vec<Tensor>; 2] {
    [vec![numbers(&[2, 3, 8])], vec![numbers(&[3, 5, 8])]]
}

#[test]
fn heads_are_split_off() {
    let (mut nodes, initializers) = heads();
    nodes.push(node("Reshape", &["x0", "shape"], &["out"]).int("allowzero", 1));
    assert_loads_open(sequences(), nodes, initializers);
}

#[test]
fn shape_of_a_reshape_has_known_elements() -> Result<()> {
    // A recurrent layer needs its width, which is computed.
    let (mut nodes, mut initializers) = heads();
    nodes.push(node("Reshape", &["x0", "shape"], &["parts"]));
    nodes.push(node("Squeeze", &["first", "last_axis"], &["x"]));
    nodes.insert(nodes.len() - 1, node("Slice", &["parts", "zero", "one", "second_axis"], &["first"]));
    nodes.push(node("LSTM", &["x", "w", "r"], &["out"]).int("hidden_size", 2));
    let constants: [(&str, &[i64]); 4] =
        [("zero", &[0]), ("one", &[1]), ("second_axis", &[2]), ("last_axis", &[2])];
    initializers.extend(constants.map(|(name, elements)| ints(name, elements)));
    initializers.push(graphs::tensor("w", &numbers(&[1, 8, 4])));
    initializers.push(graphs::tensor("r", &numbers(&[1, 8, 2])));
    assert_loads_open(sequences(), nodes, initializers);
    Ok(())
}

#[test]
fn expanding_keeps_dimensions_where_the_size_is_minus_one() {
    // As PyTorch's `expand(-1, t, -1)`: a size of -1 becomes 1 in the shape.
    let (mut nodes, index) = dimension(1, "t");
    nodes.push(node("Unsqueeze", &["t", "axes"], &["t_1"]));
    nodes.push(node("Concat", &["minus", "t_1", "minus"], &["sizes"]).int("axis", 0));
    nodes.push(node("Equal", &["sizes", "minus"], &["is_kept"]));
    nodes.push(node("Where", &["is_kept", "ones", "sizes"], &["shape"]));
    nodes.push(node("Slice", &["x0", "zero", "one", "axis"], &["first"]));
    nodes.push(node("Expand", &["first", "shape"], &["out"]));
    let constants: [(&str, &[i64]); 6] = [
        ("axes", &[0]),
        ("minus", &[-1]),
        ("ones", &[1, 1, 1]),
        ("zero", &[0]),
        ("one", &[1]),
        ("axis", &[1]),
    ];
    let mut initializers: Vec<TensorProto> = constants.map(|(name, elements)| ints(name, elements)).into();
    initializers.push(index);
    assert_loads_open(sequences(), nodes, initializers);
}

#[test]
fn identities_have_the_size_of_a_matrix() {
    for diagonal in [-1, 0, 2] {
        let nodes = vec![node("EyeLike", &["x0"], &["out"]).int("k", diagonal)];
        assert_loads_open([vec![numbers(&[2, 3])], vec![numbers(&[5, 4])]], nodes, vec![]);
    }
}

#[test]
fn tensors_are_expanded_to_each_other() {
    let nodes = vec![node("Shape", &["x1"], &["shape"]), node("Expand", &["x0", "shape"], &["out"])];
    let runs = [vec![numbers(&[2, 1]), numbers(&[3, 1, 4])], vec![numbers(&[1, 5]), numbers(&[2, 3, 1])]];
    assert_loads_open(runs, nodes, vec![]);
}

#[test]
fn slices_have_computed_ends_and_steps() {
    let (mut nodes, index) = dimension(1, "t");
    nodes.push(node("Unsqueeze", &["t", "axes"], &["end"]));
    nodes.push(node("Slice", &["x0", "one", "end", "one", "two"], &["odd"]));
    nodes.push(node("Slice", &["odd", "minus", "below", "two", "minus"], &["mirrored"]));
    nodes.push(node("Slice", &["mirrored", "zero", "far", "zero", "two"], &["out"]));
    let constants: [(&str, &[i64]); 7] = [
        ("axes", &[0]),
        ("zero", &[0]),
        ("one", &[1]),
        ("two", &[2]),
        ("minus", &[-1]),
        ("below", &[i64::MIN]),
        ("far", &[i64::MAX]),
    ];
    let mut initializers: Vec<TensorProto> = constants.map(|(name, elements)| ints(name, elements)).into();
    initializers.push(index);
    let runs = [vec![numbers(&[2, 3, 4])], vec![numbers(&[3, 6, 8])]];
    assert_loads_open(runs, nodes, initializers);
}

#[test]
fn dimensions_are_split_into_equal_parts() {
    let nodes = vec![
        node("Split", &["x0"], &["a", "b"]).int("axis", 1),
        node("Concat", &["b", "a"], &["out"]).int("axis", 1),
    ];
    assert_loads_open([vec![numbers(&[2, 4])], vec![numbers(&[1, 7])]], nodes, vec![]);
}

#[test]
fn elements_are_gathered_by_negative_indices() {
    let nodes = vec![node("GatherND", &["x0", "x1"], &["out"]).int("batch_dims", 1)];
    let runs = [
        vec![numbers(&[2, 3, 4]), indices(&[2, 5, 1], 3)],
        vec![numbers(&[3, 6, 4]), indices(&[3, 2, 1], 6)],
    ];
    assert_loads_open(runs, nodes, vec![]);
    let nodes = vec![node("Gather", &["x0", "last"], &["out"]).int("axis", 1)];
    assert_loads_open(sequences(), nodes, vec![ints("last", &[-1, 0])]);
}

#[test]
fn elements_are_scattered() {
    let nodes = vec![node("ScatterElements", &["x0", "x1", "x2"], &["out"]).int("axis", 1)];
    let runs = [
        vec![numbers(&[3, 4]), indices(&[2, 1], 4), numbers(&[2, 1])],
        vec![numbers(&[5, 6]), indices(&[5, 1], 6), numbers(&[5, 1])],
    ];
    assert_loads_open(runs, nodes, vec![]);
    let nodes = vec![node("ScatterND", &["x0", "x1", "x2"], &["out"])];
    let rows = |n: usize| Tensor::from_vec([n, 1], (0..n as i64).map(|i| -1 - i).collect()).unwrap();
    let runs = [
        vec![numbers(&[4, 3]), rows(2), numbers(&[2, 3])],
        vec![numbers(&[6, 2]), rows(5), numbers(&[5, 2])],
    ];
    assert_loads_open(runs, nodes, vec![]);
}

#[test]
fn classes_of_any_number_of_rows_are_one_hot() {
    let nodes = vec![node("OneHot", &["x0", "depth", "values"], &["out"])];
    let initializers = vec![ints("depth", &[4]), graphs::floats("values", &[2], &[-1.0, 2.0])];
    assert_loads_open([vec![indices(&[2, 3], 4)], vec![indices(&[4, 5], 4)]], nodes, initializers);
}

#[test]
fn images_are_resized_to_each_other_and_padded() {
    let images = |a: [usize; 4], b: [usize; 4]| vec![numbers(&a), numbers(&b)];
    let runs = [images([1, 2, 3, 4], [1, 2, 5, 7]), images([2, 2, 6, 5], [2, 2, 9, 10])];
    // One element is the one in the middle.
    let single = [images([1, 2, 4, 5], [1, 2, 1, 7]), images([1, 2, 3, 5], [1, 2, 4, 1])];
    for (mode, transformation) in [
        ("nearest", "asymmetric"),
        ("linear", "align_corners"),
        ("linear", "half_pixel"),
        ("cubic", "align_corners"),
        ("cubic", "half_pixel"),
    ] {
        let resize = node("Resize", &["x0", "", "", "sizes"], &["out"]).text("mode", mode);
        let resize =
            resize.text("coordinate_transformation_mode", transformation).text("nearest_mode", "floor");
        let nodes = vec![
            node("Shape", &["x0"], &["own"]).int("end", 2),
            node("Shape", &["x1"], &["wanted"]).int("start", 2),
            node("Concat", &["own", "wanted"], &["sizes"]).int("axis", 0),
            resize,
        ];
        for runs in [&runs, &single] {
            assert_loads_open_within(1e-5, runs.clone(), nodes.clone(), vec![]);
        }
    }
    // To the next multiple of 4.
    let (mut nodes, index) = dimension(1, "n");
    nodes.push(node("Add", &["n", "three"], &["more"]));
    nodes.push(node("Div", &["more", "four"], &["count"]));
    nodes.push(node("Mul", &["count", "four"], &["full"]));
    nodes.push(node("Sub", &["full", "n"], &["missing"]));
    nodes.push(node("Unsqueeze", &["missing", "axes"], &["missing_1"]));
    nodes.push(node("Concat", &["zeros", "missing_1"], &["pads"]).int("axis", 0));
    nodes.push(node("Pad", &["x0", "pads"], &["out"]));
    let scalar = |name: &str, n: i64| graphs::tensor(name, &Tensor::scalar(n).unwrap());
    let initializers =
        vec![index, scalar("three", 3), scalar("four", 4), ints("axes", &[0]), ints("zeros", &[0, 0, 0])];
    assert_loads_open([vec![numbers(&[2, 3])], vec![numbers(&[3, 8])]], nodes, initializers);
}

/// Compares a model that computes sizes from the data `x1` with the same model for which these data are known.
#[track_caller]
fn assert_follows_data(runs: &[(&[usize], &[f32])], nodes: Vec<NodeProto>, initializers: Vec<TensorProto>) {
    let inputs = |(dims, data): &(&[usize], &[f32])| {
        vec![numbers(dims), Tensor::from_vec([data.len()], data.to_vec()).unwrap()]
    };
    let both = [inputs(&runs[0]), inputs(&runs[1])];
    let bytes = model(open_graph(&both, nodes, initializers));
    let mut executor = Executor::with_threads(1);
    let mut open = from_bytes(&bytes, &LoadOptions::default()).unwrap();
    for run in runs.iter().map(inputs) {
        let values = [("x1".into(), run[1].clone())].into();
        let shapes = [("x0".into(), run[0].dims().to_vec())].into();
        let mut known =
            from_bytes(&bytes, &LoadOptions { values, shapes, ..LoadOptions::default() }).unwrap();
        let out = open.run(&mut executor, &[&run[0], &run[1]]).unwrap().remove(0);
        let expected = known.run(&mut executor, &[&run[0]]).unwrap().remove(0);
        assert_eq!(out.dims(), expected.dims(), "for {run:?}");
        for (x, y) in out.to_f64s().into_iter().zip(expected.to_f64s()) {
            assert!((x - y).abs() <= 1e-5, "for {run:?}: {x} is not {y}");
        }
    }
}

#[test]
fn sizes_follow_from_data() {
    let cast = node("Cast", &["x1"], &["data"]).int("to", 7);
    let images: [(&[usize], &[f32]); 4] = [
        (&[1, 2, 3, 4], &[5.0, 7.0]),
        (&[2, 2, 6, 5], &[3.0, 9.0]),
        (&[2, 2, 6, 5], &[1.0, 1.0]),
        (&[2, 2, 6, 5], &[6.0, 5.0]),
    ];
    for mode in ["linear", "cubic"] {
        let nodes = vec![
            cast.clone(),
            node("Shape", &["x0"], &["own"]).int("end", 2),
            node("Concat", &["own", "data"], &["sizes"]).int("axis", 0),
            node("Resize", &["x0", "", "", "sizes"], &["out"]).text("mode", mode),
        ];
        assert_follows_data(&images, nodes, vec![]);
    }
    let nodes = vec![
        cast,
        node("ReduceMax", &["x0"], &["most"]).int("keepdims", 0),
        node("ConstantOfShape", &["data"], &["zeros"]),
        node("Expand", &["most", "data"], &["equal"]),
        node("Sum", &["zeros", "equal"], &["out"]),
    ];
    assert_follows_data(&[(&[2], &[2.0, 3.0]), (&[3], &[4.0, 1.0]), (&[3], &[0.0, 1.0])], nodes, vec![]);
}

#[test]
fn slices_follow_from_data() {
    let nodes = vec![
        node("Cast", &["x1"], &["bounds"]).int("to", 7),
        node("Split", &["bounds", "halves"], &["starts", "ends"]),
        node("Slice", &["x0", "starts", "ends", "axes", "steps"], &["out"]),
    ];
    let initializers = vec![ints("halves", &[2, 2]), ints("axes", &[1, 0]), ints("steps", &[1, 2])];
    let runs: [(&[usize], &[f32]); 4] = [
        (&[4, 6], &[1.0, 0.0, 4.0, 4.0]),
        (&[5, 7], &[-3.0, 1.0, -1.0, 9.0]),
        (&[5, 7], &[-9.0, -1.0, 2.0, -3.0]),
        (&[5, 7], &[2.0, 3.0, 100.0, 5.0]),
    ];
    assert_follows_data(&runs, nodes, initializers);
}

#[test]
fn negative_sizes_in_data_are_errors() {
    let nodes = vec![
        node("Cast", &["x1"], &["data"]).int("to", 7),
        node("ConstantOfShape", &["data"], &["zeros"]),
        node("Add", &["zeros", "x0"], &["out"]),
    ];
    let one = |n: f32| vec![numbers(&[1]), Tensor::from_vec([1], vec![n]).unwrap()];
    let mut open =
        from_bytes(&model(open_graph(&[one(2.0), one(3.0)], nodes, vec![])), &LoadOptions::default())
            .unwrap();
    let inputs = one(-2.0);
    let e = open.run(&mut Executor::with_threads(1), &[&inputs[0], &inputs[1]]).unwrap_err();
    assert!(e.to_string().contains("`X`: -2 is not a size"), "{e}");
}

#[test]
fn initializers_that_pytorch_does_not_call_parameters_are_constants() -> Result<()> {
    let runs = [vec![numbers(&[2, 3])], vec![numbers(&[4, 3])]];
    let nodes = vec![
        node("MatMul", &["x0", "layer.weight"], &["product"]),
        node("Mul", &["product", "val_0"], &["scaled"]),
        node("MatMul", &["scaled", "val_1"], &["moved"]),
        node("Add", &["moved", "layer.offset"], &["out"]),
    ];
    let initializers = vec![
        graphs::tensor("layer.weight", &numbers(&[3, 2])),
        graphs::floats("val_0", &[], &[0.5]),
        graphs::tensor("val_1", &numbers(&[2, 2])),
        graphs::tensor("layer.offset", &numbers(&[2])),
    ];
    let mut graph = open_graph(&runs, nodes, initializers);
    let kind = "pkg.torch.export.graph_signature.InputSpec.kind";
    let folded = "pkg.onnxscript.optimizer.folded_from";
    for (name, key, value) in [
        ("layer.weight", kind, "PARAMETER"),
        ("layer.offset", kind, "BUFFER"),
        ("val_1", folded, "['other.weight', 'val_7']"),
        ("val_0", folded, "['val_8']"),
    ] {
        let mut info = typed_value(name, 1, &[]);
        info.metadata_props =
            vec![StringStringEntryProto { key: Some(key.into()), value: Some(value.into()) }];
        graph.value_info.push(info);
    }
    let read = from_bytes(&model(graph), &LoadOptions::default())?;
    let parameters: Vec<&str> = read.program.parameters().map(|var| read.program.name(var)).collect();
    assert_eq!(parameters, ["layer.weight", "val_1"]);
    Ok(())
}

#[test]
fn shapes_that_do_not_fit_are_refused_when_a_model_is_loaded() {
    let (mut nodes, index) = dimension(0, "n");
    nodes.push(node("Unsqueeze", &["n", "axes"], &["n_1"]));
    nodes.push(node("Concat", &["n_1", "four"], &["shape"]).int("axis", 0));
    nodes.push(node("Expand", &["x0", "shape"], &["out"]));
    let initializers = vec![index, ints("axes", &[0]), ints("four", &[4])];
    let runs = [vec![numbers(&[2, 3])], vec![numbers(&[5, 3])]];
    let e =
        from_bytes(&model(open_graph(&runs, nodes, initializers)), &LoadOptions::default()).err().unwrap();
    assert!(e.to_string().contains("operator `Expand`: [-1, 3] does not broadcast to 4 at axis 1"), "{e}");
    let nodes = vec![
        node("SplitToSequence", &["x0", "sizes"], &["parts"]).int("axis", 1),
        node("SequenceAt", &["parts", "third"], &["out"]),
    ];
    let initializers = vec![ints("sizes", &[1, 2]), graphs::tensor("third", &Tensor::scalar(2_i64).unwrap())];
    let e =
        from_bytes(&model(open_graph(&runs, nodes, initializers)), &LoadOptions::default()).err().unwrap();
    assert!(e.to_string().contains("operator `SequenceAt`: a position outside of 2 tensors"), "{e}");
}

#[test]
fn sequences_are_slices() {
    let nodes = vec![
        node("SplitToSequence", &["x0", "two"], &["parts"]).int("axis", 1),
        node("SequenceAt", &["parts", "last"], &["b"]),
        node("SequenceErase", &["parts"], &["rest"]),
        node("SequenceInsert", &["rest", "b", "zero"], &["turned"]),
        node("SequenceConstruct", &["b", "b"], &["twice"]),
        node("ConcatFromSequence", &["turned"], &["joined"]).int("axis", 1),
        node("ConcatFromSequence", &["twice"], &["stacked"]).int("axis", 0).int("new_axis", 1),
        node("SequenceLength", &["turned"], &["length"]),
        node("Cast", &["length"], &["factor"]).int("to", 1),
        node("Mul", &["joined", "factor"], &["scaled"]),
        node("ReduceMax", &["stacked"], &["most"]).ints("axes", &[0, 2]).int("keepdims", 0),
        node("Unsqueeze", &["most", "one"], &["column"]),
        node("Add", &["scaled", "column"], &["out"]),
    ];
    let scalar = |name: &str, n: i64| graphs::tensor(name, &Tensor::scalar(n).unwrap());
    let initializers = vec![scalar("two", 2), scalar("last", -1), scalar("zero", 0), ints("one", &[1])];
    let run = |rows: usize| vec![numbers(&[rows, 5])];
    let bytes = model(open_graph(&[run(2), run(3)], nodes, initializers));
    let mut open = from_bytes(&bytes, &LoadOptions::default()).unwrap();
    for inputs in [run(2), run(3)] {
        let out = open.run(&mut Executor::with_threads(1), &[&inputs[0]]).unwrap().remove(0).to_f64s();
        for (x, out) in inputs[0].to_f64s().chunks(5).zip(out.chunks(5)) {
            // The last of three parts comes first, and is added.
            let expected = [4, 0, 1, 2, 3].map(|at| 3.0 * x[at] + x[4]);
            assert_eq!(out, expected);
        }
    }
}

#[test]
fn equal_sizes_are_computed_once() {
    let (mut nodes, mut initializers) = heads();
    // Two tensors are reshaped to one shape, and two are expanded to it.
    nodes.push(node("Exp", &["x0"], &["e"]));
    for (x, y) in [("x0", "a"), ("e", "b")] {
        nodes.push(node("Reshape", &[x, "shape"], &[y]).int("allowzero", 1));
    }
    for y in ["c", "d"] {
        nodes.push(node("Expand", &["one", "shape"], &[y]));
    }
    nodes.push(node("Sum", &["a", "b", "c", "d"], &["out"]));
    initializers.push(graphs::tensor("one", &Tensor::scalar(1.0_f32).unwrap()));
    let bytes = model(open_graph(&sequences(), nodes.clone(), initializers.clone()));
    let open = from_bytes(&bytes, &LoadOptions::default()).unwrap();
    let root = open.program.root();
    let of_integers = root.ops.iter().filter(|op| {
        let desc = op.writes().next().and_then(|var| root.vars.get(&var));
        desc.is_some_and(|desc| !desc.dtype.is_float())
    });
    let mut computations: Vec<String> = of_integers
        .map(|op| format!("{} {:?} {:?}", op.ty, op.reads().collect::<Vec<_>>(), op.attrs))
        .collect();
    let count = computations.len();
    computations.sort();
    computations.dedup();
    assert!(count > 0 && computations.len() == count, "{computations:?}");
    assert_loads_open(sequences(), nodes, initializers);
}
