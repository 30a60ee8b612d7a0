//! Models as trees of operators: nets, which are operators themselves, step nets over time, and their gradients, as in
//! PaddlePaddle's first design documents.
//!
//! Must access operators through the registry only: gradient rules, shape rules and kernels are those of programs.
//!
//! # Operators and their gradients
//!
//! An operator of a tree has variable names in its slots. [`build_grad_op`] builds its gradient operator in four steps:
//! look up the one registered for its type, copy the variables that the gradient needs, add the gradients of outputs
//! and inputs, and build it with the same attributes. The gradient of `mul`, a matrix product, needs both factors:
//!
//! ```
//! use autobwd::net::{NamedOp, build_grad_op};
//! use autobwd_ops::matmul::Mul;
//!
//! let mul = NamedOp::of(Mul { x: "x", y: "W", out: "out", x_num_col_dims: 1, y_num_col_dims: 1 });
//! assert_eq!(
//!     build_grad_op(&mul)?.to_string(),
//!     "X@GRAD=x@GRAD, Y@GRAD=W@GRAD = mul_grad(Out@GRAD=out@GRAD, X=x, Y=W, x_num_col_dims=1, y_num_col_dims=1)\n",
//! );
//! # Ok::<(), autobwd::Error>(())
//! ```
//!
//! The registered gradient is another operator, as for `add_two`, or a rule that composes it of other operators, as for
//! `minus`, whose gradient is a net of two `scale`s:
//!
//! ```standalone_crate
//! use autobwd::{Float, NoGrad, Pointwise, Var, net::{NamedOp, build_grad_op}, register_op};
//! use autobwd_ops::elementwise::Minus;
//!
//! /// `out = x + y`
//! #[register_op(grad = AddTwoGrad, pointwise)]
//! pub struct AddTwo<V = Var> {
//!     /// Any shape.
//!     #[input]
//!     pub x: V,
//!     /// Same shape.
//!     #[input]
//!     pub y: V,
//!     /// Same shape.
//!     #[output]
//!     pub out: V,
//! }
//! impl<F: Float> Pointwise for AddTwo<F> {
//!     fn eval(&mut self) {
//!         self.out = self.x + self.y;
//!     }
//! }
//!
//! /// `dx = dout`, `dy = dout`
//! #[register_op(grad = NoGrad, pointwise)]
//! pub struct AddTwoGrad<V = Var> {
//!     /// Gradient of the output.
//!     #[input("Out@GRAD")]
//!     pub dout: V,
//!     /// Gradient of `x`.
//!     #[output("X@GRAD")]
//!     pub dx: Option<V>,
//!     /// Gradient of `y`.
//!     #[output("Y@GRAD")]
//!     pub dy: Option<V>,
//! }
//! impl<F: Float> Pointwise for AddTwoGrad<F> {
//!     fn eval(&mut self) {
//!         self.dx = self.dx.map(|_| self.dout);
//!         self.dy = self.dy.map(|_| self.dout);
//!     }
//! }
//!
//! let add_two = NamedOp::of(AddTwo { x: "x", y: "y", out: "out" });
//! let gradient = build_grad_op(&add_two)?;
//! assert_eq!(gradient.to_string(), "X@GRAD=x@GRAD, Y@GRAD=y@GRAD = add_two_grad(Out@GRAD=out@GRAD)\n");
//!
//! let minus = NamedOp::of(Minus { x: "x", y: "y", out: "out" });
//! assert_eq!(build_grad_op(&minus)?.to_string(), "\
//! net minus_grad(out@GRAD) -> x@GRAD, y@GRAD
//!   x@GRAD = scale(X=out@GRAD, bias=0.0, bias_after_scale=true, scale=1.0)
//!   y@GRAD = scale(X=out@GRAD, bias=0.0, bias_after_scale=true, scale=-1.0)
//! ");
//! # Ok::<(), autobwd::Error>(())
//! ```
//!
//! # Nets
//!
//! A [`NetOp`] is a list of operators, and an operator itself: it may be part of other nets. Its inputs and outputs are
//! determined at construction. [`backward`](backward()) returns a net of the gradients of its operators in reverse.
//! This net reads the gradients of the net's outputs; a set names variables without gradient. [`missing`](missing())
//! explains why a variable has no gradient.
//!
//! ```
//! use autobwd::net::{NetOp, Operator, backward};
//! use autobwd_ops::{activation::Sigmoid, elementwise::ElementwiseAdd, matmul::Mul};
//!
//! let fc = NetOp::new("fc", [
//!     Operator::of(Mul { x: "x", y: "W", out: "product", x_num_col_dims: 1, y_num_col_dims: 1 }),
//!     Operator::of(ElementwiseAdd { x: "product", y: "b", out: "sum", axis: 1 }),
//!     Operator::of(Sigmoid { x: "sum", out: "y" }),
//! ])?;
//! assert_eq!((fc.inputs(), fc.outputs()), (vec!["x", "W", "b"], vec!["y"]));
//! assert_eq!(backward(&fc.clone().into(), &["x"])?.to_string(), "\
//! net fc_grad(y, y@GRAD, product, b, x, W) -> b@GRAD, W@GRAD
//!   sum@GRAD = sigmoid_grad(Out=y, Out@GRAD=y@GRAD)
//!   X@GRAD=product@GRAD, Y@GRAD=b@GRAD = elementwise_add_grad(Out@GRAD=sum@GRAD, X=product, Y=b, axis=1)
//!   W@GRAD = mul_grad(Out@GRAD=product@GRAD, X=x, Y=W, x_num_col_dims=1, y_num_col_dims=1)
//! ");
//! // Nothing comes from nothing.
//! assert!(matches!(backward(&fc.into(), &["y"])?, Operator::Nop));
//! # Ok::<(), autobwd::Error>(())
//! ```
//!
//! Two operators that read one variable both write its gradient. Each therefore writes a name of its own, and a sum
//! follows the last of them:
//!
//! ```
//! # use autobwd::net::{NetOp, Operator, backward};
//! # use autobwd_ops::matmul::Mul;
//! let mul = |x, out| Operator::of(Mul { x, y: "W", out, x_num_col_dims: 1, y_num_col_dims: 1 });
//! let net = NetOp::new("net", [mul("x", "h"), mul("h", "y")])?;
//! assert_eq!(backward(&net.into(), &["x"])?.to_string(), "\
//! net net_grad(y@GRAD, h, W, x) -> W@GRAD
//!   X@GRAD=h@GRAD, Y@GRAD=W@GRAD@RENAME@0 = mul_grad(Out@GRAD=y@GRAD, X=h, Y=W, x_num_col_dims=1, y_num_col_dims=1)
//!   W@GRAD@RENAME@1 = mul_grad(Out@GRAD=h@GRAD, X=x, Y=W, x_num_col_dims=1, y_num_col_dims=1)
//!   W@GRAD = sum(X=[W@GRAD@RENAME@0, W@GRAD@RENAME@1])
//! ");
//! # Ok::<(), autobwd::Error>(())
//! ```
//!
//! A needed gradient without writer is filled with zeros:
//!
//! ```
//! # use autobwd::net::{NetOp, Operator, backward};
//! # use autobwd_ops::{activation::Tanh, shape::Split};
//! let split = Operator::of(Split { x: "x", out: vec!["a", "b"], axis: 0, num: 2, sections: vec![], axis_tensor: None, sections_tensor_list: vec![] });
//! let net = NetOp::new("net", [split, Operator::of(Tanh { x: "a", out: "y" })])?.returning(["y"])?;
//! assert_eq!(backward(&net.into(), &[])?.to_string(), "\
//! net net_grad(y, y@GRAD, b) -> x@GRAD
//!   a@GRAD = tanh_grad(Out=y, Out@GRAD=y@GRAD)
//!   net split_grad(b, a@GRAD) -> x@GRAD
//!     b@GRAD = fill_zeros_like(X=b)
//!     x@GRAD = concat(X=[a@GRAD, b@GRAD], axis=0)
//! ");
//! # Ok::<(), autobwd::Error>(())
//! ```
//!
//! # Steps over time
//!
//! An [`RnnOp`] runs a step net once for every element of a sequence; memories carry values from step to step. Its
//! gradient runs the gradient of the step net in reverse: memories carry gradients back, and the contributions of the
//! steps to the gradient of a shared variable are summed.
//!
//! # Running
//!
//! Values are stored in a [`Scope`](autobwd_exec::Scope): [`Operator::run`] reads the tree's inputs there and writes
//! all its outputs; the executor caches its plan. [`Operator::to_dot`] and [`Operator::to_mermaid`] draw it.
//! [`Operator::lower`] converts the tree into a [`Program`](autobwd_core::Program); the program's
//! [gradients](autobwd_backward::gradients) equal those of the tree bit by bit.
//!
//! ```
//! use autobwd::{Executor, Scope, Tensor, net::{NetOp, Operator, RnnOp, backward}};
//! use autobwd_ops::elementwise::{ElementwiseAdd, ElementwiseMul};
//!
//! // Compound interest at `rate`: total[t] = (total[t - 1] + x[t]) * rate.
//! let step = NetOp::new("step", [
//!     Operator::of(ElementwiseAdd { x: "before", y: "x", out: "paid", axis: -1 }),
//!     Operator::of(ElementwiseMul { x: "paid", y: "rate", out: "total", axis: -1 }),
//! ])?;
//! let rnn = RnnOp::new("years", step)?
//!     .step_input("xs", "x")?
//!     .memory("start", "before", "total")?
//!     .step_output("total", "totals")?;
//! let rnn = Operator::from(rnn);
//! let gradient = backward(&rnn, &["start"])?;
//! assert_eq!(gradient.to_string(), "\
//! rnn_grad years(totals@GRAD, xs, start, rate) -> xs@GRAD, rate@GRAD
//!   for t = T-1
//!     total@GRAD = totals@GRAD[t]
//!     net step_grad(total@GRAD, paid, rate, before, x) -> rate@GRAD, before@GRAD, x@GRAD
//!       X@GRAD=paid@GRAD, Y@GRAD=rate@GRAD = elementwise_mul_grad(Out@GRAD=total@GRAD, X=paid, Y=rate, axis=-1)
//!       X@GRAD=before@GRAD, Y@GRAD=x@GRAD = elementwise_add_grad(Out@GRAD=paid@GRAD, X=before, Y=x, axis=-1)
//!     rate@GRAD += years@t/rate@GRAD
//!   for t = T-2, …, 0
//!     total@GRAD@RENAME@0 = totals@GRAD[t]
//!     total@GRAD@RENAME@1 = before@GRAD[t+1]
//!     net step_grad(total@GRAD@RENAME@0, total@GRAD@RENAME@1, paid, rate, before, x) -> rate@GRAD, before@GRAD, x@GRAD
//!       total@GRAD = sum(X=[total@GRAD@RENAME@0, total@GRAD@RENAME@1])
//!       X@GRAD=paid@GRAD, Y@GRAD=rate@GRAD = elementwise_mul_grad(Out@GRAD=total@GRAD, X=paid, Y=rate, axis=-1)
//!       X@GRAD=before@GRAD, Y@GRAD=x@GRAD = elementwise_add_grad(Out@GRAD=paid@GRAD, X=before, Y=x, axis=-1)
//!     rate@GRAD += years@t/rate@GRAD
//!   xs@GRAD[t] = x@GRAD
//! ");
//!
//! let (mut executor, mut scope) = (Executor::new(), Scope::new());
//! scope.set("xs", Tensor::from_vec([3, 1], vec![100.0, 100.0, 100.0])?);
//! scope.set("start", Tensor::from_vec([1], vec![0.0])?);
//! scope.set("rate", Tensor::from_vec([1], vec![1.1])?);
//! rnn.run(&mut executor, &mut scope)?;
//! assert!((scope.get("totals")?.to_f64s()[2] - 364.1).abs() < 1e-9);
//! // The gradient of the last total with respect to the payment of each year.
//! scope.set("totals@GRAD", Tensor::from_vec([3, 1], vec![0.0, 0.0, 1.0])?);
//! gradient.run(&mut executor, &mut scope)?;
//! assert!((scope.get("xs@GRAD")?.to_f64s()[0] - 1.331).abs() < 1e-9);
//! # Ok::<(), autobwd::Error>(())
//! ```

mod backward;
mod draw;
mod flat;
mod gradient_tree;
mod list;
mod lower;
mod missing;
mod op;
mod reachability;
mod rnn;
mod run;
mod text;

pub use backward::{backward, build_grad_op};
pub use list::NetOp;
pub use missing::missing;
pub use op::NamedOp;
use rnn::StepValue;
pub use rnn::{RnnGradOp, RnnOp};

use autobwd_core::{
    __private::internals::*, Describe, Error, ErrorKind, Name, OpContext, OpDesc, OpInfoMap, Result, Var,
};

/// A node of a tree of operators. Variables are names; their values are in a [`Scope`](autobwd_exec::Scope).
#[derive(Clone, Debug, PartialEq)]
pub enum Operator {
    /// Does nothing: the gradient of an operator without gradient.
    Nop,
    /// One registered operator.
    Op(NamedOp),
    /// A list of operators.
    Net(NetOp),
    /// A step net over time.
    Rnn(RnnOp),
    /// The gradient of a step net over time.
    RnnGrad(Box<RnnGradOp>),
}

impl From<NamedOp> for Operator {
    fn from(op: NamedOp) -> Operator {
        Operator::Op(op)
    }
}
impl From<NetOp> for Operator {
    fn from(net: NetOp) -> Operator {
        Operator::Net(net)
    }
}
impl From<RnnOp> for Operator {
    fn from(rnn: RnnOp) -> Operator {
        Operator::Rnn(rnn)
    }
}

impl Operator {
    /// Converts an operator's struct with names in its slots, as [`NamedOp::of`].
    #[track_caller]
    pub fn of<W: Into<String>, D: Describe<W>>(op: D) -> Operator {
        NamedOp::of(op).into()
    }

    /// Variables that it reads before any write.
    pub fn inputs(&self) -> Vec<&str> {
        match self {
            Operator::Nop => vec![],
            Operator::Op(op) => op.reads().collect(),
            Operator::Net(net) => net.inputs(),
            Operator::Rnn(rnn) => rnn.inputs(),
            Operator::RnnGrad(grad) => grad.inputs(),
        }
    }

    /// Variables that it writes and does not read.
    pub fn outputs(&self) -> Vec<&str> {
        match self {
            Operator::Nop => vec![],
            Operator::Op(op) => op.writes().collect(),
            Operator::Net(net) => net.outputs(),
            Operator::Rnn(rnn) => rnn.outputs(),
            Operator::RnnGrad(grad) => grad.outputs(),
        }
    }

    /// Variables that it writes and reads.
    pub fn intermediates(&self) -> Vec<&str> {
        match self {
            Operator::Net(net) => net.intermediates(),
            _ => vec![],
        }
    }

    /// Its name as part of a net's name.
    fn label(&self) -> String {
        match self {
            Operator::Nop => "nop".into(),
            Operator::Op(op) => op.ty.to_string(),
            Operator::Net(net) => net.name().into(),
            Operator::Rnn(rnn) => rnn.name().into(),
            Operator::RnnGrad(grad) => format!("{}_grad", grad.forward().name()),
        }
    }

    /// Its description in messages.
    fn describe(&self) -> OpContext {
        match self {
            Operator::Nop => OpContext::new("operator", "nop"),
            Operator::Op(op) => op.describe(),
            Operator::Net(net) => OpContext::new("net", net.name()),
            Operator::Rnn(rnn) => OpContext::new("recurrent operator", rnn.name()),
            Operator::RnnGrad(grad) => {
                OpContext::new("the gradient of recurrent operator", grad.forward().name())
            }
        }
    }

    /// The operator on the variables that `var` returns for names; a recurrent one stands for its steps.
    fn desc(&self, var: &mut dyn FnMut(&str) -> Var) -> OpDesc {
        let mut vars = |names: Vec<&str>| names.into_iter().map(&mut *var).collect::<Vec<Var>>();
        match self {
            Operator::Op(op) => op.desc(var),
            Operator::Rnn(rnn) => {
                let sequences = vars(rnn.starts.iter().filter_map(StepValue::sequence).collect());
                let memories = rnn.starts.iter().filter(|start| start.state.is_some());
                let boots = vars(memories.filter_map(|start| start.outer.as_deref()).collect());
                let op =
                    OpDesc::new(Name::new(rnn.name())).input("step input", sequences).input("memory", boots);
                op.input("shared", vars(rnn.shared())).output("step output", vars(rnn.outputs()))
            }
            other => {
                let op = OpDesc::new(Name::new(&other.label())).input("input", vars(other.inputs()));
                op.output("output", vars(other.outputs()))
            }
        }
    }

    fn depth(&self) -> usize {
        match self {
            Operator::Nop | Operator::Op(_) => 0,
            Operator::Net(net) => net.depth(),
            Operator::Rnn(rnn) => rnn.depth(),
            Operator::RnnGrad(grad) => grad.depth(),
        }
    }

    /// A net's operators, or the operator itself.
    fn list(&self) -> &[Operator] {
        match self {
            Operator::Net(net) => net.ops(),
            other => std::slice::from_ref(other),
        }
    }

    /// Visits all operators that are not nets, in execution order.
    fn each<'a>(&'a self, visit: &mut dyn FnMut(&'a Operator)) {
        match self {
            Operator::Net(net) => net.ops().iter().for_each(|op| op.each(visit)),
            other => visit(other),
        }
    }

    /// The nets of its steps.
    fn steps(&self) -> Vec<&[Operator]> {
        match self {
            Operator::Rnn(rnn) => vec![rnn.step().ops()],
            Operator::RnnGrad(grad) => grad.steps().map(NetOp::ops).collect(),
            _ => vec![],
        }
    }

    /// Checks the tree against the operators linked into this binary: operators are registered, slots are filled as
    /// declared, attributes have the right types and are within bounds, recurrent operators have sequences and unique
    /// names. Shapes are checked when it is [lowered](Operator::lower) or run.
    ///
    /// # Errors
    /// All faults, one a line, each with operator, slots, variables and source line.
    pub fn verify(&self) -> Result<()> {
        let mut faults = vec![];
        faults_of(OpInfoMap::linked()?, std::slice::from_ref(self), &mut faults);
        if faults.is_empty() { Ok(()) } else { Err(Error::new(ErrorKind::Program, faults.join("\n"))) }
    }
}

/// The faults of operators that run in one scope.
fn faults_of(ops: &OpInfoMap, tree: &[Operator], faults: &mut Vec<String>) {
    let mut names = vec![];
    let mut visit = |op: &Operator| {
        match op {
            Operator::Op(op) => {
                faults.extend(op.info(ops).err().map(|e| e.at_op(|| op.describe()).to_string()));
            }
            Operator::Rnn(rnn) => {
                if rnn.starts.iter().all(|start| start.sequence().is_none()) {
                    faults.push(rnn.no_sequence().to_string());
                }
                if names.contains(&rnn.name().to_string()) {
                    faults.push(rnn.same_name().to_string());
                }
                names.push(rnn.name().to_string());
            }
            _ => {}
        }
        op.steps().into_iter().for_each(|step| faults_of(ops, step, faults));
    };
    tree.iter().for_each(|op| op.each(&mut visit));
}
