//! `repeat_interleave`, `reverse`, `broadcast_tensors` and `multiplex`: elements at other places, composed
//! of other operators.

use autobwd::{
    Composed, Composition, DType, Error, ErrorKind, Expr, Infer, Meta, New, Result, Var,
    check::*,
    emit,
    op::SelfAdjoint,
    operators::{constant_ints, few_dims, same_count},
    register_op,
    tensor::Dim,
};

use crate::{
    Math,
    fill::FillAnyLike,
    gather::are_numbers,
    kernel_helpers::broadcast,
    math::{DimExpr, all_sizes, positions},
    search::Searchsorted,
    shape::ExpandAsV2,
    stack,
};

/// Repeats each slice along a dimension: `out[.., repeats * i + j, ..] = x[.., i, ..]` for `j < repeats`.
#[register_op(grad = Composed, composed)]
pub struct RepeatInterleave<V = Var> {
    /// At least one dimension, any dtype.
    #[input]
    pub x: V,
    /// How often each slice is repeated, in place of attribute `Repeats`: int32 or int64, one number for all slices or
    /// `[n]` for `n` slices.
    #[input(constant)]
    pub repeats_tensor: Option<V>,
    /// `x` with the sum of all repetitions in place of dimension `dim`.
    #[output]
    pub out: V,
    /// How often each slice is repeated, at least once.
    #[attr("Repeats", default = 0)]
    pub repeats: i32,
    /// The dimension; negative counts from the end.
    #[attr(default = 0)]
    pub dim: i32,
}
impl Infer for RepeatInterleave<Meta> {
    fn infer(&mut self) -> Result<()> {
        let axis = self.x.axis("dim", self.dim.into())?;
        let (mut dims, n) = (self.x.dims.clone(), self.x.dims[axis]);
        let given = self.repeats_tensor.as_ref();
        let repeats = constant_ints(&[], given, [i64::from(self.repeats)].into_iter())?;
        let Some(tensor) = given else {
            let Some(repeats) = usize::try_from(self.repeats).ok().filter(|n| *n > 0) else {
                return Err(Error::attr("Repeats", format!("at least 1 is needed, not {}", self.repeats)));
            };
            dims[axis] = n * Dim::from(repeats);
            self.out.set(self.x.dtype, dims);
            return Ok(());
        };
        let fits = tensor.rank() < 2 && (repeats.len() == 1 || n.agrees(Dim::from(repeats.len())));
        tensor.require(fits, || format!("one number for each of {n} slices is needed"))?;
        let lengths = repeats.iter().map(|repeats| match repeats {
            Some(repeats) => {
                let refuse =
                    || tensor.wrong(&format!("a number of repetitions is needed, {repeats} is none"));
                usize::try_from(*repeats).map(Dim::from).map_err(|_| refuse())
            }
            None => Ok(Dim::UNKNOWN),
        });
        let sum = lengths.reduce(|sum, length| Ok(sum? + length?)).unwrap_or(Ok(Dim::from(0)))?;
        dims[axis] = if repeats.len() == 1 { n * sum } else { sum };
        self.out.set(self.x.dtype, dims);
        Ok(())
    }
}
impl Composition for RepeatInterleave<Expr> {
    fn compose(&mut self) {
        let rank = self.x.dims().len() as i32;
        let axis = self.dim.rem_euclid(rank);
        let n = self.x.dim(axis);
        let Some(repeats) = &self.repeats_tensor else {
            let each = self.x.unsqueeze(&[axis + 1]);
            let mut dims = all_sizes(&each);
            dims[axis as usize + 1] = i64::from(self.repeats).into();
            self.out = each.expand_to(&dims).flatten(axis, axis + 1);
            return;
        };
        let repeats = repeats.cast(DType::I64).flatten(0, -1).expand_to(&[n]);
        // Slice `i` ends where the first `i + 1` numbers of repetitions add up to.
        let length = DimExpr::only_element(&repeats.sum(&[]));
        let (sorted_sequence, values) =
            (repeats.cumsum(0).into(), positions(self.x.builder(), &length).into());
        let op = Searchsorted { sorted_sequence, values, out: New, right: true, out_int32: false };
        self.out = self.x.gather(&emit(op).out, axis);
    }
}
autobwd::samples!(
    RepeatInterleave,
    [
        repeat_interleave(uniform([2, 3]), 2, 0),
        repeat_interleave(uniform([2, 3, 4]), 3, -2),
        repeat_interleave(uniform([4]), 1, 0),
        repeat_interleave(uniform([2, 0]), 2, 1),
        repeat_interleave(integers_below(9, [3, 2]), 2, 1),
        RepeatInterleave {
            repeats_tensor: Some(integers(&[2, 0, 3])),
            ..repeat_interleave(uniform([2, 3]), 0, 1)
        },
        RepeatInterleave {
            repeats_tensor: Some(integers(&[2]).of(DType::I32)),
            ..repeat_interleave(uniform([3, 2]), 0, 0)
        },
        RepeatInterleave { repeats_tensor: Some(integers(&[2, 1])), ..repeat_interleave(uniform([3]), 0, 0) }
            .fails("`RepeatsTensor`: one number for each of 3 slices is needed"),
        RepeatInterleave {
            repeats_tensor: Some(integers(&[2, -1])),
            ..repeat_interleave(uniform([2]), 0, 0)
        }
        .fails("`RepeatsTensor`: a number of repetitions is needed, -1 is none"),
        RepeatInterleave { repeats_tensor: Some(uniform([2])), ..repeat_interleave(uniform([2]), 0, 0) }
            .fails("`RepeatsTensor`: int32 or int64 is needed"),
        repeat_interleave(uniform([2]), 0, 0).fails("attribute `Repeats`: at least 1 is needed, not 0"),
        repeat_interleave(uniform([2]), 2, 1).fails("attribute `dim` = 1"),
    ]
);

fn repeat_interleave(x: Draw, repeats: i32, dim: i32) -> RepeatInterleave<Draw> {
    RepeatInterleave { x, repeats_tensor: None, out: out(), repeats, dim }
}

/// Reverses dimensions, as `flip`: `out[i] = x[n - 1 - i]` along each `axis`.
#[register_op(grad = SelfAdjoint, composed)]
pub struct Reverse<V = Var> {
    /// Any shape of at most 9 dimensions, any dtype.
    #[input]
    pub x: V,
    /// Same shape and dtype.
    #[output]
    pub out: V,
    /// The dimensions to reverse; negative counts from the end.
    #[attr]
    pub axis: Vec<i32>,
}
impl Infer for Reverse<Meta> {
    fn infer(&mut self) -> Result<()> {
        few_dims(&self.x)?;
        for (i, axis) in self.axis.iter().enumerate() {
            let at = self.x.axis("axis", (*axis).into())?;
            if self.axis[..i].iter().any(|other| self.x.axis("axis", (*other).into()).is_ok_and(|n| n == at))
            {
                return Err(Error::attr("axis", format!("{axis} is given twice")));
            }
        }
        self.out.like(&self.x);
        Ok(())
    }
}
impl Composition for Reverse<Expr> {
    fn compose(&mut self) {
        self.out = self.x.flip(&self.axis);
    }
}
autobwd::samples!(
    Reverse,
    [
        Reverse { x: uniform([5]), out: out(), axis: vec![0] },
        Reverse { x: uniform([2, 3, 4]), out: out(), axis: vec![-1, 0] },
        Reverse { x: uniform([0, 3]), out: out(), axis: vec![1] },
        Reverse { x: uniform([]), out: out(), axis: vec![] },
        Reverse { x: integers_below(9, [4, 3]), out: out(), axis: vec![0] },
        Reverse { x: uniform([2, 3]), out: out(), axis: vec![2] }.fails("attribute `axis` = 2"),
        Reverse { x: uniform([2, 3]), out: out(), axis: vec![1, -1] }
            .fails("attribute `axis`: -1 is given twice"),
    ]
);

/// Tensors in one shape: each repeats its dimensions of size 1, and has dimensions added in front.
#[register_op(grad = Composed, composed)]
pub struct BroadcastTensors<V = Var> {
    /// At least one tensor, all of one dtype, any; their shapes broadcast.
    #[input]
    pub x: Vec<V>,
    /// Each tensor in the broadcast shape, of at most 9 dimensions.
    #[output]
    pub out: Vec<V>,
}
impl Infer for BroadcastTensors<Meta> {
    fn infer(&mut self) -> Result<()> {
        let Some(first) = self.x.first() else {
            return Err(Error::new(ErrorKind::Slot, "`X`: at least one variable is needed"));
        };
        same_count("Out", self.out.len(), self.x.len())?;
        let mut all = first.clone();
        for x in &self.x {
            x.same_dtype(first)?;
            all.dims = broadcast(&all, x, -1)?;
        }
        few_dims(&all)?;
        self.out.iter_mut().for_each(|out| out.like(&all));
        Ok(())
    }
}
impl Composition for BroadcastTensors<Expr> {
    fn compose(&mut self) {
        // The sum of zeros has the shape, which only a run may know.
        let zeros =
            |x: &Expr| emit(FillAnyLike { x: x.into(), out: New, value: 0.0, dtype: Some(DType::F32) }).out;
        let Some(all) = self.x.iter().map(zeros).reduce(|sum, x| sum + x) else { return };
        let expand = |x: &Expr| {
            emit(ExpandAsV2 { x: x.into(), y: Some((&all).into()), out: New, target_shape: vec![] }).out
        };
        self.out = self.x.iter().map(expand).collect();
    }
}
autobwd::samples!(
    BroadcastTensors,
    [
        broadcast_tensors(vec![uniform([2, 1]), uniform([3])]),
        broadcast_tensors(vec![uniform([4, 1, 3]), uniform([2, 1]), uniform([])]),
        broadcast_tensors(vec![uniform([2, 3])]),
        broadcast_tensors(vec![uniform([0, 3]), uniform([1, 3])]),
        broadcast_tensors(vec![integers_below(9, [2, 1]), integers_below(9, [3])]),
        broadcast_tensors(vec![]).fails("`X`: at least one variable is needed"),
        broadcast_tensors(vec![uniform([2, 3]), uniform([4])])
            .fails("`X`: a shape that broadcasts with [2, 3] of `X` is needed"),
        broadcast_tensors(vec![uniform([3]), integers_below(9, [3])])
            .fails("`X`: dtype int64 does not match"),
        BroadcastTensors { x: vec![uniform([3])], out: vec![] }.fails("`Out`: 1 variables are needed, not 0"),
    ]
);

fn broadcast_tensors(x: Vec<Draw>) -> BroadcastTensors<Draw> {
    BroadcastTensors { out: x.iter().map(|_| out()).collect(), x }
}

/// Chooses each row from one of several tensors: `out[i] = x[ids[i]][i]`.
#[register_op(grad = Composed, composed)]
pub struct Multiplex<V = Var> {
    /// At least one tensor, all of one shape of at least one dimension, and of one dtype, any.
    #[input]
    pub x: Vec<V>,
    /// The number of the tensor of each row, int32 or int64, `[n, 1]` or `[n]` for `n` rows.
    #[input]
    pub ids: V,
    /// Same shape as each `x`.
    #[output]
    pub out: V,
}
impl Infer for Multiplex<Meta> {
    fn infer(&mut self) -> Result<()> {
        let Some(first) = self.x.first() else {
            return Err(Error::new(ErrorKind::Slot, "`X`: at least one variable is needed"));
        };
        first.require(first.rank() > 0, || "at least one dimension is needed".into())?;
        self.x.iter().try_for_each(|x| x.same_as(first))?;
        are_numbers(&self.ids)?;
        let rows = first.dims[0];
        let fits = match &self.ids.dims[..] {
            [n] => n.agrees(rows),
            [n, one] => n.agrees(rows) && one.agrees(1.into()),
            _ => false,
        };
        self.ids.require(fits, || format!("one number for each of {rows} rows is needed"))?;
        self.out.like(first);
        Ok(())
    }
}
impl Composition for Multiplex<Expr> {
    fn compose(&mut self) {
        let all = stack(&self.x.iter().collect::<Vec<_>>(), 0);
        let n = all.dim(1);
        let row = positions(all.builder(), &n);
        // A number that no tensor has leads beyond all rows.
        let rows = self.ids.cast(DType::I64).flatten(0, -1) * &n.number(all.builder()) + row;
        self.out = all.flatten(0, 1).gather(&rows, 0);
    }
}
autobwd::samples!(
    Multiplex,
    [
        multiplex(vec![uniform([4, 3]), uniform([4, 3])], integers_below(2, [4, 1]).of(DType::I32)),
        multiplex(vec![uniform([5]), uniform([5]), uniform([5])], integers_below(3, [5])),
        multiplex(vec![uniform([2, 3, 4])], integers_below(1, [2, 1])),
        multiplex(vec![uniform([0, 3]), uniform([0, 3])], integers_below(2, [0, 1])),
        multiplex(vec![integers_below(9, [4, 2]), integers_below(9, [4, 2])], integers_below(2, [4, 1])),
        multiplex(vec![uniform([2, 3]), uniform([2, 3])], given([2, 1], [0.0, 2.0]).of(DType::I64))
            .fails("5 is not within 0..4"),
        multiplex(vec![], integers_below(2, [4, 1])).fails("`X`: at least one variable is needed"),
        multiplex(vec![uniform([])], integers_below(1, [1])).fails("`X`: at least one dimension is needed"),
        multiplex(vec![uniform([2]), uniform([3])], integers_below(2, [2]))
            .fails("`X`: shape [3] does not match"),
        multiplex(vec![uniform([2])], integers_below(1, [3]))
            .fails("`Ids`: one number for each of 2 rows is needed"),
        multiplex(vec![uniform([2])], uniform([2])).fails("`Ids`: int64 or int32 is needed"),
    ]
);

fn multiplex(x: Vec<Draw>, ids: Draw) -> Multiplex<Draw> {
    Multiplex { x, ids, out: out() }
}
