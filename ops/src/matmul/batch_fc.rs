//! Products of batches with a bias for each.

use autobwd::{Composed, Composition, Dims, Expr, Infer, Meta, Result, Var, check::*, register_op};

use crate::Math;

/// A linear layer for each slot: `out[s] = input[s] · w[s] + bias[s]`.
#[register_op(grad = Composed, composed)]
pub struct BatchFc<V = Var> {
    /// `[slots, n, k]`
    #[input]
    pub input: V,
    /// `[slots, k, m]`
    #[input]
    pub w: V,
    /// `[slots, m]`
    #[input]
    pub bias: V,
    /// `[slots, n, m]`
    #[output]
    pub out: V,
}
impl Infer for BatchFc<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.input.float()?;
        self.w.same_dtype(&self.input)?;
        self.bias.same_dtype(&self.input)?;
        let [slots, n, k] = self.input.dims[..] else {
            return Err(self.input.wrong("three dimensions are needed"));
        };
        let fits = |dims: &Dims| dims.len() == 3 && dims[0].agrees(slots) && dims[1].agrees(k);
        self.w.require(fits(&self.w.dims), || format!("dimensions [{slots}, {k}, -1] are needed"))?;
        let m = self.w.dims[2];
        let dims = Dims::from_iter([slots, m]);
        self.bias.require(self.bias.dims.agrees(&dims), || format!("dimensions {dims} are needed"))?;
        let slots = slots.or(self.w.dims[0]).or(self.bias.dims[0]);
        self.out.set(self.input.dtype, Dims::from_iter([slots, n, m.or(self.bias.dims[1])]));
        Ok(())
    }
}
impl Composition for BatchFc<Expr> {
    fn compose(&mut self) {
        self.out = self.input.bmm(&self.w) + self.bias.unsqueeze(&[1]);
    }
}
autobwd::samples!(
    BatchFc,
    [
        batch_fc(uniform([2, 3, 4]), uniform([2, 4, 5]), uniform([2, 5])),
        batch_fc(uniform([3, 1, 2]), uniform([3, 2, 4]), uniform([3, 4])),
        batch_fc(uniform([0, 3, 4]), uniform([0, 4, 5]), uniform([0, 5])),
        batch_fc(uniform([2, 3, 0]), uniform([2, 0, 5]), uniform([2, 5])),
        batch_fc(uniform([2, 3]), uniform([2, 4, 5]), uniform([2, 5]))
            .fails("`Input`: three dimensions are needed"),
        batch_fc(uniform([2, 3, 4]), uniform([2, 3, 5]), uniform([2, 5]))
            .fails("`W`: dimensions [2, 4, -1] are needed"),
        batch_fc(uniform([2, 3, 4]), uniform([2, 4, 5]), uniform([5]))
            .fails("`Bias`: dimensions [2, 5] are needed"),
        batch_fc(uniform([2, 3, 4]), integers_below(2, [2, 4, 5]), uniform([2, 5]))
            .fails("`W`: dtype int64 does not match"),
        batch_fc(uniform([2, 3, 4]), uniform([2, 4, 5]), integers_below(2, [2, 5]))
            .fails("`Bias`: dtype int64 does not match"),
        batch_fc(integers_below(2, [2, 3, 4]), uniform([2, 4, 5]), uniform([2, 5]))
            .fails("`Input`: floating point numbers are needed"),
    ]
);

fn batch_fc(input: Draw, w: Draw, bias: Draw) -> BatchFc<Draw> {
    BatchFc { input, w, bias, out: out() }
}
