//! Numbers that data computes as dimensions.

use autobwd::{
    Buf, Cx, DType, Dims, Error, Infer, Kernel, Meta, Result, Var, ZeroGrad, check::*, operators::same_count,
    register_op, tensor::Dim,
};

/// The largest size: operators count the elements along an axis in int32.
const MOST: usize = i32::MAX as usize;

/// Tensors without elements, each with an element of `x` as dimension: `out[i]` is `[0, x[i]]`.
///
/// Their shapes are known when it has run. So numbers that are computed from data become dimensions, with which later
/// operators compute as with dimensions of other tensors.
#[register_op(grad = ZeroGrad, primitive)]
pub struct DecidedSizes<V = Var> {
    /// Numbers of at least 0, int64, `[n]`.
    #[input(checked)]
    pub x: V,
    /// `n` tensors of int32, `[0, x[i]]`.
    #[output]
    pub out: Vec<V>,
}
impl Infer for DecidedSizes<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.require(self.x.dtype == DType::I64, || "int64 is needed".into())?;
        let [count] = self.x.unpack()?;
        if let Some(count) = count.get() {
            same_count("Out", self.out.len(), count)?;
        }
        let size = Dim::at_most(MOST.into());
        self.out.iter_mut().for_each(|out| out.set(DType::I32, Dims::from_iter([0.into(), size])));
        Ok(())
    }
}
impl Kernel for DecidedSizes<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        for (out, size) in self.out.iter_mut().zip(self.x.slice::<i64>()?) {
            let known = usize::try_from(*size).ok().filter(|size| *size <= MOST);
            let known = known.ok_or_else(|| Error::data(format!("`X`: {size} is not a size")))?;
            out.decide::<i32>(&[0, known])?;
        }
        Ok(())
    }
}
autobwd::samples!(
    DecidedSizes,
    [
        decided_sizes(integers(&[2, 0, 3]), 3),
        decided_sizes(integers(&[5]), 1),
        decided_sizes(integers(&[4, -1]), 2).fails("`X`: -1 is not a size"),
        decided_sizes(integers(&[1 << 31]), 1).fails("`X`: 2147483648 is not a size"),
        decided_sizes(integers(&[2]).of(DType::I32), 1).fails("`X`: int64 is needed"),
        decided_sizes(integers_below(3, [2, 3]), 2).fails("`X`: 1 dimensions are needed"),
        decided_sizes(integers(&[2, 3]), 1).fails("`Out`"),
    ]
);

fn decided_sizes(x: Draw, count: usize) -> DecidedSizes<Draw> {
    DecidedSizes { x, out: vec![out(); count] }
}
