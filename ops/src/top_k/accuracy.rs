//! Top-k accuracy.

use autobwd::{
    Buf, Composition, Cx, DType, Expr, Infer, Kernel, Meta, Result, Var, ZeroGrad, check::*, register_op,
};

use crate::{Math, math::in_dtype, reduce::quotient};

/// Top-k accuracy, the fraction of samples whose label is among the predictions: `accuracy = correct / total`.
///
/// The kernel of PaddlePaddle 2.6.2 also writes int32 numbers, though its shape rule leaves `correct` and `total` declared
/// as float32; `autobwd-paddle` loads such programs.
#[register_op(grad = ZeroGrad)]
pub struct Accuracy<V = Var> {
    /// Scores of the predictions, `[n, k]`, as from `top_k_v2`.
    #[input(shape_only)]
    pub out: V,
    /// Predicted classes, int64, `[n, k]`.
    #[input]
    pub indices: V,
    /// Labels, int64 or int32, `[n, 1]` or `[n]`.
    #[input]
    pub label: V,
    /// The fraction, a float32 scalar; 0 for no samples.
    #[output]
    pub accuracy: V,
    /// Number of correct samples, an int32 scalar.
    #[output]
    pub correct: V,
    /// Number of samples, an int32 scalar.
    #[output]
    pub total: V,
}
impl Infer for Accuracy<Meta> {
    fn infer(&mut self) -> Result<()> {
        let (indices, label) = (&self.indices, &self.label);
        if indices.rank() != 2 || indices.dtype != DType::I64 {
            return Err(indices.wrong("an int64 matrix is needed"));
        }
        if !self.out.dims.agrees(&indices.dims) {
            return Err(self.out.wrong(&format!("the shape of `Indices`, {}, is needed", indices.dims)));
        }
        if !matches!(label.dtype, DType::I32 | DType::I64) || !label.dims.numel().agrees(indices.dims[0]) {
            return Err(label.wrong(&format!("{} labels, int64 or int32, are needed", indices.dims[0])));
        }
        self.accuracy.set(DType::F32, []);
        self.correct.set(DType::I32, []);
        self.total.set(DType::I32, []);
        Ok(())
    }
}
impl Kernel for Accuracy<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let indices = self.indices.slice()?;
        let correct = match self.label.dtype() {
            DType::I32 => count_found(indices, self.label.slice::<i32>()?),
            _ => count_found(indices, self.label.slice::<i64>()?),
        };
        let total = self.label.numel();
        self.accuracy.slice_mut::<f32>()?.fill(correct as f32 / total.max(1) as f32);
        self.correct.slice_mut::<i32>()?.fill(correct as i32);
        self.total.slice_mut::<i32>()?.fill(total as i32);
        Ok(())
    }
}
impl Composition for Accuracy<Expr> {
    fn compose(&mut self) {
        let label = in_dtype(&self.label, DType::I64).reshape(&[-1, 1]);
        let is_found = self.indices.equal(&label).any(&[1]);
        let (correct, samples) = (is_found.sum(&[]), self.indices.dim(0));
        self.accuracy = quotient(&correct.cast(DType::F32), &samples.max(1));
        self.correct = correct.cast(DType::I32);
        self.total = samples.number(self.indices.builder()).cast(DType::I32).reshape(&[]);
    }
}
autobwd::samples!(
    Accuracy,
    [
        accuracy(
            uniform([3, 2]),
            given([3, 2], [0.0, 1.0, 2.0, 1.0, 3.0, 4.0]).of(DType::I64),
            given([3, 1], [1.0, 3.0, 3.0]).of(DType::I64),
        ),
        accuracy(uniform([5, 2]), integers_below(4, [5, 2]), integers_below(4, [5]).of(DType::I32)),
        accuracy(integers_below(9, [5, 2]), integers_below(4, [5, 2]), integers_below(4, [5])),
        accuracy(uniform([0, 2]), integers_below(3, [0, 2]), integers_below(3, [0, 1])),
        accuracy(uniform([4, 2]), integers_below(3, [4, 2]), integers_below(3, [3, 1]))
            .fails("`Label`: 4 labels, int64 or int32, are needed"),
    ]
);

fn accuracy(scores: Draw, indices: Draw, label: Draw) -> Accuracy<Draw> {
    Accuracy { out: scores, indices, label, accuracy: out(), correct: out(), total: out() }
}

fn count_found<L: Copy + Into<i64>>(indices: &[i64], labels: &[L]) -> usize {
    let k = indices.len().checked_div(labels.len()).unwrap_or(0);
    let found = |(i, label): &(usize, &L)| indices[i * k..][..k].contains(&(**label).into());
    labels.iter().enumerate().filter(found).count()
}
