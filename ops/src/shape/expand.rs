//! Broadcasting to a shape, and tiling.

use autobwd::{
    Buf, Composition, Cx, DType, Dims, Error, Expr, Infer, Kernel, Meta, Multilinear, New, Result, Var,
    check::*,
    emit,
    op::{with_dtype, with_float},
    operators::{
        ConstantInts, ElementwiseAddGrad, MAX_RANK, StridedLayout, constant_ints_of_tensor, few_dims,
    },
    register_op,
    tensor::Dim,
};

use crate::{
    Math,
    kernel_helpers::outer_axis_inner,
    math::{DimExpr, all_sizes, given_integers, product},
    reduce::ReductionTiling,
};

/// Broadcasts to a shape: repeats dimensions of size 1 and adds dimensions in front.
#[register_op(grad = ExpandV2Grad, infallible, any_dtype, primitive)]
pub struct ExpandV2<V = Var> {
    /// Any shape that broadcasts to `shape`, any dtype.
    #[input]
    pub x: V,
    /// The shape, in place of attribute `shape`: int32 or int64, of one dimension.
    #[input("Shape", constant)]
    pub shape_input: Option<V>,
    /// The dimensions, in place of attribute `shape`: int32 or int64, one element each.
    #[input("expand_shapes_tensor", constant)]
    pub expand_shapes_tensor: Vec<V>,
    /// The given shape, of at most 9 dimensions.
    #[output]
    pub out: V,
    /// Dimensions; −1 keeps the aligned dimension of `x`.
    #[attr]
    pub shape: Vec<i32>,
}
impl Infer for ExpandV2<Meta> {
    fn infer(&mut self) -> Result<()> {
        let shape = entries(&self.expand_shapes_tensor, self.shape_input.as_ref(), &self.shape)?;
        self.out.set(self.x.dtype, expanded(&self.x, &shape)?);
        few_dims(&self.out)
    }
}
impl Kernel for ExpandV2<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        broadcast(cx, &self.x, &mut self.out)
    }
}

/// Repeats `x` to the shape of `out`.
pub(super) fn broadcast(cx: &Cx, x: &Buf<'_>, out: &mut Buf<'_>) -> Result<()> {
    let mut loops = StridedLayout::default();
    let added = out.dims().len() - x.dims().len();
    for (axis, n) in out.dims().iter().enumerate() {
        let (own, stride) = match axis.checked_sub(added) {
            Some(axis) => (x.dims()[axis], outer_axis_inner(x.dims(), axis).2),
            None => (1, 0),
        };
        loops.push(*n, if own == *n { stride as isize } else { 0 });
    }
    with_dtype!(x.dtype(), T => {
        loops.gather::<T>(cx, x.slice()?, out.slice_mut()?);
        Ok(())
    })
}
autobwd::samples!(
    ExpandV2,
    [
        expand_v2(uniform([3, 1]), vec![2, 3, 4]),
        expand_v2(uniform([2, 1, 4]), vec![-1, 3, -1]),
        expand_v2(uniform([4]), vec![2, 3, -1]),
        expand_v2(uniform([]), vec![2, 3]),
        expand_v2(uniform([2, 3]), vec![2, 3]),
        expand_v2(uniform([1, 3]), vec![0, 3]),
        expand_v2(integers_below(9, [3]).of(DType::I32), vec![2, 3]),
        ExpandV2 { shape_input: Some(integers(&[2, 3, 4])), ..expand_v2(uniform([3, 1]), vec![]) },
        ExpandV2 {
            shape_input: Some(integers(&[-1, 3]).of(DType::I32)),
            ..one_by_one(&[5, 5], uniform([2, 1]))
        },
        one_by_one(&[-1, 3], uniform([2, 1])),
        one_by_one(&[4, 3], uniform([2, 3])).fails("`X`: a shape that broadcasts to [4, 3] is needed"),
        one_by_one(&[-2, 3], uniform([2, 3])).fails("attribute `shape`: -2 is not a dimension"),
        ExpandV2 { shape_input: Some(uniform([2])), ..expand_v2(uniform([3]), vec![]) }
            .fails("`Shape`: int32 or int64 is needed"),
        expand_v2(uniform([2, 3]), vec![4, 3]).fails("`X`: a shape that broadcasts to [4, 3] is needed"),
        expand_v2(uniform([2, 3]), vec![3]).fails("`X`: a shape that broadcasts to [3] is needed"),
        expand_v2(uniform([3]), vec![-1, 3]).fails("attribute `shape`: -1 is not a dimension"),
    ]
);

fn expand_v2(x: Draw, shape: Vec<i32>) -> ExpandV2<Draw> {
    ExpandV2 { x, shape_input: None, expand_shapes_tensor: vec![], out: out(), shape }
}

fn one_by_one(shape: &[i64], x: Draw) -> ExpandV2<Draw> {
    let expand_shapes_tensor = shape.iter().map(|n| integers(&[*n])).collect();
    ExpandV2 { expand_shapes_tensor, ..expand_v2(x, vec![]) }
}

/// The integers of a tensor, or else of a list, or else of an attribute, whose entries above 0 are also those that are
/// not known yet.
fn entries(list: &[Meta], tensor: Option<&Meta>, attr: &[i32]) -> Result<ConstantInts> {
    let mut entries = constant_ints_of_tensor(tensor, list, attr.iter().map(|n| i64::from(*n)))?;
    if entries.len() == attr.len() {
        let unknown = entries.iter_mut().zip(attr).filter(|(n, attr)| n.is_none() && **attr > 0);
        unknown.for_each(|(n, attr)| *n = Some((*attr).into()));
    }
    Ok(entries)
}

/// The result's shape for the given one.
pub(super) fn expanded(x: &Meta, shape: &[Option<i64>]) -> Result<Dims> {
    let shown = || shape.iter().map(|n| n.unwrap_or(-1)).collect::<Vec<_>>();
    let refuse = || x.wrong(&format!("a shape that broadcasts to {:?} is needed", shown()));
    let added = shape.len().checked_sub(x.rank()).ok_or_else(refuse)?;
    let mut dims = Dims::default();
    for (i, n) in shape.iter().enumerate() {
        let own = i.checked_sub(added).map(|axis| x.dims[axis]);
        let Some(n) = n else {
            dims.push(Dim::UNKNOWN);
            continue;
        };
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
#[register_op(grad_of = ExpandV2, grad = Multilinear, inferred, infallible)]
pub struct ExpandV2Grad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    #[input(constant)]
    pub shape_input: Option<V>,
    #[input(constant)]
    pub expand_shapes_tensor: Vec<V>,
    pub dout: V,
    #[output]
    pub dx: V,
    pub shape: Vec<i32>,
}
impl Kernel for ExpandV2Grad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        sum_to(cx, self.x.dims(), &self.dout, &mut self.dx)
    }
}
impl Composition for ExpandV2Grad<Expr> {
    fn compose(&mut self) {
        self.dx = sum_like(&self.dout, &self.x);
    }
}

/// `dout`, summed over the dimensions in which it repeats `x`: the gradient of a term that broadcasts, in which the
/// sums are part of the formula.
pub(super) fn sum_like(dout: &Expr, x: &Expr) -> Expr {
    let (x, y) = (dout.into(), x.into());
    let op = ElementwiseAddGrad { dout: dout.into(), x, y, dx: None, dy: Some(New), axis: -1 };
    emit(op).dy.unwrap_or_else(|| dout.clone())
}

/// Sums `dout` to the shape of `x`, which broadcasts to that of `dout`.
pub(super) fn sum_to(cx: &Cx, x: &[usize], dout: &Buf<'_>, dx: &mut Buf<'_>) -> Result<()> {
    let full = dout.dims();
    let added = full.len() - x.len();
    let is_repeated = |axis: usize| axis.checked_sub(added).is_none_or(|own| x[own] != full[axis]);
    let repeated = (0..full.len()).fold(0, |bits, axis| bits | u64::from(is_repeated(axis)) << axis);
    with_float!(dout, T => {
        ReductionTiling::of(full, repeated).reduce::<T>(cx, dout.slice()?, dx.slice_mut()?, 1.0);
        Ok(())
    })
}

/// Repeats a tensor along its dimensions: `out[i] = x[i mod n]`.
#[register_op(grad = TileGrad, infallible, any_dtype)]
pub struct Tile<V = Var> {
    /// Any shape, any dtype.
    #[input]
    pub x: V,
    /// The repetitions, in place of attribute `repeat_times`: int32 or int64, of one dimension.
    #[input("RepeatTimes", constant)]
    pub repeat_times_input: Option<V>,
    /// The repetitions, in place of attribute `repeat_times`: int32 or int64, one element each.
    #[input("repeat_times_tensor", constant)]
    pub repeat_times_tensor: Vec<V>,
    /// Each dimension of `x` times its repetitions; at most 9 dimensions.
    #[output]
    pub out: V,
    /// Repetitions of each dimension; the shorter of shape and list is extended with 1 in front.
    #[attr]
    pub repeat_times: Vec<i32>,
}
impl Infer for Tile<Meta> {
    fn infer(&mut self) -> Result<()> {
        let times = entries(&self.repeat_times_tensor, self.repeat_times_input.as_ref(), &self.repeat_times)?;
        self.out.set(self.x.dtype, tiled(&self.x, &times)?);
        few_dims(&self.out)
    }
}
impl Kernel for Tile<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_dtype!(self.x.dtype(), T => {
            let mut loops = StridedLayout::default();
            let mut stride = self.x.numel();
            let (dims, rank) = rounds(self.x.dims(), self.out.dims());
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
impl Composition for Tile<Expr> {
    fn compose(&mut self) {
        let (tensor, attr) = (self.repeat_times_input.as_ref(), self.repeat_times.iter());
        let mut times = given_integers(tensor, &self.repeat_times_tensor, attr.map(|n| i64::from(*n)));
        let (mut dims, mut out) = (all_sizes(&self.x), self.x.clone());
        let rank = dims.len().max(times.len());
        for short in [&mut times, &mut dims] {
            short.splice(..0, vec![DimExpr::from(1); rank - short.len()]);
        }
        // Each repetition is a dimension before those that it repeats.
        for axis in (0..rank).rev().filter(|axis| times[*axis].known() != Some(1)) {
            let (outer, inner) = (product(&dims[..axis]), product(&dims[axis..]));
            let part = out.reshape_to(&[outer.clone(), 1.into(), inner.clone()]);
            out = part.expand_to(&[outer, times[axis].clone(), inner]);
            dims[axis] = product(&[dims[axis].clone(), times[axis].clone()]);
        }
        self.out = out.reshape_to(&dims);
    }
}
autobwd::samples!(
    Tile,
    [
        tile(uniform([2, 3]), vec![2, 1]),
        tile(uniform([2, 3]), vec![3, 4]),
        tile(uniform([2, 3, 4]), vec![2]),
        tile(uniform([3]), vec![2, 4, 1]),
        tile(uniform([1, 3]), vec![2, 2]),
        tile(uniform([]), vec![2, 3]),
        tile(uniform([]), vec![]),
        tile(uniform([0, 3]), vec![2, 2]),
        tile(uniform([2, 3]), vec![0, 1]),
        tile(integers_below(9, [3]).of(DType::U8), vec![2]),
        Tile { repeat_times_input: Some(integers(&[2, 4, 1])), ..tile(uniform([3]), vec![]) }
            .known_dims("the number of repetitions decides about the rank"),
        Tile {
            repeat_times_tensor: vec![integers(&[3]), integers(&[2]).of(DType::I32)],
            ..tile(uniform([2, 3]), vec![-1, 2])
        },
        Tile { repeat_times_input: Some(integers(&[-1])), ..tile(uniform([2, 3]), vec![]) }
            .fails("attribute `repeat_times`: must be at least 0, is -1"),
        Tile { repeat_times_tensor: vec![integers(&[2, 3])], ..tile(uniform([2, 3]), vec![]) }
            .fails("`repeat_times_tensor`: one element is needed"),
        tile(uniform([2, 3]), vec![1, -1]).fails("attribute `repeat_times`: must be at least 0, is -1"),
        tile(uniform([3]), vec![1; 10]).fails("`Out`: at most 9 dimensions are possible"),
    ]
);

fn tile(x: Draw, repeat_times: Vec<i32>) -> Tile<Draw> {
    Tile { x, repeat_times_input: None, repeat_times_tensor: vec![], out: out(), repeat_times }
}

fn tiled(x: &Meta, repeat_times: &[Option<i64>]) -> Result<Dims> {
    let rank = x.rank().max(repeat_times.len());
    let mut dims = Dims::default();
    for axis in 0..rank {
        let own = (axis + x.rank()).checked_sub(rank).map_or(Dim::from(1), |own| x.dims[own]);
        let times = (axis + repeat_times.len()).checked_sub(rank).map_or(Some(1), |own| repeat_times[own]);
        let refuse = |times: i64| Error::attr("repeat_times", format!("must be at least 0, is {times}"));
        let times = times.map(|times| usize::try_from(times).map_err(|_| refuse(times))).transpose()?;
        dims.push(own * times.map_or(Dim::UNKNOWN, Dim::from));
    }
    Ok(dims)
}

/// For each dimension of the result: repetitions and size in `x`; and the number of dimensions.
fn rounds(x: &[usize], full: &[usize]) -> ([usize; 2 * MAX_RANK], usize) {
    let (rank, mut rounds) = (full.len(), [1; 2 * MAX_RANK]);
    for (axis, full) in full.iter().enumerate() {
        let n = (axis + x.len()).checked_sub(rank).map_or(1, |own| x[own]);
        // Without elements in `x`, there are none in the result.
        rounds[2 * axis] = full.checked_div(n).unwrap_or(1);
        rounds[2 * axis + 1] = n;
    }
    (rounds, rank)
}

/// `dx = dout`, summed over the repetitions.
#[register_op(grad_of = Tile, grad = Multilinear, inferred, infallible)]
pub struct TileGrad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    #[input(constant)]
    pub repeat_times_input: Option<V>,
    #[input(constant)]
    pub repeat_times_tensor: Vec<V>,
    pub dout: V,
    #[output]
    pub dx: V,
    pub repeat_times: Vec<i32>,
}
impl Kernel for TileGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.dout, T => {
            let (dims, rank) = rounds(self.x.dims(), self.dout.dims());
            // Every other dimension is a repetition.
            let repeated = u64::MAX / 3;
            let cut = ReductionTiling::of(&dims[..2 * rank], repeated);
            cut.reduce::<T>(cx, self.dout.slice()?, self.dx.slice_mut()?, 1.0);
            Ok(())
        })
    }
}
