//! `put_along_axis`: elements written along an axis, composed of other operators.

use autobwd::{
    Builder, Composed, Composition, DType, Expr, Infer, Meta, New, Result, Var, check::*, emit,
    op::attr_enum, register_op,
};

use crate::{
    Math, concat,
    fill::FillAnyLike,
    math::{DimExpr, all_sizes, in_dtype, like, positions},
    scatter::{Scatter, TakeAlongAxis, TakeAlongAxisGrad, check_positions},
};

attr_enum! {
    /// What becomes of an element and the values that are put there.
    pub enum PutReduction {
        /// The last value.
        Assign = "assign",
        /// The sum.
        Add = "add",
        /// The product.
        Mul = "mul",
        /// The product.
        Multiply = "multiply",
        /// The smallest.
        Amin = "amin",
        /// The largest.
        Amax = "amax",
        /// The mean.
        Mean = "mean",
    }
}

/// Values put at positions along an axis, each reduced with what is there:
/// `result[.., index[.., i, ..], ..] = value[.., i, ..]`.
///
/// Where several values have one position, the last one is assigned. Smallest and largest elements that are equal share
/// the gradient.
#[register_op(grad = Composed, composed)]
pub struct PutAlongAxis<V = Var> {
    /// Any shape; any dtype to assign, else signed integers or floating-point numbers.
    #[input]
    pub input: V,
    /// Positions, int64 or int32, in the shape of `input` except for the axis; negative ones count from the end.
    #[input]
    pub index: V,
    /// Same shape as `index`, same dtype as `input`.
    #[input]
    pub value: V,
    /// Same shape as `input`.
    #[output]
    pub result: V,
    /// The dimension; negative counts from the end.
    #[attr("Axis")]
    pub axis: i32,
    /// What becomes of an element and the values that are put there (`assign`, `add`, `mul`, `multiply`, `amin`, `amax`,
    /// `mean`); integers have no `mean`.
    #[attr("Reduce", default = PutReduction::Assign)]
    pub reduce: PutReduction,
    /// Whether the element itself is one of those that are reduced.
    #[attr("Include_self", default = true)]
    pub include_self: bool,
}
impl Infer for PutAlongAxis<Meta> {
    fn infer(&mut self) -> Result<()> {
        check_positions(&self.input, &self.index, self.axis)?;
        match self.reduce {
            PutReduction::Assign => Ok(()),
            PutReduction::Mean => self.input.float(),
            _ => self.input.signed(),
        }?;
        self.value.same_dtype(&self.input)?;
        let dims = &self.index.dims;
        self.value
            .require(self.value.dims.agrees(dims), || format!("the shape of `Index`, {dims}, is needed"))?;
        self.result.like(&self.input);
        Ok(())
    }
}
impl Composition for PutAlongAxis<Expr> {
    fn compose(&mut self) {
        let is_scalar = self.input.dims().is_empty();
        let vector = |x: &Expr| if is_scalar { x.reshape(&[1]) } else { x.clone() };
        let x = vector(&self.input);
        let axis = self.axis.rem_euclid(x.dims().len() as i32);
        let index = from_the_start(&vector(&self.index), &x.dim(axis));
        let put = Put { x, index, value: vector(&self.value), axis, include_self: self.include_self };
        let result = match self.reduce {
            PutReduction::Assign => put.assigned(),
            PutReduction::Add => put.kept(0.0) + put.sum(),
            PutReduction::Mean => {
                let count = in_dtype(&put.counts(), put.x.dtype());
                let own = if self.include_self { like(&count, 1.0) } else { like(&count, 0.0) };
                (put.kept(0.0) + put.sum()) / (count + own).maximum(&like(&put.x, 1.0))
            }
            PutReduction::Mul | PutReduction::Multiply => {
                let product = put.spread(1.0).prod(&[axis + 1]);
                put.kept(1.0) * in_dtype(&product, put.x.dtype())
            }
            PutReduction::Amin => put.candidates(true).amin(&[axis + 1]),
            PutReduction::Amax => put.candidates(false).amax(&[axis + 1]),
        };
        self.result = if is_scalar { result.reshape(&[]) } else { result };
    }
}
autobwd::samples!(
    PutAlongAxis,
    [
        put(uniform([3, 4]), integers_below(4, [3, 2]), uniform([3, 2]), 1, PutReduction::Assign),
        put(
            uniform([4, 2]),
            integers_below(4, [7, 2]).of(DType::I32),
            uniform([7, 2]),
            0,
            PutReduction::Assign
        ),
        put(uniform([2, 3, 4]), integers_below(3, [2, 5, 4]), uniform([2, 5, 4]), -2, PutReduction::Add),
        put(positive([2, 3]), integers_below(3, [2, 4]), positive([2, 4]), 1, PutReduction::Mul),
        alone(put(positive([4, 2]), integers_below(4, [3, 2]), positive([3, 2]), 0, PutReduction::Multiply)),
        put(distinct([2, 3]), integers_below(3, [2, 4]), apart([2, 4]), 1, PutReduction::Amin),
        put(uniform([2, 4]), integers_below(4, [2, 3]), uniform([2, 3]), 1, PutReduction::Mean),
        alone(put(uniform([2, 4]), integers_below(4, [2, 3]), uniform([2, 3]), 1, PutReduction::Add)),
        alone(put(distinct([2, 4]), integers_below(4, [2, 3]), apart([2, 3]), 1, PutReduction::Amax)),
        alone(put(uniform([4, 2]), integers_below(4, [3, 2]), uniform([3, 2]), 0, PutReduction::Mean)),
        put(
            uniform([5]),
            given([3], [-1.0, 0.0, -5.0]).of(DType::I64),
            uniform([3]),
            0,
            PutReduction::Assign
        ),
        put(uniform([]), given([], [0.0]).of(DType::I64), uniform([]), -1, PutReduction::Add),
        put(uniform([2, 3]), integers_below(3, [2, 0]), uniform([2, 0]), 1, PutReduction::Mul),
        put(uniform([0, 3]), integers_below(3, [0, 2]), uniform([0, 2]), 1, PutReduction::Assign),
        put(integers_below(9, [4]), integers_below(4, [3]), integers_below(9, [3]), 0, PutReduction::Add),
        put(integers_below(9, [4]), integers_below(4, [3]), integers_below(9, [3]), 0, PutReduction::Assign),
        alone(put(
            integers_below(9, [4]).of(DType::I32),
            integers_below(4, [3]),
            integers_below(9, [3]).of(DType::I32),
            0,
            PutReduction::Amax
        )),
        put(
            integers_below(9, [4]).of(DType::I32),
            integers_below(4, [3]),
            integers_below(9, [3]).of(DType::I32),
            0,
            PutReduction::Mul
        ),
        put(
            uniform([3]),
            given([2], [1.0, 1.0]).of(DType::I64),
            given([2], [3.0, 2.0]),
            0,
            PutReduction::Amax
        ),
        put(
            given([2], [1.0, 2.0]),
            given([1], [0.0]).of(DType::I64),
            given([1], [1.0]),
            0,
            PutReduction::Amin
        )
        .not_a_derivative("several share the gradient, which jumps next to the tie"),
        put(
            uniform([2, 3]),
            given([2, 1], [0.0, 3.0]).of(DType::I64),
            uniform([2, 1]),
            1,
            PutReduction::Assign
        )
        .fails("3 is not within 0..3"),
        put(uniform([2, 3]), integers_below(2, [3, 1]), uniform([3, 1]), 1, PutReduction::Assign)
            .fails("`Index`: dimensions [2, -1] are needed"),
        put(uniform([2, 3]), integers_below(2, [2, 2]), uniform([2, 1]), 1, PutReduction::Assign)
            .fails("`Value`: the shape of `Index`, [2, 2], is needed"),
        put(uniform([3]), integers_below(2, [2]), integers_below(2, [2]), 0, PutReduction::Assign)
            .fails("`Value`: dtype int64 does not match"),
        put(integers_below(9, [3]), integers_below(2, [2]), integers_below(2, [2]), 0, PutReduction::Mean)
            .fails("`Input`: floating point numbers are needed"),
        put(
            integers_below(2, [3]).of(DType::Bool),
            integers_below(2, [2]),
            integers_below(2, [2]).of(DType::Bool),
            0,
            PutReduction::Add
        )
        .fails("`Input`: signed or floating point numbers are needed"),
        put(uniform([2, 3]), integers_below(2, [2, 2]), uniform([2, 2]), 2, PutReduction::Add)
            .fails("attribute `Axis` = 2"),
    ]
);

/// Numbers that are not near the ones of `distinct`.
fn apart<const N: usize>(dims: [usize; N]) -> Draw {
    let numel: usize = dims.iter().product();
    given(dims, (0..numel).map(|i| ((i * 7) % numel) as f64 * 0.37 - 1.28))
}

fn put(input: Draw, index: Draw, value: Draw, axis: i32, reduce: PutReduction) -> PutAlongAxis<Draw> {
    PutAlongAxis { input, index, value, result: out(), axis, reduce, include_self: true }
}

/// Without the elements that are there.
fn alone(row: PutAlongAxis<Draw>) -> PutAlongAxis<Draw> {
    PutAlongAxis { include_self: false, ..row }
}

/// Positions as int64, without negative ones.
pub(crate) fn from_the_start(index: &Expr, n: &DimExpr) -> Expr {
    let index = in_dtype(index, DType::I64);
    let n = n.number(index.builder());
    let n = if index.dims().is_empty() { n.reshape(&[]) } else { n };
    index.less_than(&like(&index, 0.0)).where_cond(&(&index + n), &index)
}

/// The places of elements in memory, int64, in the shape of their tensor.
pub(crate) fn memory_places(builder: &Builder, dims: &[DimExpr]) -> Expr {
    let mut places = positions(builder, &1.into()).reshape(&[]);
    let mut distance = DimExpr::from(1);
    for (count, n) in dims.iter().rev().enumerate() {
        let axes: Vec<i32> = (1..=count as i32).collect();
        places = (positions(builder, n) * &distance.number(builder)).unsqueeze(&axes) + places;
        distance = distance * n;
    }
    places
}

/// Values to put along an axis.
struct Put {
    x: Expr,
    index: Expr,
    value: Expr,
    axis: i32,
    include_self: bool,
}

impl Put {
    /// The last value of each position.
    fn assigned(&self) -> Expr {
        // The places also say whether positions are within the axis.
        let (input, index) =
            (memory_places(self.x.builder(), &all_sizes(&self.x)).into(), (&self.index).into());
        let places = emit(TakeAlongAxis { input, index, result: New, axis: self.axis }).result;
        let flat = |x: &Expr| x.flatten(0, -1).into();
        let (x, ids, updates) = (flat(&self.x), flat(&places), flat(&self.value));
        let put = emit(Scatter { x, ids, updates, out: New, overwrite: true }).out;
        put.reshape_to(&all_sizes(&self.x))
    }

    /// Adds up for each element what is at its position.
    fn add_up(&self, x: &Expr, value: &Expr) -> Expr {
        let (input, index, dresult) = (x.into(), (&self.index).into(), value.into());
        emit(TakeAlongAxisGrad { input, index, dresult, dinput: New, axis: self.axis }).dinput
    }

    /// The sum of the values of each position.
    fn sum(&self) -> Expr {
        if self.x.dtype().is_float() {
            return self.add_up(&self.x, &self.value);
        }
        in_dtype(&self.spread(0.0).sum(&[self.axis + 1]), self.x.dtype())
    }

    /// The number of values of each position, float64.
    fn counts(&self) -> Expr {
        let numbers = |x: &Expr, value: f64| {
            emit(FillAnyLike { x: x.into(), out: New, value, dtype: Some(DType::F64) }).out
        };
        self.add_up(&numbers(&self.x, 0.0), &numbers(&self.value, 1.0))
    }

    /// The elements themselves, but `neutral` where values replace them.
    fn kept(&self, neutral: f64) -> Expr {
        if self.include_self {
            return self.x.clone();
        }
        let counts = self.counts();
        counts.greater_than(&like(&counts, 0.0)).where_cond(&like(&self.x, neutral), &self.x)
    }

    /// For each element, all values along a new axis after it, with `neutral` in place of values of other positions.
    fn spread(&self, neutral: f64) -> Expr {
        let place = positions(self.x.builder(), &self.x.dim(self.axis));
        let after: Vec<i32> = (1..=self.x.dims().len() as i32 - self.axis).collect();
        let is_there = self.index.unsqueeze(&[self.axis]).equal(&place.unsqueeze(&after));
        let value = self.value.unsqueeze(&[self.axis]);
        is_there.where_cond(&value, &like(&value, neutral))
    }

    /// For each element, itself and its values along a new axis, with the largest or lowest number in place of others.
    fn candidates(&self, largest: bool) -> Expr {
        let neutral = match (self.x.dtype(), largest) {
            (DType::I32, true) => i32::MAX.into(),
            (DType::I32, false) => i32::MIN.into(),
            (DType::I64, true) => i64::MAX as f64,
            (DType::I64, false) => i64::MIN as f64,
            (_, true) => f64::INFINITY,
            (_, false) => f64::NEG_INFINITY,
        };
        concat(&[&self.kept(neutral).unsqueeze(&[self.axis + 1]), &self.spread(neutral)], self.axis + 1)
    }
}
