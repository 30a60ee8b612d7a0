//! `set_value`: a slice of a tensor written, composed of other operators.

use autobwd::{
    Composed, Composition, DType, Dims, Error, Expr, Infer, Meta, Result, Var, check::*, register_op,
    tensor::Dim,
};

use crate::{
    Math, concat,
    math::{DimExpr, all_sizes, filled, like, positions},
};

/// A slice replaced: `out[starts + i * steps] = value_tensor[i]` up to the ends, exclusive, along each of `axes`, and
/// `out = input` elsewhere.
///
/// Negative bounds count from the end, and bounds out of range are clamped. With a negative step, the end −1 means below the
/// first element.
#[register_op(grad = Composed, composed)]
pub struct SetValue<V = Var> {
    /// Any shape, any dtype.
    #[input]
    pub input: V,
    /// A shape that broadcasts to the slice's, without `decrease_axes` and with `none_axes`; same dtype.
    #[input]
    pub value_tensor: V,
    /// Same shape as `input`.
    #[output]
    pub out: V,
    /// The dimensions to slice; negative ones count from the end.
    #[attr]
    pub axes: Vec<i64>,
    /// The start, for each of `axes`.
    #[attr(default = [])]
    pub starts: Vec<i64>,
    /// The end, exclusive, for each of `axes`.
    #[attr(default = [])]
    pub ends: Vec<i64>,
    /// The step, not 0, for each of `axes`.
    #[attr(default = [])]
    pub steps: Vec<i64>,
    /// Dimensions of the slice, of length 1, that the value does not have.
    #[attr(default = [])]
    pub decrease_axes: Vec<i64>,
    /// Dimensions of length 1 that the value has in addition, each by the dimension of the slice that it precedes.
    #[attr(default = [])]
    pub none_axes: Vec<i64>,
    /// Accepted for compatibility: the dtype of `input`.
    #[attr(default = DType::F32)]
    pub dtype: DType,
}
impl<V> SetValue<V> {
    /// What is sliced along a dimension, by the place of the dimension in `axes`.
    fn cuts(&self, rank: usize) -> Vec<Option<Cut>> {
        let cut = |axis: usize| {
            let at = self.axes.iter().position(|at| at.rem_euclid(rank as i64) == axis as i64)?;
            Some(Cut { start: *self.starts.get(at)?, end: *self.ends.get(at)?, step: *self.steps.get(at)? })
        };
        (0..rank).map(cut).collect()
    }

    /// For each dimension of the value, the dimension of the slice, or none for an additional one.
    fn value_axes(&self, rank: usize) -> Vec<Option<usize>> {
        let mut none_axes = self.none_axes.clone();
        none_axes.sort_unstable();
        let mut nones = none_axes.into_iter().peekable();
        let mut all = vec![];
        for axis in 0..rank {
            while nones.next_if(|none| *none <= axis as i64).is_some() {
                all.push(None);
            }
            if !self.decrease_axes.contains(&(axis as i64)) {
                all.push(Some(axis));
            }
        }
        all.extend(nones.map(|_| None));
        all
    }
}
impl Infer for SetValue<Meta> {
    fn infer(&mut self) -> Result<()> {
        let (input, rank) = (&self.input, self.input.rank());
        for (i, axis) in self.axes.iter().enumerate() {
            let at = input.axis("axes", *axis)?;
            if self.axes[..i].iter().any(|other| other.rem_euclid(rank as i64) == at as i64) {
                return Err(Error::attr("axes", format!("{axis} is given twice")));
            }
        }
        for (name, given) in [("starts", &self.starts), ("ends", &self.ends), ("steps", &self.steps)] {
            if given.len() != self.axes.len() {
                return Err(Error::attr(name, "one element for each of `axes` is needed"));
            }
        }
        if self.steps.contains(&0) {
            return Err(Error::attr("steps", "0 is not a step"));
        }
        let cuts = self.cuts(rank);
        let sizes = input.dims.iter().zip(&cuts).map(|(n, cut)| match cut {
            Some(cut) => n.get().and_then(|n| cut.within(&(n as i64).into()).1.known()),
            None => n.get().map(|n| n as i64),
        });
        let sizes: Vec<Option<usize>> = sizes.map(|n| n.and_then(|n| usize::try_from(n).ok())).collect();
        for axis in &self.decrease_axes {
            let at = usize::try_from(*axis).ok().filter(|at| *at < rank);
            let size = at.map(|at| sizes[at]).ok_or_else(|| {
                Error::attr("decrease_axes", format!("{axis} is not a dimension of the slice"))
            })?;
            if let Some(size) = size.filter(|size| *size != 1) {
                let text = format!("dimension {axis} of the slice is {size}, not 1");
                return Err(Error::attr("decrease_axes", text));
            }
        }
        let of_value = self.value_axes(rank);
        let dims: Vec<Option<usize>> =
            of_value.iter().map(|axis| axis.map_or(Some(1), |axis| sizes[axis])).collect();
        let dims: Dims = dims.iter().map(|n| n.map_or(Dim::UNKNOWN, Dim::from)).collect();
        let value = &self.value_tensor;
        value.same_dtype(input)?;
        let fits = dims.len() >= value.rank()
            && value
                .dims
                .iter()
                .rev()
                .zip(dims.iter().rev())
                .all(|(own, n)| own.agrees(1.into()) || own.agrees(*n));
        value.require(fits, || format!("a shape that broadcasts to {dims} is needed"))?;
        self.out.like(&self.input);
        Ok(())
    }
}
impl Composition for SetValue<Expr> {
    fn compose(&mut self) {
        let (input, builder) = (&self.input, self.input.builder());
        let dims = all_sizes(input);
        let cuts = self.cuts(dims.len());
        let ranges: Vec<Option<(DimExpr, DimExpr, i64)>> = cuts
            .iter()
            .zip(&dims)
            .map(|(cut, n)| {
                let cut = cut.as_ref()?;
                let (start, count) = cut.within(n);
                Some((start, count, cut.step))
            })
            .collect();
        let size =
            |axis: usize| ranges[axis].as_ref().map_or(dims[axis].clone(), |(_, count, _)| count.clone());
        // The value in the shape of the slice.
        let of_value = self.value_axes(dims.len());
        let target: Vec<DimExpr> = of_value.iter().map(|axis| axis.map_or(1.into(), size)).collect();
        let added: Vec<i32> =
            (0..).zip(&of_value).filter(|(_, axis)| axis.is_none()).map(|(at, _)| at).collect();
        let mut value = self.value_tensor.expand_to(&target);
        if !added.is_empty() {
            value = value.squeeze(&added);
        }
        let dropped: Vec<i32> =
            (0..dims.len()).filter(|axis| !of_value.contains(&Some(*axis))).map(|axis| axis as i32).collect();
        if !dropped.is_empty() {
            value = value.unsqueeze(&dropped);
        }
        let mut is_set = None;
        for (axis, range) in ranges.iter().enumerate() {
            let Some((start, count, step)) = range else { continue };
            let number = |n: &DimExpr| n.number(builder);
            let steps = number(&step.saturating_abs().into());
            let place = positions(builder, &dims[axis]);
            let distance = if *step > 0 { place - number(start) } else { number(start) - place };
            let index = distance.floor_divide(&steps);
            let zero = like(&distance, 0.0);
            let is_there = distance.remainder(&steps).equal(&zero);
            let is_there = is_there.logical_and(&index.greater_equal(&zero));
            let is_there = is_there.logical_and(&index.less_than(&(&zero + number(count))));
            // Others read an element after the slice.
            let index = is_there.where_cond(&index, &(&zero + number(count)));
            let mut one = all_sizes(&value);
            one[axis] = 1.into();
            let after = filled(builder, value.dtype(), "0", &one);
            value = concat(&[&value, &after], axis as i32).gather(&index, axis as i32);
            let axes: Vec<i32> = (1..(dims.len() - axis) as i32).collect();
            let is_there = is_there.unsqueeze(&axes);
            is_set = Some(match is_set {
                Some(others) => is_there.cast(DType::I32) * others,
                None => is_there.cast(DType::I32),
            });
        }
        self.out = match is_set {
            Some(is_set) => is_set.cast(DType::Bool).where_cond(&value, input),
            None => value,
        };
    }
}
autobwd::samples!(
    SetValue,
    [
        set_value(uniform([4, 5]), uniform([2, 5]), &[(0, 1, 3, 1)]),
        set_value(uniform([4, 5]), uniform([2, 1]), &[(0, 3, -9, -2), (1, -4, 9, 2)]),
        set_value(uniform([2, 7]), uniform([3]), &[(-1, 1, 6, 2)]),
        set_value(uniform([2, 5]), uniform([3]), &[(1, 4, -1, -2)]),
        set_value(uniform([2, 5]), uniform([]), &[(1, -100, 100, 1)]),
        set_value(uniform([2, 5]), uniform([2, 0]), &[(1, 3, 2, 1)]),
        set_value(uniform([2, 3]), uniform([3]), &[]),
        set_value(uniform([]), uniform([]), &[]),
        set_value(uniform([0, 3]), uniform([0, 2]), &[(1, 0, 2, 1)]),
        set_value(integers_below(9, [4, 3]), integers_below(9, [1, 3]), &[(0, 2, 3, 1)]),
        SetValue {
            decrease_axes: vec![1],
            ..set_value(uniform([2, 4, 3]), uniform([2, 3]), &[(1, 2, 3, 1)])
        },
        SetValue {
            none_axes: vec![1],
            decrease_axes: vec![0],
            ..set_value(uniform([3, 4]), uniform([1, 2]), &[(0, 1, 2, 1), (1, 1, 3, 1)])
        },
        SetValue {
            none_axes: vec![0, 2],
            ..set_value(uniform([3, 4]), uniform([1, 2, 4, 1]), &[(0, 1, 3, 1)])
        },
        SetValue { none_axes: vec![2], ..set_value(uniform([3, 4]), uniform([2, 4, 1]), &[(0, 1, 3, 1)]) },
        SetValue { dtype: DType::F64, ..set_value(uniform([3]), uniform([1]), &[(0, 1, 2, 1)]) },
        set_value(uniform([4, 5]), uniform([3, 5]), &[(0, 1, 3, 1)])
            .fails("`ValueTensor`: a shape that broadcasts to [2, 5] is needed"),
        set_value(uniform([4]), integers_below(9, [1]), &[(0, 1, 3, 1)])
            .fails("`ValueTensor`: dtype int64 does not match"),
        set_value(uniform([4]), uniform([1]), &[(0, 1, 3, 0)]).fails("attribute `steps`: 0 is not a step"),
        set_value(uniform([4]), uniform([1]), &[(1, 1, 3, 1)]).fails("attribute `axes` = 1"),
        set_value(uniform([4]), uniform([1]), &[(0, 1, 3, 1), (-1, 1, 3, 1)])
            .fails("attribute `axes`: -1 is given twice"),
        SetValue { ends: vec![], ..set_value(uniform([4]), uniform([1]), &[(0, 1, 3, 1)]) }
            .fails("attribute `ends`: one element for each of `axes` is needed"),
        SetValue { decrease_axes: vec![0], ..set_value(uniform([4]), uniform([1]), &[(0, 1, 3, 1)]) }
            .fails("attribute `decrease_axes`: dimension 0 of the slice is 2, not 1"),
        SetValue { decrease_axes: vec![1], ..set_value(uniform([4]), uniform([1]), &[(0, 1, 2, 1)]) }
            .fails("attribute `decrease_axes`: 1 is not a dimension of the slice"),
    ]
);

fn set_value(input: Draw, value_tensor: Draw, cuts: &[(i64, i64, i64, i64)]) -> SetValue<Draw> {
    SetValue {
        input,
        value_tensor,
        out: out(),
        axes: cuts.iter().map(|cut| cut.0).collect(),
        starts: cuts.iter().map(|cut| cut.1).collect(),
        ends: cuts.iter().map(|cut| cut.2).collect(),
        steps: cuts.iter().map(|cut| cut.3).collect(),
        decrease_axes: vec![],
        none_axes: vec![],
        dtype: DType::F32,
    }
}

/// A slice of one dimension.
struct Cut {
    start: i64,
    end: i64,
    step: i64,
}

impl Cut {
    /// The first position and the number of positions in a dimension of length `n`.
    fn within(&self, n: &DimExpr) -> (DimExpr, DimExpr) {
        let Cut { start, end, step } = *self;
        let from_the_front = |bound: i64| if bound < 0 { n + bound } else { bound.into() };
        let start = from_the_front(start).max(0);
        if step > 0 {
            let (start, end) = (start.min(n.clone()), from_the_front(end).max(0).min(n.clone()));
            let count = (end - &start + (step - 1)).max(0) / step;
            return (start, count);
        }
        let step = step.saturating_neg();
        let start = start.min(n - 1);
        // Only ends below −1 count from the end.
        let end = if end < -1 { n + end } else { end.into() };
        let count = (&start - end.max(-1) + (step - 1)).max(0) / step;
        (start, count)
    }
}
