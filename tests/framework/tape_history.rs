//! Inspection of the eager tape: histories, queues, and user-defined functions.

use std::fmt::Write as _;

use autobwd::{
    Builder, Error, ErrorKind, Expr, Result, Tensor,
    ndarray::{Array1, Ix1},
    tape::{Function, GradOptions, apply, grad, trace},
};
use autobwd_ops::Math;

fn tape() -> Builder {
    autobwd::tape::eager_with_threads(1)
}

fn number(x: f64) -> Tensor {
    Tensor::scalar(x).unwrap()
}

#[test]
fn history_is_walked_and_drawn_after_the_fact() -> Result<()> {
    let tape = tape();
    let (x, y) = (tape.leaf("x", number(2.0)), tape.leaf("y", number(3.0)));
    let rest = tape.constant(Tensor::from_vec([5], vec![1.0; 5])?);
    let z = (&x * &y).named("z");
    let h = ((z.log() + z.exp()) * &rest).sum(&[]);
    // Neither the backward pass nor unrecorded values change it.
    let _ = tape.no_grad(|| h.square());
    for _ in 0..2 {
        let history = autobwd::tape::history(&h)?;
        let program = &history.program;
        let ops: Vec<_> = program.root().ops.iter().map(|op| &*op.ty).collect();
        assert_eq!(
            ops,
            ["elementwise_mul", "log", "exp", "elementwise_add", "elementwise_mul", "reduce_sum"]
        );
        autobwd::verify(program)?;
        assert!(
            program.root().ops.iter().all(|op| op.site.unwrap().to_string().contains("tape_history.rs:"))
        );
        let leaves: Vec<_> = program.parameters().map(|var| program.name(var).to_string()).collect();
        assert_eq!(leaves, ["x", "y"]);
        let values: Vec<_> = history.values.iter().map(|(var, _)| program.name(*var)).collect();
        assert_eq!(values.len(), 9, "{values:?}");
        assert_eq!(history.value("z")?.item()?, 6.0);
        assert_eq!(history.value("log_0")?.item()?, 6.0_f64.ln());
        assert!(history.value("q").is_err());
        h.backward()?;
    }
    let history = autobwd::tape::history(&h)?;
    let (dot, mermaid) = (history.to_dot(), history.to_mermaid());
    assert!(dot.starts_with("digraph program {") && mermaid.starts_with("flowchart TD\n"));
    // Operators are boxes, values are arrows with their elements; long values are left to `value`.
    assert!(dot.contains(r#"op0_0 [label="0: elementwise_mul", shape=box"#), "{dot}");
    assert!(dot.contains(r#"op0_0 -> op0_1 [label="z\nfloat64 []\n= 6"]"#), "{dot}");
    assert!(dot.contains(r#"label="constant_0\nfloat64 [5]", shape=ellipse"#), "{dot}");
    assert!(mermaid.contains(r#"op0_0 -->|"z<br/>float64 []<br/>= 6"| op0_1"#), "{mermaid}");
    // A value without history is its own history.
    let alone = autobwd::tape::history(autobwd::tape::history(&h)?.value("y")?)?;
    assert_eq!((alone.program.root().ops.len(), alone.values.len()), (0, 1));
    let e = autobwd::tape::history(&Builder::new().input("x", autobwd::DType::F32, &[])).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::NoValue);
    Ok(())
}

#[test]
fn long_histories_and_several_outputs_are_walked() -> Result<()> {
    let tape = tape();
    let x = tape.leaf("x", Tensor::from_vec([2], vec![0.25, 0.5])?);
    let parts = x.split(&[1, 1], 0);
    let mut y = &parts[0] * &parts[1];
    for _ in 0..100_000 {
        y = &y + 1.0;
    }
    let history = autobwd::tape::history(&y)?;
    let ops = &history.program.root().ops;
    assert_eq!((ops.len(), &*ops[0].ty, ops[0].writes().count()), (100_002, "split", 2));
    assert_eq!(history.program.name(ops[1].reads().nth(1).unwrap()), "split_1");
    Ok(())
}

#[test]
fn steps_of_a_queue_are_inspected() -> Result<()> {
    let tape = tape();
    let (x, y) = (tape.leaf("x", number(2.0)), tape.leaf("y", number(4.0)));
    let z = (&x * &y).named("z");
    let h = z.sqrt() + z.square();
    let mut steps = String::new();
    let mut at_z: Option<Expr> = None;
    autobwd::tape::backward_with(&h, None, &mut |queue| {
        assert_eq!((queue.iter().count(), queue.iter().next().is_none()), (queue.len(), queue.is_empty()));
        for entry in queue.iter() {
            let derivatives: Vec<f64> =
                entry.derivatives().unwrap().iter().map(|d| d.item().unwrap()).collect();
            write!(steps, "{} {derivatives:?}; ", entry.name()).unwrap();
            if entry.name() == "z" {
                at_z = Some(tape.hold(entry.value().clone()));
            }
        }
        steps += "\n";
    })?;
    let root = 0.5 / 8.0_f64.sqrt();
    let all = 16.0 + root;
    let expected = format!(
        "elementwise_add [1.0]; \nsquare [1.0]; sqrt [1.0]; \nsqrt [1.0]; z [16.0]; \nz [{all:?}]; \n\
         y [{:?}]; x [{:?}]; \nx [{:?}]; \n\n",
        2.0 * all,
        4.0 * all,
        4.0 * all
    );
    assert_eq!(steps, expected);
    assert_eq!(at_z.unwrap().item()?, 8.0);
    Ok(())
}

/// `Σ x²`, by hand.
struct Squares;
impl Function for Squares {
    fn name(&self) -> &'static str {
        "squares"
    }
    fn forward(&self, inputs: &[Tensor]) -> Result<Tensor> {
        Tensor::scalar(inputs[0].view::<f64, Ix1>()?.mapv(|x| x * x).sum())
    }
    fn backward(&self, inputs: &[Tensor], output: &Tensor, gradient: &Tensor) -> Result<Vec<Tensor>> {
        let x = inputs[0].view::<f64, Ix1>()?;
        assert_eq!(output.item()?, x.mapv(|x| x * x).sum());
        Ok(vec![Tensor::try_from(&x * (2.0 * gradient.item()?))?])
    }
}

#[test]
fn functions_of_the_user_s_own_are_differentiated() -> Result<()> {
    let tape = tape();
    let data = Array1::from_vec(vec![0.5, -1.5, 2.0]);
    let by_operators = |x: &Expr| x.tanh().square().sum(&[]).exp();
    let by_hand = |x: &Expr| apply(Squares, &[&x.tanh()]).exp();
    let mut gradients = vec![];
    for function in [&by_operators as &dyn Fn(&Expr) -> Expr, &by_hand] {
        let x = tape.leaf("x", Tensor::try_from(&data)?);
        let y = function(&x);
        assert!(y.requires_grad());
        y.backward()?;
        // Also gradients on request, and only those that are requested.
        let asked = grad(&[&y], &[&x], &GradOptions::default())?[0].clone().unwrap();
        assert_eq!(asked.tensor()?, x.gradient()?.tensor()?);
        gradients.push((y.item()?, x.gradient()?.tensor()?.to_f64s()));
    }
    assert_eq!(gradients[0].0, gradients[1].0);
    gradients[0].1.iter().zip(&gradients[1].1).for_each(|(a, b)| assert!((a - b).abs() < 1e-12, "{a} {b}"));
    // Histories show it between operators; it saves nothing if no gradient is wanted.
    let x = tape.leaf("x", Tensor::try_from(&data)?);
    let history = autobwd::tape::history(&by_hand(&x))?;
    let ops: Vec<_> = history.program.root().ops.iter().map(|op| &*op.ty).collect();
    assert_eq!(ops, ["tanh", "squares", "exp"]);
    assert!(history.to_dot().contains("1: squares"));
    assert!(!tape.no_grad(|| apply(Squares, &[&x])).requires_grad());
    assert!(!apply(Squares, &[&tape.constant(x.tensor()?)]).requires_grad());
    Ok(())
}

/// Calls a given function in its backward pass.
struct Told(fn(&[Tensor]) -> Result<Vec<Tensor>>);
impl Function for Told {
    fn name(&self) -> &'static str {
        "told"
    }
    fn forward(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let sum: f64 = inputs.iter().flat_map(Tensor::to_f64s).sum();
        if sum.is_nan() { Err(Error::data("NaN is not taken")) } else { Tensor::scalar(1.0 / sum) }
    }
    fn backward(&self, inputs: &[Tensor], _: &Tensor, _: &Tensor) -> Result<Vec<Tensor>> {
        (self.0)(inputs)
    }
}

#[test]
fn errors_of_user_functions_name_their_line() -> Result<()> {
    let tape = tape();
    let x = tape.leaf("x", number(2.0));
    let refused = |outcome: Result<()>, kind: ErrorKind, text: &str| {
        let e = outcome.unwrap_err();
        assert_eq!(e.kind(), kind, "{e}");
        let e = e.to_string();
        assert!(e.contains("function `told` (called at ") && e.contains("tape_history.rs:"), "{e}");
        assert!(e.contains(text), "{e}\nlacks\n{text}");
    };
    let fine = |inputs: &[Tensor]| Ok(inputs.to_vec());
    let told = |way: fn(&[Tensor]) -> Result<Vec<Tensor>>| apply(Told(way), &[&x, &x]);
    refused(told(|_| Ok(vec![])).backward(), ErrorKind::NoGradient, "returns 0 gradients for 2 inputs");
    refused(
        told(|_| Ok(vec![number(1.0), Tensor::from_vec([1], vec![1.0_f32])?])).backward(),
        ErrorKind::Shape,
        "returns float32 [1] as the gradient of input 1, which is float64 []",
    );
    refused(told(|_| Err(Error::data("not here"))).backward(), ErrorKind::Data, "not here");
    let nan = tape.constant(number(f64::NAN));
    refused(apply(Told(fine), &[&nan]).check().map(drop), ErrorKind::Data, "NaN is not taken");
    // Its backward pass is not recorded.
    let y = told(fine);
    let again = grad(&[&y], &[&x], &GradOptions { create_graph: true, ..GradOptions::default() });
    refused(again.map(drop), ErrorKind::NoGradient, "so its gradient has no gradient");
    // A program consists of operators only.
    let traced = trace(&tape, &[("x", &x)], || Ok(vec![apply(Told(fine), &[&x])]));
    refused(traced.map(drop), ErrorKind::Program, "write an operator instead");
    // Values that its backward pass needs must be saved.
    let y = told(fine);
    x.set(number(3.0))?;
    refused(y.backward(), ErrorKind::NoGradient, "version 0 of `x` is needed");
    tape.check_finite(true);
    x.set(number(0.0))?;
    refused(apply(Told(fine), &[&x]).check().map(drop), ErrorKind::NotFinite, "is not finite");
    let e = apply(Told(fine), &[]).check().unwrap_err();
    assert_eq!(e.message(), "function `told` is called without inputs");
    Ok(())
}

/// A function of one number, as a function of tensors: its value and its derivative.
struct OfNumber<V, D>(V, D);
impl<V, D> Function for OfNumber<V, D>
where
    V: Fn(f64) -> f64 + Send + Sync + 'static,
    D: Fn(f64) -> f64 + Send + Sync + 'static,
{
    fn name(&self) -> &'static str {
        "of_number"
    }
    fn forward(&self, inputs: &[Tensor]) -> Result<Tensor> {
        Tensor::scalar(self.0(inputs[0].item()?))
    }
    fn backward(&self, inputs: &[Tensor], _: &Tensor, gradient: &Tensor) -> Result<Vec<Tensor>> {
        Ok(vec![Tensor::scalar(self.1(inputs[0].item()?) * gradient.item()?)?])
    }
}

#[test]
fn numbers_have_functions_of_their_own() -> Result<()> {
    let tape = tape();
    let square = |x: &Expr| apply(OfNumber(|x| x * x, |x| 2.0 * x), &[x]);
    let x = tape.leaf("x", Tensor::scalar(1.5)?);
    let y = square(&square(&x).exp()).log();
    assert!((y.item()? - 2.0 * 1.5 * 1.5).abs() < 1e-12);
    y.backward()?;
    assert!((x.gradient()?.item()? - 2.0 * 2.0 * 1.5).abs() < 1e-12);
    // As long as any history: neither the backward pass nor the destructor recurses.
    let mut z = tape.leaf("z", Tensor::scalar(1.0)?);
    let first = z.clone();
    for _ in 0..200_000 {
        z = apply(OfNumber(|x| x, |_| 1.0), &[&z]);
    }
    z.backward()?;
    assert_eq!(first.gradient()?.item()?, 1.0);
    Ok(())
}
