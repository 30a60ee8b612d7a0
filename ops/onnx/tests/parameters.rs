//! Parameters of a model are its initializers of floating point numbers: all of them, tied as in the file, and no others.

mod graphs;

use autobwd::{Builder, DType, Executor, Feed, Result, Scope, Tensor, append_backward, tensor::Bool};
use autobwd_onnx::{LoadOptions, from_bytes, to_bytes};
use autobwd_ops::{
    Init, Math, Model,
    nn::{BatchNorm, Linear},
    optim::{Adam, Optimizer, Schedule, ScheduledOptimizer},
};
use graphs::{
    constant, floats, graph, ints, model, node,
    proto::{NodeProto, TensorProto},
    tensor, typed_value, value,
};

/// A model of one input `x` [2, 3], whose output `loss` is the mean of `y`.
fn loaded(nodes: Vec<NodeProto>, initializers: Vec<TensorProto>) -> Result<Model> {
    from_bytes(&bytes(nodes, initializers), &LoadOptions::default())
}

fn bytes(mut nodes: Vec<NodeProto>, initializers: Vec<TensorProto>) -> Vec<u8> {
    nodes.push(node("ReduceMean", &["y"], &["loss"]).int("keepdims", 0));
    model(graph(&[value("x", &[2, 3])], &["loss"], nodes, initializers))
}

fn x() -> Tensor {
    Tensor::from_vec([2, 3], vec![1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap()
}

fn parameters(model: &Model) -> Vec<&str> {
    model.program.parameters().map(|var| model.program.name(var)).collect()
}

/// The gradients of the loss with respect to all parameters, in their order.
fn gradients(model: &mut Model) -> Result<Vec<(String, Vec<f64>)>> {
    let mut program = model.program.clone();
    let found = append_backward(&mut program, "loss", &Default::default())?;
    assert!(found.missing.is_empty() && found.partial.is_empty(), "{:?}", found.missing);
    let names: Vec<String> = found.pairs.iter().map(|(_, g)| program.name(*g).to_string()).collect();
    let fetches: Vec<&str> = names.iter().map(String::as_str).collect();
    let x = x();
    let feeds: [(&str, &dyn Feed); 1] = [("x", &x)];
    let found_values = Executor::new().run(&program, &mut model.scope, &feeds, &fetches)?;
    let parameters = found.pairs.iter().map(|(var, _)| program.name(*var).to_string());
    Ok(parameters.zip(found_values.iter().map(Tensor::to_f64s)).collect())
}

/// The parameters with gradients that differ from 0.
fn assert_trained(model: &mut Model, expected: &[&str]) -> Result<()> {
    assert_eq!(parameters(model), expected);
    for (name, gradient) in gradients(model)? {
        assert!(gradient.iter().any(|x| *x != 0.0), "`{name}`: {gradient:?}");
    }
    Ok(())
}

#[test]
fn rows_that_are_expanded_are_trained() -> Result<()> {
    let nodes = vec![node("Expand", &["row", "shape"], &["rows"]), node("Mul", &["x", "rows"], &["y"])];
    let mut model = loaded(nodes, vec![floats("row", &[3], &[1.0; 3]), ints("shape", &[2, 3])])?;
    assert_trained(&mut model, &["row"])?;
    let expected: Vec<f64> = [5.0, 7.0, 9.0].map(|sum| sum / 6.0).to_vec();
    let found = &gradients(&mut model)?[0].1;
    assert!(found.iter().zip(&expected).all(|(x, y)| (x - y).abs() < 1e-6), "{found:?}");
    Ok(())
}

#[test]
fn rows_that_are_gathered_are_trained() -> Result<()> {
    let nodes = vec![node("Gather", &["table", "rows"], &["e"]), node("Mul", &["x", "e"], &["y"])];
    let mut model = loaded(nodes, vec![floats("table", &[4, 3], &[1.0; 12]), ints("rows", &[1, 1])])?;
    assert_trained(&mut model, &["table"])
}

#[test]
fn scalars_are_trained() -> Result<()> {
    for dims in [&[][..], &[1]] {
        let nodes = vec![
            node("Exp", &["logit_scale"], &["e"]),
            node("Mul", &["x", "e"], &["scaled"]),
            node("Mul", &["scaled", "alpha"], &["y"]),
        ];
        let scalars = vec![floats("logit_scale", dims, &[0.5]), floats("alpha", dims, &[0.25])];
        assert_trained(&mut loaded(nodes, scalars)?, &["logit_scale", "alpha"])?;
    }
    Ok(())
}

#[test]
fn products_of_parameters_are_trained_by_factors() -> Result<()> {
    let nodes = vec![
        node("MatMul", &["a", "b"], &["ab"]),
        node("Add", &["w", "ab"], &["e"]),
        node("MatMul", &["x", "e"], &["y"]),
    ];
    let initializers = vec![
        floats("w", &[3, 3], &[1.0; 9]),
        floats("a", &[3, 1], &[1.0; 3]),
        floats("b", &[1, 3], &[1.0; 3]),
    ];
    let mut model = loaded(nodes, initializers)?;
    let mut names = parameters(&model);
    names.sort_unstable();
    assert_eq!(names, ["a", "b", "w"]);
    assert_eq!(gradients(&mut model)?.len(), 3);
    Ok(())
}

#[test]
fn weights_that_are_moved_keep_name_and_shape() -> Result<()> {
    let nodes = vec![
        node("Transpose", &["w"], &["moved"]).ints("perm", &[1, 0]),
        node("MatMul", &["x", "moved"], &["y"]),
    ];
    let w = floats("w", &[30, 3], &[1.0; 90]);
    let mut model = loaded(nodes.clone(), vec![w.clone()])?;
    assert_trained(&mut model, &["w"])?;
    assert_eq!(model.scope.get("w")?.dims(), [30, 3]);
    let options = LoadOptions { inference: true, ..LoadOptions::default() };
    let mut inference = from_bytes(&bytes(nodes.clone(), vec![w.clone()]), &options)?;
    let as_written = LoadOptions { as_written: true, ..LoadOptions::default() };
    let written = from_bytes(&bytes(nodes, vec![w]), &as_written)?;
    assert!(inference.program.root().ops.len() < written.program.root().ops.len());
    assert_eq!(parameters(&inference), [""; 0]);
    let mut executor = Executor::new();
    assert_eq!(inference.run(&mut executor, &[&x()])?, model.run(&mut executor, &[&x()])?);
    Ok(())
}

#[test]
fn constants_are_no_parameters() -> Result<()> {
    // A mask in a node, a state of zeros, and ones of the shape of a parameter.
    let nodes = vec![
        constant("mask", &[2, 3], &[1.0, 0.0, 1.0, 1.0, 1.0, 0.0]),
        node("ConstantOfShape", &["shape"], &["zeros"]),
        node("Shape", &["w"], &["extent"]),
        node("ConstantOfShape", &["extent"], &["ones"]).tensor("value", floats("", &[1], &[1.0])),
        node("Mul", &["x", "mask"], &["masked"]),
        node("Add", &["masked", "zeros"], &["a"]),
        node("Mul", &["w", "ones"], &["b"]),
        node("Mul", &["a", "b"], &["y"]),
    ];
    let initializers = vec![ints("shape", &[2, 3]), floats("w", &[3], &[1.0; 3])];
    assert_trained(&mut loaded(nodes, initializers)?, &["w"])
}

#[test]
fn large_constants_are_kept_without_training() -> Result<()> {
    let large = vec![0.5; 3 * 2000];
    let nodes = vec![
        constant("c", &[3, 2000], &large),
        node("Mul", &["w", "x"], &["a"]),
        node("MatMul", &["a", "c"], &["y"]),
    ];
    let mut model = loaded(nodes, vec![floats("w", &[3], &[1.0; 3])])?;
    assert_trained(&mut model, &["w"])?;
    // Written and read again, it is no parameter either.
    let mut again = from_bytes(&to_bytes(&model)?, &LoadOptions::default())?;
    assert_trained(&mut again, &["w"])
}

#[test]
fn written_constants_are_no_parameters() -> Result<()> {
    let nodes = vec![
        constant("half", &[], &[0.5]),
        node("Mul", &["x", "half"], &["a"]),
        node("LayerNormalization", &["a", "scale", "bias"], &["normal"]),
        node("Erf", &["normal"], &["b"]),
        node("Mul", &["b", "w"], &["y"]),
    ];
    let initializers = vec![
        floats("scale", &[3], &[1.0, 2.0, 3.0]),
        floats("bias", &[3], &[0.5; 3]),
        floats("w", &[3], &[1.0; 3]),
    ];
    let mut model = loaded(nodes, initializers)?;
    let mut again = from_bytes(&to_bytes(&model)?, &LoadOptions::default())?;
    assert_trained(&mut model, &["scale", "bias", "w"])?;
    assert_trained(&mut again, &["scale", "bias", "w"])
}

#[test]
fn tied_parameters_stay_tied() -> Result<()> {
    // Read directly, through `Identity`, moved, and twice in a loop.
    let body = graph(
        &[typed_value("i", 7, &[]), typed_value("on", 9, &[]), value("before", &[2, 3])],
        &["on_after", "after"],
        vec![
            node("Identity", &["on"], &["on_after"]),
            node("Mul", &["before", "inner"], &["scaled"]),
            node("Mul", &["scaled", "w"], &["after"]),
        ],
        vec![floats("inner", &[3], &[1.0; 3])],
    );
    let nodes = vec![
        node("Identity", &["w"], &["same"]),
        node("Reshape", &["w", "shape"], &["column"]),
        node("Mul", &["x", "same"], &["a"]),
        node("MatMul", &["a", "column"], &["b"]),
        node("Mul", &["b", "w"], &["c"]),
        node("Loop", &["steps", "", "c"], &["y"]).graph("body", body),
    ];
    let steps = tensor("steps", &Tensor::scalar(2_i64)?);
    let initializers = vec![floats("w", &[3], &[1.0; 3]), ints("shape", &[3, 1]), steps];
    let mut model = loaded(nodes, initializers)?;
    assert_trained(&mut model, &["w", "inner"])?;
    // `y = x·w · w³` for `w` of ones: the derivative of its mean by `w`, and by `inner`, which is squared.
    let found = gradients(&mut model)?;
    let rows = [6.0, 15.0];
    for i in 0..3 {
        let column = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]].map(|row: [f64; 3]| row[i]);
        let w: f64 = (2.0 * 3.0 * column.iter().sum::<f64>() + 3.0 * rows.iter().sum::<f64>()) / 6.0;
        let inner = 2.0 * rows.iter().sum::<f64>() / 6.0;
        assert!((found[0].1[i] - w).abs() < 1e-5, "{found:?}, {w}");
        assert!((found[1].1[i] - inner).abs() < 1e-5, "{found:?}, {inner}");
    }
    Ok(())
}

#[test]
fn initializers_that_nothing_reads_are_kept() -> Result<()> {
    let nodes = vec![node("Mul", &["x", "w"], &["y"])];
    let model = loaded(nodes, vec![floats("w", &[3], &[1.0; 3]), floats("unread", &[2], &[3.0, 4.0])])?;
    assert_eq!(parameters(&model), ["w", "unread"]);
    assert_eq!(model.scope.get("unread")?.to_f64s(), [3.0, 4.0]);
    Ok(())
}

#[test]
fn statistics_are_no_parameters() -> Result<()> {
    // Also where the scale is computed, so that the operator of the library does not fit.
    for scale in ["g", "scale"] {
        let nodes = vec![
            node("Exp", &["g"], &["scale"]),
            node("BatchNormalization", &["x", scale, "b", "mean", "variance"], &["y"]),
        ];
        let initializers = ["g", "b", "mean", "variance"].map(|name| floats(name, &[3], &[1.0; 3]));
        let model = loaded(nodes, initializers.to_vec())?;
        assert_eq!(parameters(&model), ["g", "b"]);
        assert_eq!(model.scope.get("mean")?.to_f64s(), [1.0; 3]);
    }
    Ok(())
}

#[test]
fn statistics_are_kept_apart_from_parameters_of_the_same_initializer() -> Result<()> {
    // Files may have one initializer for equal values.
    let norm = |x, y| node("BatchNormalization", &[x, "ones", "zeros", "zeros", "ones"], &[y]);
    let nodes = vec![norm("x", "a"), norm("a", "y")];
    let initializers = vec![floats("ones", &[3], &[1.0; 3]), floats("zeros", &[3], &[0.0; 3])];
    let mut model = loaded(nodes, initializers)?;
    assert_eq!(model.train(&[])?, ["ones", "zeros"]);
    model.run(&mut Executor::new(), &[&x()])?;
    for (name, value) in [("ones", 1.0), ("zeros", 0.0)] {
        assert_eq!(model.scope.get(name)?.to_f64s(), [value; 3]);
    }
    let changed = model.scope.iter().filter(|(_, value)| {
        let elements = value.to_f64s();
        elements != [1.0; 3] && elements != [0.0; 3]
    });
    assert_eq!(changed.count(), 2);
    Ok(())
}

#[test]
fn training_steps_have_the_same_parameters_when_they_are_read_again() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[2, 3]);
    let hidden =
        BatchNorm::builder(&net, 4).build().forward(&Linear::builder(&net, 3, 4).build().forward(&x));
    let w = net.parameter("w", DType::F32, &[4], |w| Init::Constant(1.0).emit(w, 0));
    let loss = (hidden.tanh() * &w).mean();
    let schedule = Schedule::linear(0.5, 0.0, 4);
    ScheduledOptimizer { optimizer: Adam::new(0.5), schedule }.minimize(&loss)?.complete()?;
    let mut scope = Scope::new();
    Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
    let program = net.program()?.clone();
    let model = Model { program, feeds: vec!["x".into()], fetches: vec![loss.name()], scope };
    let again = from_bytes(&to_bytes(&model)?, &LoadOptions::default())?;
    let [mut written, mut read] = [&model, &again].map(parameters);
    written.sort_unstable();
    read.sort_unstable();
    assert_eq!(read, written);
    assert_eq!(written.len(), 5);
    Ok(())
}

#[test]
fn parameters_that_decide_about_shapes_are_frozen() -> Result<()> {
    // The sizes are computed from `scale`, which is also a factor.
    let nodes = vec![
        constant("two", &[1], &[1.0]),
        node("Mul", &["scale", "two"], &["sizes_float"]),
        node("Cast", &["sizes_float"], &["sizes"]).int("to", 7),
        node("Expand", &["row", "sizes"], &["rows"]),
        node("Slice", &["scale", "start", "end"], &["factor"]),
        node("Mul", &["rows", "factor"], &["scaled"]),
        node("Mul", &["x", "scaled"], &["y"]),
    ];
    let initializers = vec![
        floats("scale", &[2], &[2.0, 3.0]),
        floats("row", &[3], &[1.0; 3]),
        ints("start", &[0]),
        ints("end", &[1]),
    ];
    let mut model = loaded(nodes, initializers)?;
    assert_eq!(model.train(&[])?, ["row"]);
    Ok(())
}

#[test]
fn parameters_that_decide_about_shapes_are_found_by_value() -> Result<()> {
    // Both branches have an initializer `c`: a factor in one, sizes in the other.
    let branch = |nodes: Vec<NodeProto>, c: TensorProto| graph(&[], &["out"], nodes, vec![c]);
    let factor = branch(vec![node("Mul", &["x", "c"], &["out"])], floats("c", &[3], &[1.0; 3]));
    let sizes = branch(
        vec![
            node("Cast", &["c"], &["sizes"]).int("to", 7),
            node("Expand", &["row", "sizes"], &["rows"]),
            node("Mul", &["x", "rows"], &["out"]),
        ],
        floats("c", &[2], &[2.0, 3.0]),
    );
    let nodes = vec![
        constant("zero", &[], &[0.0]),
        node("ReduceSum", &["x"], &["sum"]).int("keepdims", 0),
        node("Greater", &["sum", "zero"], &["is_positive"]),
        node("If", &["is_positive"], &["y"]).graph("then_branch", factor).graph("else_branch", sizes),
    ];
    let mut model = loaded(nodes, vec![floats("row", &[3], &[1.0; 3])])?;
    let mut trained = model.train(&[])?;
    trained.sort();
    assert_eq!(trained, ["c", "row"]);
    Ok(())
}

#[test]
fn factors_of_open_dimensions_are_constants() -> Result<()> {
    // Rows are halved, and columns doubled, by a factor that is also one of the elements.
    for dims in [&[][..], &[1]] {
        let nodes = vec![
            node("Shape", &["x"], &["shape"]),
            node("Gather", &["shape", "first"], &["rows"]),
            node("Cast", &["rows"], &["rows_float"]).int("to", 1),
            node("Mul", &["rows_float", "half"], &["half_float"]),
            node("Cast", &["half_float"], &["half_rows"]).int("to", 7),
            node("Concat", &["half_rows", "rest"], &["new_shape"]).int("axis", 0),
            node("Reshape", &["x", "new_shape"], &["wide"]),
            node("Mul", &["wide", "half"], &["scaled"]),
            node("Concat", &["half_rows", "columns"], &["sizes"]).int("axis", 0),
            node("Expand", &["w", "sizes"], &["factors"]),
            node("Mul", &["scaled", "factors"], &["y"]),
        ];
        let initializers = vec![
            ints("first", &[0]),
            ints("rest", &[-1]),
            ints("columns", &[4]),
            floats("half", dims, &[0.5]),
            floats("w", &[4], &[1.0, 2.0, 3.0, 4.0]),
        ];
        let file = model(graph(&[value("x", &[-1, 2])], &["y"], nodes, initializers));
        let mut model = from_bytes(&file, &LoadOptions::default())?;
        assert_eq!(parameters(&model), ["w"]);
        assert!(model.scope.find("half").is_none());
        let mut executor = Executor::new();
        for rows in [2, 6] {
            let x = Tensor::from_vec([rows, 2], vec![2.0_f32; 2 * rows])?;
            let y = &model.run(&mut executor, &[&x])?[0];
            assert_eq!(y.dims(), [rows / 2, 4]);
            assert_eq!(y.to_f64s(), [1.0, 2.0, 3.0, 4.0].repeat(rows / 2));
        }
    }
    Ok(())
}

#[test]
fn bounds_of_loops_are_parameters_of_their_body() -> Result<()> {
    // Doubles a state until it is not below the bound.
    let body = graph(
        &[typed_value("i", 7, &[]), typed_value("on", 9, &[]), value("before", &[])],
        &["is_below", "after"],
        vec![
            node("Less", &["before", "bound"], &["is_below"]),
            node("Add", &["before", "before"], &["after"]),
        ],
        vec![floats("bound", &[], &[5.0])],
    );
    let nodes = vec![
        constant("one", &[], &[1.0]),
        node("Loop", &["", "begins", "one"], &["last"]).graph("body", body),
        node("Mul", &["x", "last"], &["y"]),
    ];
    let begins = tensor("begins", &Tensor::scalar(Bool::from(true))?);
    for inference in [false, true] {
        let options = LoadOptions { inference, ..LoadOptions::default() };
        let mut model = from_bytes(&bytes(nodes.clone(), vec![begins.clone()]), &options)?;
        assert_eq!(parameters(&model), if inference { vec![] } else { vec!["bound"] });
        assert_eq!(model.program.blocks().len() > 1, !inference);
        assert_eq!(model.run(&mut Executor::new(), &[&x()])?[0].item()?, 16.0 * 3.5);
    }
    Ok(())
}

#[test]
fn numbers_that_rules_read_are_no_parameters() -> Result<()> {
    let nodes = vec![
        node("Unsqueeze", &["x", "axes"], &["image"]),
        node("Resize", &["image", "", "scales"], &["larger"]).int("exclude_outside", 0),
        node("Mul", &["larger", "w"], &["y"]),
    ];
    let initializers = vec![
        ints("axes", &[0, 1]),
        floats("scales", &[4], &[1.0, 1.0, 2.0, 2.0]),
        floats("w", &[6], &[1.0; 6]),
    ];
    assert_trained(&mut loaded(nodes, initializers)?, &["w"])
}

#[test]
fn training_with_masks_and_states_stays_finite() -> Result<()> {
    // The mask holds −∞, as a mask of attention does: trained, it would be NaN after one step.
    let infinite = f32::NEG_INFINITY;
    let nodes = vec![
        constant("mask", &[2, 3], &[0.0, infinite, 0.0, 0.0, 0.0, infinite]),
        node("Mul", &["x", "w"], &["scores"]),
        node("Add", &["scores", "mask"], &["masked"]),
        node("Softmax", &["masked"], &["weights"]).int("axis", -1),
        node("Mul", &["weights", "x"], &["y"]),
    ];
    let mut model = loaded(nodes, vec![floats("w", &[3], &[0.5; 3])])?;
    model.train(&[])?;
    let net = model.builder();
    let loss = net.expr("loss").square();
    let trained = Adam::new(0.1).minimize(&loss)?.complete()?;
    assert_eq!(trained.len(), 1);
    let (mut executor, x) = (Executor::new(), x());
    executor.run(&net.startup().program()?, &mut model.scope, &[], &[])?;
    let feeds: [(&str, &dyn Feed); 1] = [("x", &x)];
    let mut step = || executor.run(&*net.program()?, &mut model.scope, &feeds, &[&loss.name()])?[0].item();
    let losses: Vec<f64> = (0..20).map(|_| step()).collect::<Result<_>>()?;
    assert!(losses[19].is_finite() && losses[19] < losses[0], "{losses:?}");
    Ok(())
}
