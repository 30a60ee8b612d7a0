//! Numbers rounded to the levels of a quantisation, for training that is aware of it. Gradients go straight through.

use autobwd::{
    Composition, Dims, Error, ErrorKind, Expr, GradCx, GradRule, Infer, Meta, Result, Var, check::*,
    register_op,
};

use crate::{Math, math::like, shape::Assign};

/// Why gradients of samples are not derivatives.
const STRAIGHT: &str = "the gradient goes straight through steps";

/// Defines the gradient of a quantisation.
macro_rules! straight_through {
    ($grad:ident, $op:ident) => {
        /// `dx = dout`, an `assign` operator: a straight-through estimator (Bengio et al., 2013).
        #[derive(Debug)]
        pub struct $grad;
        impl GradRule<$op> for $grad {
            fn emit(fwd: &$op, g: &mut GradCx<'_>) {
                if let Some(out) = g.wanted(fwd.x) {
                    g.push(Assign { x: g.grad(fwd.out), out });
                }
            }
        }
    };
}

/// Rounds to the levels of one scale: `out = round(x * m / s) * s / m` with `s = max |x|` and `m = 2^(bit_length - 1) - 1`.
///
/// Halves are rounded away from 0. The scale has no gradient.
#[register_op(grad = FakeQuantizeDequantizeAbsMaxGrad, composed)]
pub struct FakeQuantizeDequantizeAbsMax<V = Var> {
    /// At least one element.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(like = x)]
    pub out: V,
    /// `s`, `[1]`.
    #[output]
    pub out_scale: V,
    /// Bits of a level, with the sign.
    #[attr(default = 8, min = 2, max = 16)]
    pub bit_length: i32,
}
impl Infer for FakeQuantizeDequantizeAbsMax<Meta> {
    fn infer(&mut self) -> Result<()> {
        some_elements(&self.x)?;
        self.out_scale.set(self.x.dtype, [1]);
        Ok(())
    }
}
impl Composition for FakeQuantizeDequantizeAbsMax<Expr> {
    fn compose(&mut self) {
        let scale = largest_size(&self.x);
        self.out = quantised(&self.x, &scale, self.bit_length);
        self.out_scale = scale.reshape(&[1]);
    }
}
straight_through!(FakeQuantizeDequantizeAbsMaxGrad, FakeQuantizeDequantizeAbsMax);
autobwd::samples!(
    FakeQuantizeDequantizeAbsMax,
    [
        abs_max(given([2, 3], NUMBERS), 4).discontinuous(STRAIGHT),
        abs_max(given([6], NUMBERS), 8).discontinuous(STRAIGHT),
        abs_max(given([], [-0.7]), 3).discontinuous(STRAIGHT),
        abs_max(given([2], [0.0, 0.0]), 8).discontinuous(STRAIGHT),
        abs_max(uniform([0, 3]), 8).fails("`X`: at least one element is needed"),
        abs_max(uniform([3]), 1).fails("attribute `bit_length`"),
        abs_max(uniform([3]), 17).fails("attribute `bit_length`"),
        abs_max(integers_below(9, [3]), 8).fails("`X`: floating point numbers are needed"),
    ]
);

fn abs_max(x: Draw, bit_length: i32) -> FakeQuantizeDequantizeAbsMax<Draw> {
    FakeQuantizeDequantizeAbsMax { x, out: out(), out_scale: out(), bit_length }
}

/// Numbers that are not halfway between two levels.
const NUMBERS: [f64; 6] = [0.3, -1.2, 0.7, 2.5, -0.01, 0.5];

/// Rounds to the levels of a scale for each channel: `out = round(x * m / s) * s / m` with `s = max |x|` over all other dimensions and
/// `m = 2^(bit_length - 1) - 1`.
///
/// Halves are rounded away from 0. Scales have no gradient.
#[register_op(grad = FakeChannelWiseQuantizeDequantizeAbsMaxGrad, composed)]
pub struct FakeChannelWiseQuantizeDequantizeAbsMax<V = Var> {
    /// At least one element in each channel.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(like = x)]
    pub out: V,
    /// `s`, with the dimension of channels.
    #[output]
    pub out_scale: V,
    /// Bits of a level, with the sign.
    #[attr(default = 8, min = 2, max = 16)]
    pub bit_length: i32,
    /// The dimension of channels.
    #[attr(default = 0, min = 0, max = 1)]
    pub quant_axis: i32,
}
impl Infer for FakeChannelWiseQuantizeDequantizeAbsMax<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        let axis = self.x.axis("quant_axis", self.quant_axis.into())?;
        let others = self.x.dims.iter().enumerate().filter(|(at, _)| *at != axis);
        let is_empty = others.into_iter().any(|(_, n)| n.get() == Some(0));
        self.x.require(!is_empty, || "at least one element in each channel is needed".into())?;
        self.out_scale.set(self.x.dtype, Dims::from_iter([self.x.dims[axis]]));
        Ok(())
    }
}
impl Composition for FakeChannelWiseQuantizeDequantizeAbsMax<Expr> {
    fn compose(&mut self) {
        let (axis, rank) = (self.quant_axis, self.x.dims().len() as i32);
        let others: Vec<i32> = (0..rank).filter(|other| *other != axis).collect();
        // Over no axes, a reduction is one over all.
        let scale = if others.is_empty() { self.x.abs() } else { self.x.abs().amax(&others) };
        let after: Vec<i32> = (1..rank - axis).collect();
        let scales = if after.is_empty() { scale.clone() } else { scale.unsqueeze(&after) };
        self.out = quantised(&self.x, &scales, self.bit_length);
        self.out_scale = scale;
    }
}
straight_through!(FakeChannelWiseQuantizeDequantizeAbsMaxGrad, FakeChannelWiseQuantizeDequantizeAbsMax);
autobwd::samples!(
    FakeChannelWiseQuantizeDequantizeAbsMax,
    [
        of_channels(given([2, 3], NUMBERS), 4, 0).discontinuous(STRAIGHT),
        of_channels(given([2, 3], NUMBERS), 8, 1).discontinuous(STRAIGHT),
        of_channels(given([1, 3, 2], NUMBERS), 4, 1).discontinuous(STRAIGHT),
        of_channels(given([6], NUMBERS), 3, 0).discontinuous(STRAIGHT),
        of_channels(uniform([0, 3]), 8, 0).discontinuous(STRAIGHT),
        of_channels(uniform([0, 3]), 8, 1).fails("`X`: at least one element in each channel is needed"),
        of_channels(uniform([3]), 8, 1).fails("attribute `quant_axis` = 1"),
        of_channels(uniform([2, 3]), 8, 2).fails("attribute `quant_axis`"),
        of_channels(uniform([2, 3]), 1, 0).fails("attribute `bit_length`"),
        of_channels(integers_below(9, [3]), 8, 0).fails("`X`: floating point numbers are needed"),
    ]
);

fn of_channels(x: Draw, bit_length: i32, quant_axis: i32) -> FakeChannelWiseQuantizeDequantizeAbsMax<Draw> {
    FakeChannelWiseQuantizeDequantizeAbsMax { x, out: out(), out_scale: out(), bit_length, quant_axis }
}

/// Rounds to the levels of a scale that follows the largest size of batches: `out = round(min(max(x, -s), s) * m / s) * s / m` with
/// `m = 2^(bit_length - 1) - 1` and `s = out_accum / out_state`, or `s = in_scale` if `is_test`.
///
/// In training, `out_state = moving_rate * in_state + 1` and `out_accum = moving_rate * in_accum + max |x|`; both stay in a test.
/// Halves are rounded away from 0. Scales have no gradient.
#[register_op(grad = FakeQuantizeDequantizeMovingAverageAbsMaxGrad, composed)]
pub struct FakeQuantizeDequantizeMovingAverageAbsMax<V = Var> {
    /// At least one element.
    #[input]
    pub x: V,
    /// The scale of a test, `[1]`.
    #[input]
    pub in_scale: V,
    /// The sum of sizes, `[1]`; training needs it.
    #[input]
    pub in_accum: Option<V>,
    /// The weight of the sum, `[1]`; training needs it.
    #[input]
    pub in_state: Option<V>,
    /// Same shape as `x`.
    #[output(like = x)]
    pub out: V,
    /// `s`, `[1]`.
    #[output]
    pub out_scale: V,
    /// `[1]`, 0 in a test without `in_state`.
    #[output]
    pub out_state: Option<V>,
    /// `[1]`, 0 in a test without `in_accum`.
    #[output]
    pub out_accum: Option<V>,
    /// What remains of the sum.
    #[attr(default = 0.9)]
    pub moving_rate: f32,
    /// Bits of a level, with the sign.
    #[attr(default = 8, min = 2, max = 16)]
    pub bit_length: i32,
    /// Whether the scale is `in_scale`.
    #[attr(default = false)]
    pub is_test: bool,
}
impl Infer for FakeQuantizeDequantizeMovingAverageAbsMax<Meta> {
    fn infer(&mut self) -> Result<()> {
        some_elements(&self.x)?;
        for (name, state) in [("InAccum", &self.in_accum), ("InState", &self.in_state)] {
            if state.is_none() && !self.is_test {
                let text = format!("`{name}`: training needs it, or attribute `is_test`");
                return Err(Error::new(ErrorKind::Slot, text));
            }
        }
        for state in
            [Some(&self.in_scale), self.in_accum.as_ref(), self.in_state.as_ref()].into_iter().flatten()
        {
            state.same_dtype(&self.x)?;
            state.require(state.dims.agrees(&Dims::from([1])), || "dimensions [1] are needed".into())?;
        }
        let states = [self.out_state.as_mut(), self.out_accum.as_mut()];
        for state in states.into_iter().flatten().chain([&mut self.out_scale]) {
            state.set(self.x.dtype, [1]);
        }
        Ok(())
    }
}
impl Composition for FakeQuantizeDequantizeMovingAverageAbsMax<Expr> {
    fn compose(&mut self) {
        let zero = like(&self.in_scale, 0.0);
        let [accum, state] =
            [&self.in_accum, &self.in_state].map(|state| state.clone().unwrap_or_else(|| zero.clone()));
        let (accum, state, scale) = match self.is_test {
            true => (accum, state, self.in_scale.clone()),
            false => {
                let rate = f64::from(self.moving_rate);
                let accum = accum * rate + largest_size(&self.x).reshape(&[1]);
                let state = state * rate + 1.0;
                (accum.clone(), state.clone(), accum / state)
            }
        };
        let scales = if self.x.dims().is_empty() { scale.reshape(&[]) } else { scale.clone() };
        self.out = quantised(&self.x, &scales, self.bit_length);
        self.out_scale = scale.copy();
        (self.out_accum, self.out_state) = (Some(accum.copy()), Some(state.copy()));
    }
}
straight_through!(FakeQuantizeDequantizeMovingAverageAbsMaxGrad, FakeQuantizeDequantizeMovingAverageAbsMax);
autobwd::samples!(
    FakeQuantizeDequantizeMovingAverageAbsMax,
    [
        moving_average(given([2, 3], NUMBERS), 0.9, 4, false).discontinuous(STRAIGHT),
        moving_average(given([6], NUMBERS), 0.5, 8, false).discontinuous(STRAIGHT),
        moving_average(given([], [0.9]), 0.5, 3, false).discontinuous(STRAIGHT),
        moving_average(given([3, 2], NUMBERS), 0.9, 4, true).discontinuous(STRAIGHT),
        FakeQuantizeDequantizeMovingAverageAbsMax {
            in_accum: None,
            in_state: None,
            out_accum: None,
            out_state: None,
            ..moving_average(given([2, 3], NUMBERS), 0.9, 8, true)
        }
        .discontinuous(STRAIGHT),
        FakeQuantizeDequantizeMovingAverageAbsMax {
            in_accum: None,
            ..moving_average(uniform([3]), 0.9, 8, false)
        }
        .fails("`InAccum`: training needs it, or attribute `is_test`"),
        FakeQuantizeDequantizeMovingAverageAbsMax {
            in_state: None,
            ..moving_average(uniform([3]), 0.9, 8, false)
        }
        .fails("`InState`: training needs it, or attribute `is_test`"),
        FakeQuantizeDequantizeMovingAverageAbsMax {
            in_scale: positive([2]),
            ..moving_average(uniform([3]), 0.9, 8, true)
        }
        .fails("`InScale`: dimensions [1] are needed"),
        FakeQuantizeDequantizeMovingAverageAbsMax {
            in_accum: Some(integers(&[1])),
            ..moving_average(uniform([3]), 0.9, 8, true)
        }
        .fails("`InAccum`: dtype int64 does not match"),
        moving_average(uniform([0, 3]), 0.9, 8, false).fails("`X`: at least one element is needed"),
        moving_average(uniform([3]), 0.9, 17, false).fails("attribute `bit_length`"),
    ]
);

fn moving_average(
    x: Draw,
    moving_rate: f32,
    bit_length: i32,
    is_test: bool,
) -> FakeQuantizeDequantizeMovingAverageAbsMax<Draw> {
    FakeQuantizeDequantizeMovingAverageAbsMax {
        x,
        in_scale: given([1], [0.9]),
        in_accum: Some(given([1], [1.5])),
        in_state: Some(given([1], [2.0])),
        out: out(),
        out_scale: out(),
        out_state: Some(out()),
        out_accum: Some(out()),
        moving_rate,
        bit_length,
        is_test,
    }
}

fn some_elements(x: &Meta) -> Result<()> {
    x.float()?;
    x.require(x.dims.numel().get() != Some(0), || "at least one element is needed".into())
}

/// `max |x|`, a scalar.
fn largest_size(x: &Expr) -> Expr {
    if x.dims().is_empty() { x.abs() } else { x.abs().amax(&[]) }
}

/// The nearest levels within a scale.
fn quantised(x: &Expr, scale: &Expr, bit_length: i32) -> Expr {
    let levels = f64::from((1 << (bit_length - 1)) - 1);
    // As in the reference: without a scale, all numbers are 0.
    let is_tiny = scale.less_equal(&like(scale, 1e-30));
    let inverse = is_tiny.where_cond(&(scale + 1e-6), scale).reciprocal();
    let within = x.maximum(&(scale * -1.0)).minimum(scale);
    (within * (inverse * levels)).round() * scale / levels
}
