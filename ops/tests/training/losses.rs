//! Losses refuse to broadcast: `[n, 1]` against `[n]` would be a loss over `[n, n]`.

use autobwd::{
    Builder, DType, Dims, Executor, Expr, Meta, OpDesc, OpInfoMap, Program, Result, Tensor, gradients,
    op::{Arity, AttrType, OpInfo},
};
use autobwd_ops::{
    Math,
    nn::{CrossEntropyLoss, Embedding, Linear},
};

use crate::support::{numbers, started};

/// Shapes of predictions and of targets that would broadcast.
const BROADCAST: [(&[i64], &[i64]); 8] = [
    (&[3, 1], &[3]),
    (&[3], &[3, 1]),
    (&[3, 1], &[1, 3]),
    (&[3, 4], &[4]),
    (&[3, 4], &[1]),
    (&[3, 4], &[]),
    (&[3, 4], &[1, 1]),
    (&[-1, 1], &[-1]),
];

/// The operators of losses: those that these files define.
fn loss_operators() -> Result<Vec<&'static OpInfo>> {
    let is_loss = |info: &&OpInfo| {
        let file = info.schema().file;
        (file.contains("src/loss/") || file.ends_with("binary_cross_entropy.rs")) && !info.is_gradient()
    };
    Ok(OpInfoMap::linked()?.iter().filter(is_loss).collect())
}

/// The shape of the first output for predictions and targets of these shapes.
fn infer(info: &OpInfo, predictions: &[i64], targets: &[i64], dtype: DType) -> Result<Dims> {
    let (schema, mut program) = (info.schema(), Program::new());
    let (mut op, mut metas) = (OpDesc::new(schema.name), vec![]);
    for slot in schema.inputs.iter().filter(|slot| slot.arity == Arity::One) {
        let var = program.var(slot.name);
        let is_target = matches!(slot.name, "Label" | "Labels" | "Target" | "Y" | "Right");
        let (dims, dtype) = if is_target { (targets, dtype) } else { (predictions, DType::F32) };
        op.inputs.set(slot.name, [var]);
        metas.push((var, Meta::new(dtype, Dims::from_wire(dims)?)));
    }
    for slot in schema.outputs {
        op.outputs.set(slot.name, [program.var(slot.name)]);
    }
    for attr in schema.attrs.iter().filter(|attr| attr.default.is_none()) {
        assert_eq!(attr.ty, AttrType::F32, "{}", schema.name);
        op.attrs.set(attr.name, autobwd::Attr::F32(1.0));
    }
    if schema.attr("soft_label").is_some() {
        op.attrs.set("soft_label", autobwd::Attr::Bool(dtype.is_float()));
    }
    let of = |var| Ok(metas.iter().find(|(known, _)| *known == var).unwrap().1.clone());
    let mut results = vec![];
    info.infer(&op, &of, &mut |_, meta| results.push(meta.dims))?;
    Ok(results.swap_remove(0))
}

#[test]
fn no_loss_operator_broadcasts() -> Result<()> {
    let losses = loss_operators()?;
    let names: Vec<&str> = losses.iter().map(|info| info.schema().name).collect();
    let expected = [
        "bce_loss",
        "bpr_loss",
        "cross_entropy",
        "ctc_loss",
        "hierarchical_sigmoid",
        "hinge_loss",
        "huber_loss",
        "identity_loss",
        "kldiv_loss",
        "label_smooth",
        "linear_cross_entropy",
        "log_loss",
        "margin_cross_entropy",
        "modified_huber_loss",
        "nll_loss",
        "rank_loss",
        "sigmoid_cross_entropy_with_logits",
        "softmax_with_cross_entropy",
        "warpctc",
    ];
    assert_eq!(names, expected);
    // Smoothing and reduction have one input, a linear layer and a tree have weights, labels of sequences have lengths of
    // their own.
    let other = [
        "label_smooth",
        "identity_loss",
        "linear_cross_entropy",
        "hierarchical_sigmoid",
        "ctc_loss",
        "warpctc",
    ];
    for info in losses.into_iter().filter(|info| !other.contains(&info.schema().name)) {
        let name = info.schema().name;
        for (predictions, targets) in BROADCAST {
            let e = infer(info, predictions, targets, DType::F32).unwrap_err();
            assert!(e.message().starts_with('`'), "{name}: {e}");
        }
        if !["nll_loss", "bpr_loss", "margin_cross_entropy"].contains(&name) {
            infer(info, &[3, 4], &[3, 4], DType::F32)?;
        }
    }
    // Class indices: one for each row, with or without the axis of the classes.
    for name in ["cross_entropy", "softmax_with_cross_entropy", "nll_loss"] {
        let info = OpInfoMap::linked()?.get(name)?;
        infer(info, &[3, 4], &[3], DType::I64)?;
        for targets in [&[4][..], &[1], &[], &[1, 3], &[1, 1], &[3, 4], &[3, 1, 1]] {
            infer(info, &[3, 4], targets, DType::I64).unwrap_err();
        }
    }
    Ok(())
}

#[test]
fn no_loss_method_broadcasts() {
    type Loss = fn(&Expr, &Expr) -> Expr;
    let losses: [(&str, Loss); 3] = [
        ("square_error", |x, y| x.square_error(y)),
        ("huber_loss", |x, y| x.huber_loss(y, 1.0)),
        ("sigmoid_cross_entropy", |x, y| x.sigmoid_cross_entropy(y)),
    ];
    for (name, loss) in losses {
        for (predictions, targets) in BROADCAST {
            let net = Builder::new();
            let (x, y) = (net.input("x", DType::F32, predictions), net.input("y", DType::F32, targets));
            let e = loss(&x, &y).check().unwrap_err().to_string();
            let start = format!(
                "`{name}` needs targets of the shape {predictions:?} of the predictions, not {targets:?}"
            );
            assert!(e.starts_with(&start) && e.contains("losses.rs"), "{e}");
        }
        // What the message says to write.
        let net = Builder::new();
        let (x, y) = (net.input("x", DType::F32, &[-1, 1]), net.input("y", DType::F32, &[-1]));
        let e = loss(&x, &y).check().unwrap_err().to_string();
        assert!(e.contains("; reshape them by `.reshape(&[-1, 1])`"), "{e}");
        let net = Builder::new();
        let (x, y) = (net.input("x", DType::F32, &[-1, 1]), net.input("y", DType::F32, &[-1]));
        assert_eq!(loss(&x, &y.reshape(&[-1, 1])).check().unwrap().dims().to_string(), "[-1, 1]");
        // The first error is the one that is told.
        let failed = x.matmul(&y.unsqueeze(&[0]).unsqueeze(&[0]).squeeze(&[5]));
        assert!(!loss(&failed, &y).check().unwrap_err().to_string().contains(name));
    }
}

#[test]
fn cross_entropies_take_labels_with_and_without_an_axis() -> Result<()> {
    let tape = autobwd::eager();
    let x = tape.constant(Tensor::from_vec([3, 2], vec![0.5_f64, 1.0, -1.0, 2.0, 0.0, 0.25])?);
    let labels = tape.constant(Tensor::from_vec([3], vec![0_i64, -100, 1])?);
    let weights = tape.constant(Tensor::from_vec([2], vec![1.0_f64, 3.0])?);
    let smooth = CrossEntropyLoss::new().label_smoothing(0.1);
    let weighted = CrossEntropyLoss::new().class_weights(&weights);
    type Loss<'a> = &'a dyn Fn(&Expr) -> Expr;
    let losses: [Loss<'_>; 4] = [
        &|labels| x.mean_cross_entropy(labels),
        &|labels| CrossEntropyLoss::new().forward(&x, labels),
        &|labels| smooth.forward(&x, labels),
        &|labels| weighted.forward(&x, labels),
    ];
    for loss in losses {
        assert_eq!(loss(&labels).item()?, loss(&labels.unsqueeze(&[-1])).item()?);
    }
    // `[classes, 1]` would weigh rows, and `[1]` all classes alike.
    for dims in [&[2, 1][..], &[1]] {
        let weights = tape.constant(Tensor::from_vec(dims, vec![1.0_f64; dims.iter().product()])?);
        let e = CrossEntropyLoss::new().class_weights(&weights).forward(&x, &labels).item().unwrap_err();
        assert!(e.to_string().starts_with("class weights of shape [classes] are needed"), "{e}");
    }
    Ok(())
}

/// The loss of a layer is the loss of its outputs, with all options, and so are its gradients.
#[test]
fn losses_of_linear_layers_are_losses_of_their_outputs() -> Result<()> {
    let labels: Vec<i64> = (0..300).map(|at| if at % 7 == 3 { -100 } else { at % 5 }).collect();
    let results = |options: fn(CrossEntropyLoss, &Expr) -> CrossEntropyLoss, is_tied: bool, as_one: bool| {
        let tape = autobwd::eager();
        let leaf = |name: &str, dims: &[usize]| {
            tape.leaf(name, Tensor::from_vec(dims, numbers(dims.iter().product(), 0.5)).unwrap())
        };
        let (x, bias) = (leaf("x", &[3, 100, 4]), leaf("bias", &[5]));
        let weight = if is_tied { leaf("weight", &[5, 4]) } else { leaf("weight", &[4, 5]) };
        let labels = tape.constant(Tensor::from_vec([3, 100], labels.clone())?);
        let class_weights = tape.constant(Tensor::from_vec([5], vec![1.0_f64, 2.0, 0.5, 3.0, 1.5])?);
        let loss = options(CrossEntropyLoss::new(), &class_weights);
        let mut table = Embedding::builder(&tape, 5, 4).dtype(DType::F64).build();
        table.weight = weight.clone();
        let linear = Linear { weight: weight.clone(), bias: Some(bias.clone()), is_transposed: false };
        let loss = match (is_tied, as_one) {
            (true, true) => loss.of_tied(&x, &table, &labels),
            (true, false) => loss.forward(&x.matmul(&weight.transpose(&[1, 0])), &labels),
            (false, true) => loss.of_linear(&x, &linear, &labels),
            (false, false) => loss.forward(&(x.matmul(&weight) + &bias), &labels),
        };
        loss.backward()?;
        let mut found = loss.tensor()?.to_f64s();
        for leaf in [&x, &weight].into_iter().chain((!is_tied).then_some(&bias)) {
            found.extend(leaf.gradient()?.tensor()?.to_f64s());
        }
        Result::Ok(found)
    };
    let all: [fn(CrossEntropyLoss, &Expr) -> CrossEntropyLoss; 3] = [
        |loss, _| loss,
        |loss, weights| loss.class_weights(weights),
        |loss, weights| loss.class_weights(weights).label_smoothing(0.25).z_loss(0.125),
    ];
    for options in all {
        for is_tied in [false, true] {
            let (expected, found) = (results(options, is_tied, false)?, results(options, is_tied, true)?);
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() < 1e-9, "{found}, not {expected}");
            }
        }
    }
    Ok(())
}

/// 200,000 classes for 2,000 rows would be 1.6 GB of logits.
#[test]
fn losses_of_linear_layers_take_no_memory_for_logits() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[2000, 8]);
    let labels = net.input("labels", DType::I64, &[2000]);
    let head = Linear::builder(&net, 8, 200_000).bias(None).seed(1).build();
    let loss = CrossEntropyLoss::new().of_linear(&x, &head, &labels).name();
    let mut program = net.program()?.clone();
    let found = gradients(&mut program, &[&loss], &["x", &head.weight.name()], &Default::default())?;
    let mut fetches = vec![loss.as_str()];
    fetches.extend(found.pairs.iter().map(|(_, gradient)| program.name(*gradient)));
    let feeds = [("x", Meta::new(DType::F32, [2000, 8])), ("labels", Meta::new(DType::I64, [2000]))];
    let session = Executor::with_threads(1).prepare(&program, &mut started(&net)?, &feeds, &fetches)?;
    // The gradients of weight and input, and a tile of logits.
    let expected = 4 * (8 * 200_000 + 8 * 2000 + 256 * 2048);
    assert!(session.peak_bytes() < expected * 11 / 10, "{}, not {expected}", session.peak_bytes());
    Ok(())
}
