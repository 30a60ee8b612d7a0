//! Broadcasting to a shape, and tiling.

use autobwd::{
    Buf, Cx, DType, Dims, Error, Infer, Kernel, Meta, Multilinear, Result, Var,
    check::*,
    op::{with_dtype, with_float},
    operators::{MAX_RANK, StridedLayout, few_dims},
    register_op,
    tensor::Dim,
};

use crate::{kernel_helpers::outer_axis_inner, reduce::ReductionTiling};

/// Broadcasts to a shape: repeats dimensions of size 1 and adds dimensions in front.
#[register_op(grad = ExpandV2Grad)]
pub struct ExpandV2<V = Var> {
    /// Any shape that broadcasts to `shape`, any dtype.
    #[input]
    pub x: V,
    /// The shape given by `shape`, of at most 9 dimensions.
    #[output]
    pub out: V,
    /// Dimensions; −1 keeps the aligned dimension of `x`.
    #[attr]
    pub shape: Vec<i32>,
}
impl Infer for ExpandV2<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.set(self.x.dtype, expanded(&self.x, &self.shape)?);
        few_dims(&self.out)
    }
}
impl Kernel for ExpandV2<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_dtype!(self.x.dtype(), T => {
            let mut loops = StridedLayout::default();
            let added = self.out.dims().len() - self.x.dims().len();
            for (axis, n) in self.out.dims().iter().enumerate() {
                let (own, stride) = match axis.checked_sub(added) {
                    Some(axis) => (self.x.dims()[axis], outer_axis_inner(self.x.dims(), axis).2),
                    None => (1, 0),
                };
                loops.push(*n, if own == *n { stride as isize } else { 0 });
            }
            loops.gather::<T>(cx, self.x.slice()?, self.out.slice_mut()?);
            Ok(())
        })
    }
}
autobwd::samples!(
    ExpandV2,
    [
        ExpandV2 { x: uniform([3, 1]), out: out(), shape: vec![2, 3, 4] },
        ExpandV2 { x: uniform([2, 1, 4]), out: out(), shape: vec![-1, 3, -1] },
        ExpandV2 { x: uniform([4]), out: out(), shape: vec![2, 3, -1] },
        ExpandV2 { x: uniform([]), out: out(), shape: vec![2, 3] },
        ExpandV2 { x: uniform([2, 3]), out: out(), shape: vec![2, 3] },
        ExpandV2 { x: uniform([1, 3]), out: out(), shape: vec![0, 3] },
        ExpandV2 { x: integers_below(9, [3]).of(DType::I32), out: out(), shape: vec![2, 3] },
        ExpandV2 { x: uniform([2, 3]), out: out(), shape: vec![4, 3] }
            .fails("`X`: a shape that broadcasts to [4, 3] is needed"),
        ExpandV2 { x: uniform([2, 3]), out: out(), shape: vec![3] }
            .fails("`X`: a shape that broadcasts to [3] is needed"),
        ExpandV2 { x: uniform([3]), out: out(), shape: vec![-1, 3] }
            .fails("attribute `shape`: -1 is not a dimension"),
    ]
);

/// The shape that attribute `shape` denotes.
fn expanded(x: &Meta, shape: &[i32]) -> Result<Dims> {
    let refuse = || x.wrong(&format!("a shape that broadcasts to {shape:?} is needed"));
    let added = shape.len().checked_sub(x.rank()).ok_or_else(refuse)?;
    let mut dims = Dims::default();
    for (i, n) in shape.iter().enumerate() {
        let own = i.checked_sub(added).map(|axis| x.dims[axis]);
        let dim = match (usize::try_from(*n), own) {
            (Ok(n), own) => {
                let own = own.unwrap_or(1.into());
                if !own.agrees(1.into()) && !own.agrees(n.into()) {
                    return Err(refuse());
                }
                n.into()
            }
            (Err(_), Some(own)) if *n == -1 => own,
            _ => return Err(Error::attr("shape", format!("{n} is not a dimension"))),
        };
        dims.push(dim);
    }
    Ok(dims)
}

/// `dx = dout`, summed over the broadcast dimensions.
#[register_op(grad_of = ExpandV2, grad = Multilinear, inferred)]
pub struct ExpandV2Grad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    pub dout: V,
    #[output]
    pub dx: V,
    pub shape: Vec<i32>,
}
impl Kernel for ExpandV2Grad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.dout, T => {
            let (x, full) = (self.x.dims(), self.dout.dims());
            let added = full.len() - x.len();
            let is_repeated = |axis: usize| axis.checked_sub(added).is_none_or(|own| x[own] != full[axis]);
            let repeated = (0..full.len()).fold(0, |bits, axis| bits | u64::from(is_repeated(axis)) << axis);
            ReductionTiling::of(full, repeated).reduce::<T>(cx, self.dout.slice()?, self.dx.slice_mut()?, 1.0);
            Ok(())
        })
    }
}

/// Repeats a tensor along its dimensions: `out[i] = x[i mod n]`.
#[register_op(grad = TileGrad)]
pub struct Tile<V = Var> {
    /// Any shape, any dtype.
    #[input]
    pub x: V,
    /// Each dimension of `x` times its repetitions; at most 9 dimensions.
    #[output]
    pub out: V,
    /// Repetitions of each dimension; the shorter of shape and list is extended with 1 in front.
    #[attr]
    pub repeat_times: Vec<i32>,
}
impl Infer for Tile<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.set(self.x.dtype, tiled(&self.x, &self.repeat_times)?);
        few_dims(&self.out)
    }
}
impl Kernel for Tile<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_dtype!(self.x.dtype(), T => {
            let mut loops = StridedLayout::default();
            let mut stride = self.x.numel();
            let (dims, rank) = rounds(self.x.dims(), &self.repeat_times);
            for round in dims[..2 * rank].as_chunks::<2>().0 {
                let [times, n] = *round;
                stride = stride.checked_div(n).unwrap_or(0);
                loops.push(times, 0);
                loops.push(n, stride as isize);
            }
            loops.gather::<T>(cx, self.x.slice()?, self.out.slice_mut()?);
            Ok(())
        })
    }
}
autobwd::samples!(
    Tile,
    [
        Tile { x: uniform([2, 3]), out: out(), repeat_times: vec![2, 1] },
        Tile { x: uniform([2, 3]), out: out(), repeat_times: vec![3, 4] },
        Tile { x: uniform([2, 3, 4]), out: out(), repeat_times: vec![2] },
        Tile { x: uniform([3]), out: out(), repeat_times: vec![2, 4, 1] },
        Tile { x: uniform([1, 3]), out: out(), repeat_times: vec![2, 2] },
        Tile { x: uniform([]), out: out(), repeat_times: vec![2, 3] },
        Tile { x: uniform([]), out: out(), repeat_times: vec![] },
        Tile { x: uniform([0, 3]), out: out(), repeat_times: vec![2, 2] },
        Tile { x: uniform([2, 3]), out: out(), repeat_times: vec![0, 1] },
        Tile { x: integers_below(9, [3]).of(DType::U8), out: out(), repeat_times: vec![2] },
        Tile { x: uniform([2, 3]), out: out(), repeat_times: vec![1, -1] }
            .fails("attribute `repeat_times`: must be at least 0, is -1"),
        Tile { x: uniform([3]), out: out(), repeat_times: vec![1; 10] }
            .fails("`Out`: at most 9 dimensions are possible"),
    ]
);

fn tiled(x: &Meta, repeat_times: &[i32]) -> Result<Dims> {
    let rank = x.rank().max(repeat_times.len());
    let mut dims = Dims::default();
    for axis in 0..rank {
        let own = (axis + x.rank()).checked_sub(rank).map_or(Dim::from(1), |own| x.dims[own]);
        let times = (axis + repeat_times.len()).checked_sub(rank).map_or(1, |own| repeat_times[own]);
        let times = usize::try_from(times)
            .map_err(|_| Error::attr("repeat_times", format!("must be at least 0, is {times}")))?;
        dims.push(own * Dim::from(times));
    }
    Ok(dims)
}

/// For each dimension of the result: repetitions and size in `x`; and the number of dimensions.
fn rounds(x: &[usize], repeat_times: &[i32]) -> ([usize; 2 * MAX_RANK], usize) {
    let rank = x.len().max(repeat_times.len());
    let mut rounds = [1; 2 * MAX_RANK];
    for (own, times) in repeat_times.iter().rev().enumerate() {
        rounds[2 * (rank - 1 - own)] = *times as usize;
    }
    for (own, n) in x.iter().rev().enumerate() {
        rounds[2 * (rank - 1 - own) + 1] = *n;
    }
    (rounds, rank)
}

/// `dx = dout`, summed over the repetitions.
#[register_op(grad_of = Tile, grad = Multilinear, inferred)]
pub struct TileGrad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    pub dout: V,
    #[output]
    pub dx: V,
    pub repeat_times: Vec<i32>,
}
impl Kernel for TileGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.dout, T => {
            let (dims, rank) = rounds(self.x.dims(), &self.repeat_times);
            // Every other dimension is a repetition.
            let repeated = u64::MAX / 3;
            let cut = ReductionTiling::of(&dims[..2 * rank], repeated);
            cut.reduce::<T>(cx, self.dout.slice()?, self.dx.slice_mut()?, 1.0);
            Ok(())
        })
    }
}
