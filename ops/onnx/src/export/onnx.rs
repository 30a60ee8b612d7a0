//! Values of ONNX graphs, with dtype and dimensions, and the nodes on them.
//!
//! Every method appends a node or few to the graph that is being written. A call that does not fit fails the operator
//! that is being written; the first failure is reported with that operator.

use std::{
    fmt,
    ops::{Add, Div, Mul, Neg, Sub},
};

use autobwd::{DType, Dims, Error, ErrorKind, Meta, Result, Tensor};

use super::graph_nodes::{GraphNodes, NodeAttr, OnnxValue};

/// A value of an ONNX graph; or, in an output slot, the type of the value that is to be set there.
///
/// `+`, `-`, `*` and `/` append `Add`, `Sub`, `Mul` and `Div`, which broadcast as NumPy does; a number is a constant of
/// the dtype of the other operand.
#[derive(Clone)]
pub struct Onnx {
    nodes: GraphNodes,
    value: Option<OnnxValue>,
    /// The value whose shape a variable such as `XShape` stores.
    stored: Option<OnnxValue>,
    dtype: DType,
    dims: Dims,
    is_read: bool,
}

impl fmt::Debug for Onnx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {} {}", self.value, self.dtype, self.dims)
    }
}

impl Onnx {
    /// A value of a variable with that type; without a value, one that is to be set.
    pub(super) fn of(nodes: &GraphNodes, value: Option<OnnxValue>, meta: &Meta, is_read: bool) -> Onnx {
        let (dtype, dims) = (meta.dtype, meta.dims.clone());
        Onnx { nodes: nodes.clone(), value, stored: None, dtype, dims, is_read }
    }

    /// A variable that only stores the shape of a value.
    pub(super) fn storing(self, stored: Option<OnnxValue>) -> Onnx {
        Onnx { stored, ..self }
    }

    /// The value in the graph.
    pub(super) fn value(&self) -> Option<OnnxValue> {
        self.value
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The dimensions of the variable in a slot, −1 where they are unknown.
    pub fn dims(&self) -> &Dims {
        &self.dims
    }

    /// The same where all of them are known.
    pub fn known_dims(&self) -> Option<Vec<i64>> {
        self.dims.iter().map(|dim| dim.get().map(|dim| dim as i64)).collect()
    }

    /// The number of dimensions of the variable in a slot.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Whether an operator or the caller reads the output in this slot.
    pub fn is_read(&self) -> bool {
        self.is_read
    }

    /// An axis, from the start; negative ones count from the end.
    pub fn axis(&self, axis: impl Into<i64>) -> i64 {
        let (axis, rank) = (axis.into(), self.rank() as i64);
        let from_start = if axis < 0 { axis + rank } else { axis };
        if !(0..rank).contains(&from_start) {
            self.fail(format!("a tensor of shape {} has no axis {axis}", self.dims));
        }
        from_start
    }

    /// Axes, from the start.
    pub fn axes(&self, axes: &[i32]) -> Vec<i64> {
        axes.iter().map(|axis| self.axis(*axis)).collect()
    }

    /// Fails the operator: it cannot be written with these inputs or attributes.
    pub fn fail(&self, text: impl Into<String>) {
        self.nodes.fail(Error::new(ErrorKind::Format, text));
    }

    /// Fails the operator if a tensor is given in place of an attribute.
    pub fn refuse_tensors<'o>(&self, tensors: impl IntoIterator<Item = &'o Onnx>) {
        if tensors.into_iter().next().is_some() {
            self.fail("numbers from tensors, not attributes, cannot be written to ONNX");
        }
    }

    fn with(&self, value: OnnxValue) -> Onnx {
        Onnx { value: Some(value), stored: None, dims: Dims::default(), is_read: true, ..self.clone() }
    }

    /// The value, or one that fails the operator: an input that has none, such as `XShape`.
    pub(super) fn operand(&self) -> OnnxValue {
        self.value.unwrap_or_else(|| {
            self.fail("a value that only stores a shape is read");
            self.nodes.unnamed()
        })
    }

    fn created(&self, made: Result<OnnxValue>) -> OnnxValue {
        made.unwrap_or_else(|e| {
            self.nodes.fail(e);
            self.nodes.unnamed()
        })
    }

    /// The same value with another element type, after a node that changes the type.
    #[must_use]
    pub fn typed(self, dtype: DType) -> Onnx {
        Onnx { dtype, ..self }
    }

    /// Appends a node that reads this value, then others. The result has the same dtype; see [`typed`](Onnx::typed). An
    /// operator of another domain has its name in front: `com.microsoft:MatMulNBits`.
    pub fn node(&self, op: &str, others: &[&Onnx], attrs: &[(&str, NodeAttr<'_>)]) -> Onnx {
        let [result] = self.nodes(op, others, attrs);
        result
    }

    /// The same for a node with several results.
    pub fn nodes<const N: usize>(
        &self,
        op: &str,
        others: &[&Onnx],
        attrs: &[(&str, NodeAttr<'_>)],
    ) -> [Onnx; N] {
        let others: Vec<Option<&Onnx>> = others.iter().copied().map(Some).collect();
        let results = self.many(op, &others, attrs, N).try_into();
        results.unwrap_or_else(|_| std::array::from_fn(|_| self.clone()))
    }

    /// The same for a number of results that is known only at run time, and other inputs that may be absent.
    pub fn many(
        &self,
        op: &str,
        others: &[Option<&Onnx>],
        attrs: &[(&str, NodeAttr<'_>)],
        count: usize,
    ) -> Vec<Onnx> {
        let mut inputs = vec![Some(self.operand())];
        inputs.extend(others.iter().map(|input| input.map(Onnx::operand)));
        self.nodes.many(op, &inputs, attrs, count).into_iter().map(|value| self.with(value)).collect()
    }

    /// A constant scalar of the same dtype.
    pub fn number(&self, number: f64) -> Onnx {
        let value = self.created(self.nodes.scalar(self.dtype, number));
        self.with(value)
    }

    /// A constant list of int64.
    pub fn ints(&self, ints: &[i64]) -> Onnx {
        let value = self.created(self.nodes.ints(ints));
        self.with(value).typed(DType::I64)
    }

    /// A constant list of float32.
    pub fn floats(&self, floats: &[f32]) -> Onnx {
        let value = self.created(self.nodes.floats(floats));
        self.with(value).typed(DType::F32)
    }

    /// A constant tensor.
    pub fn tensor(&self, tensor: &Tensor) -> Onnx {
        self.with(self.nodes.tensor(tensor)).typed(tensor.dtype())
    }

    /// The dimensions of the variable in a slot as a list of int64: a constant where all are known.
    pub fn shape(&self) -> Onnx {
        match (self.known_dims(), self.stored) {
            (Some(dims), _) => self.ints(&dims),
            // `XShape` has a dimension of 0 before the dimensions of that value.
            (None, Some(of)) => {
                let zero = self.ints(&[0]);
                zero.concat(&[&self.with(of).node("Shape", &[], &[]).typed(DType::I64)], 0)
            }
            (None, None) => self.shape_of_value(),
        }
    }

    /// The dimensions of a value that a node computed, as a list of int64.
    pub fn shape_of_value(&self) -> Onnx {
        self.node("Shape", &[], &[]).typed(DType::I64)
    }

    /// A number everywhere, in the shape that a list of int64 gives.
    pub fn filled(&self, number: f64, shape: &Onnx) -> Onnx {
        self.number(number).expand(shape)
    }

    /// Broadcast with a shape that a list of int64 gives.
    #[must_use]
    pub fn expand(&self, shape: &Onnx) -> Onnx {
        self.node("Expand", &[shape], &[])
    }

    /// Integers, or one of them, as a list of int64.
    pub fn list(&self) -> Onnx {
        let list = self.cast(DType::I64);
        if self.rank() == 1 { list } else { list.reshape(&[-1]) }
    }

    /// The integers of a tensor, or else of a list of tensors, as a list of int64; `None` without either.
    pub fn given(tensor: &Option<Onnx>, list: &[Onnx]) -> Option<Onnx> {
        let parts: Vec<Onnx> = match tensor {
            Some(tensor) => vec![tensor.list()],
            None => list.iter().map(Onnx::list).collect(),
        };
        let (first, others) = parts.split_first()?;
        Some(first.concat(&others.iter().collect::<Vec<_>>(), 0))
    }

    /// This value, then others, along an axis.
    #[must_use]
    pub fn concat(&self, others: &[&Onnx], axis: i64) -> Onnx {
        match others {
            [] => self.clone(),
            _ => self.node("Concat", others, &[("axis", NodeAttr::Int(axis))]),
        }
    }

    /// With further dimensions of 1.
    #[must_use]
    pub fn unsqueeze(&self, axes: &[i64]) -> Onnx {
        self.node("Unsqueeze", &[&self.ints(axes)], &[])
    }

    /// Without dimensions of 1.
    #[must_use]
    pub fn squeeze(&self, axes: &[i64]) -> Onnx {
        self.node("Squeeze", &[&self.ints(axes)], &[])
    }

    /// In another dtype.
    #[must_use]
    pub fn cast(&self, dtype: DType) -> Onnx {
        if dtype == self.dtype {
            return self.clone();
        }
        self.with(self.nodes.cast(self.operand(), dtype)).typed(dtype)
    }

    /// In another shape; one dimension may be −1, which follows from the others.
    #[must_use]
    pub fn reshape(&self, dims: &[i64]) -> Onnx {
        let value = self.created(self.nodes.reshape(self.operand(), dims));
        self.with(value)
    }

    /// With its dimensions in another order.
    #[must_use]
    pub fn permute(&self, axes: &[i64]) -> Onnx {
        self.with(self.nodes.permute(self.operand(), axes))
    }

    /// `a` where the value, a mask, is true, else `b`.
    #[must_use]
    pub fn select(&self, a: &Onnx, b: &Onnx) -> Onnx {
        self.node("Where", &[a, b], &[]).typed(a.dtype)
    }

    /// Whether it is equal to another value.
    #[must_use]
    pub fn equal(&self, other: &Onnx) -> Onnx {
        self.node("Equal", &[other], &[]).typed(DType::Bool)
    }

    /// Whether it is greater than another value.
    #[must_use]
    pub fn greater(&self, other: &Onnx) -> Onnx {
        self.node("Greater", &[other], &[]).typed(DType::Bool)
    }

    /// Its size: `|x|`.
    #[must_use]
    pub fn abs(&self) -> Onnx {
        self.node("Abs", &[], &[])
    }
}

macro_rules! arithmetic {
    ($($op:ident $method:ident $node:literal;)*) => {$(
        impl $op<&Onnx> for &Onnx {
            type Output = Onnx;
            fn $method(self, other: &Onnx) -> Onnx {
                self.node($node, &[other], &[])
            }
        }
        arithmetic!(@ $op $method, &Onnx, Onnx, |a, b| a, &b);
        arithmetic!(@ $op $method, Onnx, &Onnx, |a, b| &a, b);
        arithmetic!(@ $op $method, Onnx, Onnx, |a, b| &a, &b);
        arithmetic!(@ $op $method, &Onnx, f64, |a, b| a, &a.number(b));
        arithmetic!(@ $op $method, Onnx, f64, |a, b| &a, &a.number(b));
        arithmetic!(@ $op $method, f64, &Onnx, |a, b| &b.number(a), b);
        arithmetic!(@ $op $method, f64, Onnx, |a, b| &b.number(a), &b);
    )*};
    (@ $op:ident $method:ident, $left:ty, $right:ty, |$a:ident, $b:ident| $x:expr, $y:expr) => {
        impl $op<$right> for $left {
            type Output = Onnx;
            fn $method(self, $b: $right) -> Onnx {
                let $a = self;
                $op::$method($x, $y)
            }
        }
    };
}
arithmetic! {
    Add add "Add";
    Sub sub "Sub";
    Mul mul "Mul";
    Div div "Div";
}

impl Neg for &Onnx {
    type Output = Onnx;
    fn neg(self) -> Onnx {
        self.node("Neg", &[], &[])
    }
}
impl Neg for Onnx {
    type Output = Onnx;
    fn neg(self) -> Onnx {
        -&self
    }
}
