//! Programs as the reference writes them: dtypes of results, shapes and attributes that are rarely written by hand.

use autobwd::{
    Arg, Builder, DType, ErrorKind, Executor, Expr, Feed, New, Program, Result, Scope, Tensor, emit,
    gradients, tape, verify,
};
use autobwd_ops::{
    Math,
    loss::SoftmaxWithCrossEntropy,
    reduce::{ReduceAttrs, ReduceMax, ReduceMean, ReduceMin, ReduceProd, ReduceSum},
    shape::Split,
    sort::Argsort,
    top_k::{Accuracy, TopKV2},
};

use crate::support::programs::differentiable;

/// A reduction over the last axis whose result has that dtype.
macro_rules! reductions {
    ($($op:ident),*) => {
        [$(|x: &Expr, out_dtype: Option<DType>| {
            let reduce = ReduceAttrs::over([-1]).in_dtype(Some(x.dtype())).out_dtype(out_dtype);
            emit($op { x: x.into(), out: New, reduce }).out
        }),*]
    };
}
type Reduction = fn(&Expr, Option<DType>) -> Expr;

/// The gradient of the weighted sum of `f(x)`, from a program and from eager mode.
fn gradient(x: &Tensor, weights: &[f64], f: &dyn Fn(&Expr) -> Expr) -> Result<Tensor> {
    let net = Builder::new();
    let dims: Vec<i64> = x.dims().iter().map(|n| *n as i64).collect();
    let input = net.input("x", x.dtype(), &dims);
    differentiable(&net, &input);
    let y = f(&input);
    let weights = Tensor::from_vec([weights.len()], weights.to_vec())?;
    let loss = (y.cast(DType::F64) * net.input("weights", DType::F64, &[weights.numel() as i64])).sum(&[]);
    let mut program = net.program()?.clone();
    let built = gradients(&mut program, &[&loss.name()], &["x"], &Default::default())?;
    let dx = built.of(program.expect_var("x")?).map(|dx| program.name(dx).to_string()).unwrap();
    verify(&program)?;
    let feeds: [(&str, &dyn Feed); 2] = [("x", x), ("weights", &weights)];
    let run = Executor::with_threads(1).run(&program, &mut Scope::new(), &feeds, &[&dx])?;

    let tape = autobwd::eager();
    let leaf = tape.leaf("x", x.clone());
    (f(&leaf).cast(DType::F64) * tape.constant(weights)).sum(&[]).backward()?;
    assert_eq!(leaf.gradient()?.tensor()?, run[0]);
    Ok(run[0].clone())
}

#[test]
fn reductions_to_another_dtype_have_gradients() -> Result<()> {
    let all: [Reduction; 5] = reductions!(ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceProd);
    let x = [0.5, -1.25, 2.0, 3.5, 0.25, -0.75];
    let (single, double) =
        (Tensor::from_vec([2, 3], x.map(|x| x as f32).to_vec())?, Tensor::from_vec([2, 3], x.to_vec())?);
    for f in all {
        let plain = gradient(&double, &[2.0, -0.5], &|x| f(x, None))?;
        let up = gradient(&single, &[2.0, -0.5], &|x| f(x, Some(DType::F64)))?;
        let down = gradient(&double, &[2.0, -0.5], &|x| f(x, Some(DType::F32)))?;
        assert_eq!((up.dtype(), down.dtype()), (DType::F32, DType::F64));
        for other in [up, down] {
            let apart =
                other.to_f64s().iter().zip(plain.to_f64s()).fold(0.0_f64, |m, (a, b)| m.max((a - b).abs()));
            assert!(apart < 1e-6, "{other:?} {plain:?}");
        }
    }
    Ok(())
}

#[test]
fn second_gradients_of_reductions_to_another_dtype() -> Result<()> {
    let all: [Reduction; 5] = reductions!(ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceProd);
    let x = Tensor::from_vec([2, 3], vec![0.5_f32, -1.25, 2.0, 3.5, 0.25, -0.75])?;
    for f in all {
        let of = |out_dtype: Option<DType>| -> Result<Tensor> {
            let tape = autobwd::eager();
            let leaf = tape.leaf("x", x.clone());
            let y = f(&(&leaf * &leaf), out_dtype).square().cast(DType::F32).sum(&[]);
            let create_graph = tape::GradOptions { create_graph: true, ..tape::GradOptions::default() };
            let first = tape::grad(&[&y], &[&leaf], &create_graph)?.remove(0).unwrap();
            let second =
                tape::grad(&[&first.square().sum(&[])], &[&leaf], &tape::GradOptions::default())?.remove(0);
            second.unwrap().tensor()
        };
        let (plain, up) = (of(None)?.to_f64s(), of(Some(DType::F64))?.to_f64s());
        let scale = plain.iter().fold(1.0_f64, |m, x| m.max(x.abs()));
        assert!(plain.iter().zip(&up).all(|(a, b)| (a - b).abs() <= 1e-5 * scale), "{plain:?} {up:?}");
    }
    Ok(())
}

#[test]
fn reductions_between_integers_and_floats_end_the_path() -> Result<()> {
    let [sum]: [Reduction; 1] = reductions!(ReduceSum);
    let net = Builder::new();
    let (x, n) = (net.input("x", DType::F64, &[2, 3]), net.input("n", DType::I32, &[2, 3]));
    differentiable(&net, &x);
    differentiable(&net, &n);
    let counted = sum(&n, Some(DType::F64));
    let cut = sum(&x, Some(DType::I64)).cast(DType::F64);
    let loss = (&counted * &cut + sum(&x, None)).sum(&[]);
    let mut program = net.program()?.clone();
    let built = gradients(&mut program, &[&loss.name()], &["x", "n"], &Default::default())?;
    verify(&program)?;
    assert!(built.of(n.var()).is_none());
    let dx = built.of(x.var()).map(|dx| program.name(dx).to_string()).unwrap();
    let x = Tensor::from_vec([2, 3], vec![0.5, 1.5, 2.5, -0.5, -1.5, -2.5])?;
    let n = Tensor::from_vec([2, 3], vec![i32::MAX, 1, 2, 3, 4, 5])?;
    let names = [counted.name(), cut.name(), dx];
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let run = Executor::with_threads(1).run(&program, &mut Scope::new(), &[("x", &x), ("n", &n)], &names)?;
    assert_eq!(run[0].to_f64s(), [2147483650.0, 12.0]);
    assert_eq!(run[1].to_f64s(), [3.0, -3.0], "converted before they are summed");
    assert_eq!(run[2].to_f64s(), [1.0; 6]);
    Ok(())
}

#[test]
fn reductions_of_integers_are_exact() -> Result<()> {
    let x: Vec<i64> =
        (0..7 * 11 * 13).map(|i| (i as i64).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64)).collect();
    let tape = autobwd::eager();
    let all = tape.constant(Tensor::from_vec([7, 11, 13], x.clone())?);
    let over = |axes: &[usize], f: fn(i64, i64) -> i64| -> Vec<i64> {
        let kept =
            |at: [usize; 3]| (0..3).filter(|a| !axes.contains(a)).fold(0, |i, a| i * [7, 11, 13][a] + at[a]);
        let n = (0..3).filter(|a| !axes.contains(a)).map(|a| [7, 11, 13][a]).product();
        let mut results = vec![None; n];
        for (i, x) in x.iter().enumerate() {
            let result: &mut Option<i64> = &mut results[kept([i / 143, i / 13 % 11, i % 13])];
            *result = Some(result.map_or(*x, |known| f(known, *x)));
        }
        results.into_iter().flatten().collect()
    };
    let run = |f: &dyn Fn(&Expr, &[i32]) -> Expr, axes: &[usize]| -> Result<Vec<i64>> {
        let axes: Vec<i32> = axes.iter().map(|a| *a as i32).collect();
        Ok(f(&all, &axes).tensor()?.slice::<i64>()?.to_vec())
    };
    for axes in [&[0][..], &[1], &[2], &[0, 2], &[1, 2], &[0, 1, 2]] {
        assert_eq!(run(&|x, axes| x.sum(axes), axes)?, over(axes, i64::wrapping_add));
        assert_eq!(run(&|x, axes| x.prod(axes), axes)?, over(axes, i64::wrapping_mul));
        assert_eq!(run(&|x, axes| x.max_over(axes), axes)?, over(axes, i64::max));
        assert_eq!(run(&|x, axes| x.min_over(axes), axes)?, over(axes, i64::min));
    }
    Ok(())
}

#[test]
fn running_sums_and_orders_of_integers_are_exact() -> Result<()> {
    let x = vec![i32::MAX, 1, -7, i32::MIN, 5, 5];
    let tape = autobwd::eager();
    let x = tape.constant(Tensor::from_vec([6], x)?);
    let sums = x.cumsum(0).tensor()?;
    assert_eq!(sums.slice::<i32>()?, [i32::MAX, i32::MIN, i32::MAX - 6, -7, -2, 3]);
    assert_eq!(x.argmax(0).tensor()?.slice::<i64>()?, [0]);
    let sorted = emit(Argsort { x: (&x).into(), out: New, indices: New, axis: 0, descending: true });
    assert_eq!(sorted.out.tensor()?.slice::<i32>()?, [i32::MAX, 5, 5, 1, -7, i32::MIN]);
    assert_eq!(sorted.indices.tensor()?.slice::<i64>()?, [0, 4, 5, 1, 2, 3]);
    let (values, places) = x.top_k(3);
    assert_eq!(values.tensor()?.slice::<i32>()?, [i32::MAX, 5, 5]);
    assert_eq!(places.tensor()?.slice::<i64>()?, [0, 4, 5]);
    Ok(())
}

#[test]
fn scalars_are_sorted_and_have_a_gradient() -> Result<()> {
    let tape = autobwd::eager();
    let x = tape.leaf("x", Tensor::scalar(2.5_f64)?);
    let sorted = emit(Argsort { x: (&x).into(), out: New, indices: New, axis: -1, descending: false });
    assert_eq!((sorted.out.item()?, sorted.indices.item()?), (2.5, 0.0));
    (&sorted.out * 3.0).backward()?;
    assert_eq!(x.gradient()?.item()?, 3.0);

    let top = TopKV2 {
        x: (&x).into(),
        k_tensor: None,
        out: New,
        indices: New,
        k: 1,
        axis: -1,
        largest: true,
        sorted: true,
    };
    (emit(top).out * 4.0).backward()?;
    assert_eq!(x.gradient()?.item()?, 7.0);
    Ok(())
}

#[test]
fn equal_pieces_count_where_both_are_given() -> Result<()> {
    let tape = autobwd::eager();
    let x = tape.constant(Tensor::from_vec([4], vec![1.0_f32, 2.0, 3.0, 4.0])?);
    let split = |num: i32, sections: Vec<i32>| {
        let out = (0..2).map(|_| New).collect();
        emit(Split {
            x: (&x).into(),
            out,
            axis: 0,
            num,
            sections,
            axis_tensor: None,
            sections_tensor_list: vec![],
        })
        .out
    };
    let both = split(2, vec![1, 3]);
    assert_eq!(both[1].tensor()?.slice::<f32>()?, [3.0, 4.0]);
    assert!(split(0, vec![]).iter().all(|out| out.check().unwrap_err().kind() == ErrorKind::Attr));
    Ok(())
}

#[test]
fn probabilities_have_a_cross_entropy_without_softmax() -> Result<()> {
    let tape = autobwd::eager();
    let p = tape.leaf("p", Tensor::from_vec([2, 3], vec![0.2, 0.3, 0.5, 0.0, 0.25, 0.75])?);
    let label = tape.constant(Tensor::from_vec([2, 1], vec![2_i64, 1])?);
    let op = emit(SoftmaxWithCrossEntropy {
        logits: (&p).into(),
        label: label.into(),
        softmax: New,
        loss: New,
        soft_label: false,
        ignore_index: -100,
        numeric_stable_mode: true,
        use_softmax: false,
        axis: -1,
    });
    assert_eq!(op.loss.tensor()?.to_f64s(), [-(0.5_f64.ln()), -(0.25_f64.ln())]);
    assert_eq!(op.softmax.tensor()?, p.tensor()?);
    (op.loss.sum(&[]) + op.softmax.sum(&[]) * 0.5).backward()?;
    assert_eq!(p.gradient()?.tensor()?.to_f64s(), [0.5, 0.5, -1.5, 0.5, -3.5, 0.5]);
    Ok(())
}

/// A program whose last operator is an `accuracy` with results declared with that shape.
fn accuracy(shape: &str) -> Result<(Program, String)> {
    let net = Builder::new();
    let (scores, label) =
        (net.input("scores", DType::F32, &[-1, 3]), net.input("label", DType::I64, &[-1, 1]));
    let (values, places) = scores.top_k(1);
    let op = Accuracy {
        out: Arg::from(values),
        indices: places.into(),
        label: label.into(),
        accuracy: New,
        correct: New,
        total: New,
    };
    let name = emit(op).accuracy.name();
    let json = net.program()?.to_json();
    assert!(json.contains(r#""shape":[]"#), "a scalar is written");
    Ok((Program::from_json(&json.replace(r#""shape":[]"#, &format!(r#""shape":{shape}"#)))?, name))
}

#[test]
fn results_of_accuracy_are_scalars_or_declared_as_one_element() -> Result<()> {
    let scores = Tensor::from_vec([2, 3], vec![0.1_f32, 0.7, 0.2, 0.5, 0.3, 0.2])?;
    let label = Tensor::from_vec([2, 1], vec![1_i64, 2])?;
    for shape in ["[]", "[1]", "[-1]"] {
        let (program, name) = accuracy(shape)?;
        verify(&program)?;
        let feeds: [(&str, &dyn Feed); 2] = [("scores", &scores), ("label", &label)];
        let run = Executor::with_threads(1).run(&program, &mut Scope::new(), &feeds, &[&name])?;
        assert_eq!((run[0].dims(), run[0].to_f64s()), (&[][..], vec![0.5]));
    }
    let e = verify(&accuracy("[2]")?.0).unwrap_err();
    assert!(e.to_string().contains("`Accuracy` is float32 [], but"), "{e}");
    Ok(())
}

#[test]
fn product_of_unknown_dimensions_is_unknown() -> Result<()> {
    let net = Builder::new();
    net.input("x", DType::F32, &[-1, 2]);
    let json = net.program()?.to_json();
    let read = Program::from_json(&json.replace("[-1,2]", "[-2,2]"))?;
    assert_eq!(read, *net.program()?);
    assert!(net.input("y", DType::F32, &[-2]).check().is_err(), "people write -1");
    Ok(())
}

#[test]
fn broadcast_error_names_both_shapes() {
    let tape = autobwd::eager();
    let of = |dims: &[usize]| tape.constant(Tensor::zeros(DType::F32, dims).unwrap());
    let op = autobwd_ops::elementwise::ElementwiseAdd {
        x: of(&[3]).into(),
        y: of(&[2, 3]).into(),
        out: New,
        axis: 5,
    };
    let e = emit(op).out.check().unwrap_err();
    assert!(
        e.to_string().ends_with("`X`: shape [3] does not broadcast from axis 5 on with `Y` [2, 3]"),
        "{e}"
    );
}
