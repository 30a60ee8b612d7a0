//! Nets, their runs and their errors.

use autobwd::{
    ErrorKind, Executor, Result, Scope, Tensor,
    net::{NamedOp, NetOp, Operator, RnnOp, backward},
};
use autobwd_ops::{
    activation::Tanh,
    elementwise::{ElementwiseAdd, ElementwiseMul},
};

pub(crate) fn tanh(x: &str, out: &str) -> Operator {
    Operator::of(Tanh { x, out })
}

pub(crate) fn times(x: &str, y: &str, out: &str) -> Operator {
    Operator::of(ElementwiseMul { x, y, out, axis: -1 })
}

pub(crate) fn net(name: &str, ops: impl IntoIterator<Item = Operator>) -> Operator {
    NetOp::new(name, ops).unwrap().into()
}

pub(crate) fn named(op: &Operator) -> &NamedOp {
    let Operator::Op(op) = op else { panic!("{op} is no single operator") };
    op
}

pub(crate) fn scope(values: &[(&str, &[f64])]) -> Scope {
    let mut scope = Scope::new();
    values.iter().for_each(|(name, value)| scope.set(name, vector(value)));
    scope
}

pub(crate) fn vector(values: &[f64]) -> Tensor {
    Tensor::from_vec([values.len()], values.to_vec()).unwrap()
}

#[track_caller]
pub(crate) fn value(scope: &Scope, name: &str) -> Vec<f64> {
    scope.get(name).unwrap().to_f64s()
}

pub(crate) fn bits(tensor: &Tensor) -> Vec<u64> {
    tensor.to_f64s().into_iter().map(f64::to_bits).collect()
}

#[track_caller]
pub(crate) fn refused<T>(outcome: Result<T>, kind: ErrorKind, messages: &[&str]) {
    let e = outcome.err().unwrap_or_else(|| panic!("accepted; expected {messages:?}"));
    assert_eq!(e.kind(), kind, "{e}");
    messages.iter().for_each(|message| assert!(e.to_string().contains(message), "{e}\nlacks\n{message}"));
}

/// h = tanh(x w + h w), where the gradient of `w` has two contributions in every step.
pub(crate) fn recurrent(boot: &str) -> Result<RnnOp> {
    let add = Operator::of(ElementwiseAdd { x: "xw", y: "hw", out: "sum", axis: -1 });
    let step =
        NetOp::new("step", [times("x", "w", "xw"), times("before", "w", "hw"), add, tanh("sum", "h")])?;
    RnnOp::new("rnn", step)?.step_input("xs", "x")?.memory(boot, "before", "h")?.step_output("h", "hs")
}

/// Gradients of the inputs, by the tree's own gradient, run after the tree.
pub(crate) fn by_net(
    tree: &Operator,
    no_grad: &[String],
    mut scope: Scope,
    inputs: &[&str],
    whole: bool,
) -> Result<Vec<Option<Tensor>>> {
    let no_grad: Vec<&str> = no_grad.iter().map(String::as_str).collect();
    let gradient = backward(tree, &no_grad)?;
    gradient.verify()?;
    let mut executor = Executor::with_threads(1);
    let mut computed: Vec<String> = gradient.outputs().into_iter().map(String::from).collect();
    computed.extend(gradient.intermediates().into_iter().map(String::from));
    if whole {
        Operator::from(NetOp::new("both", [tree.clone(), gradient])?).run(&mut executor, &mut scope)?;
    } else {
        tree.run(&mut executor, &mut scope)?;
        gradient.run(&mut executor, &mut scope)?;
    }
    let value = |name: &&str| {
        let grad = format!("{name}@GRAD");
        computed.contains(&grad).then(|| scope.get(&grad).cloned()).transpose()
    };
    inputs.iter().map(value).collect()
}
