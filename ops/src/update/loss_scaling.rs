//! Loss scaling: gradients of a scaled loss, and the scale of the next step.

use autobwd::{
    Buf, Composed, Composition, Cx, DType, Error, ErrorKind, Expr, Infer, Kernel, Meta, New, Result, Var,
    check::*, emit, op::with_float, operators::same_count, register_op, tensor::Bool,
};

use super::{
    clip::{infer, map},
    number, one, unless,
};
use crate::{
    Math,
    kernel_helpers::{KernelFloat, stored, wide},
    math::{in_dtype, like},
    reduce::total,
    shape::Assign,
};

/// Checks that a slot has one element of a dtype.
fn one_of(x: &Meta, dtype: DType) -> Result<()> {
    x.require(x.dtype == dtype, || format!("{dtype} is needed"))?;
    x.one_element()
}

/// Divides gradients by the scale of their loss: `out[i] = x[i] * (1 / scale)`, and `found_infinite` is whether an element
/// of `x` is infinite or NaN.
#[register_op(grad = Composed)]
pub struct CheckFiniteAndUnscale<V = Var> {
    /// At least one gradient, of any shapes, whole or sparse.
    #[input(sparse)]
    pub x: Vec<V>,
    /// One element.
    #[input]
    pub scale: V,
    /// Same shapes and dtypes as `x`; sparse where `x` is.
    #[output]
    pub out: Vec<V>,
    /// One bool, `[1]`.
    #[output]
    pub found_infinite: V,
}
impl Infer for CheckFiniteAndUnscale<Meta> {
    fn infer(&mut self) -> Result<()> {
        if self.x.is_empty() {
            return Err(Error::new(ErrorKind::Slot, "`X`: at least one variable is needed"));
        }
        self.scale.float()?;
        self.scale.one_element()?;
        same_count("Out", self.out.len(), self.x.len())?;
        self.x.iter().zip(&mut self.out).try_for_each(|(x, out)| infer(x, out))?;
        self.found_infinite.set(DType::Bool, [1]);
        Ok(())
    }
}
impl Kernel for CheckFiniteAndUnscale<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let scale = with_float!(self.scale, T => one::<T>(&self.scale).map(wide))?;
        let mut found = false;
        for (x, out) in self.x.iter().zip(&mut self.out) {
            with_float!(x, T => {
                let inverse = T::of(1.0 / scale);
                // An infinite element times 0 is NaN.
                found |= total(cx, stored::<T>(x)?, |x| x * 0.0).is_nan();
                map(cx, x, out, |x: T| x * inverse)?;
            });
        }
        self.found_infinite.slice_mut::<Bool>()?.fill(Bool::from(found));
        Ok(())
    }
}
impl Composition for CheckFiniteAndUnscale<Expr> {
    fn compose(&mut self) {
        let inverse = 1.0 / &self.scale;
        self.out = self.x.iter().map(|x| x * in_dtype(&number(&inverse, x), x.dtype())).collect();
        let infinite = self.x.iter().map(|x| x.isfinite().all(&[]).logical_not());
        if let Some(found) = infinite.reduce(|found, more| found.logical_or(&more)) {
            self.found_infinite = found.reshape(&[1]);
        }
    }
}
autobwd::samples!(
    CheckFiniteAndUnscale,
    [
        unscale(vec![uniform([2, 3]), uniform([4])]),
        unscale(vec![uniform([]), uniform([0, 3])]),
        unscale(vec![given([2], [0.5, f64::INFINITY])])
            .not_a_derivative("infinite elements have no differences"),
        unscale(vec![given([2], [f64::NAN, 1.0])]).not_a_derivative("NaN has no differences"),
        CheckFiniteAndUnscale { scale: positive([]), ..unscale(vec![uniform([2])]) },
        unscale(vec![]).fails("`X`: at least one variable is needed"),
        unscale(vec![integers_below(9, [2])]).fails("`X`: floating point numbers are needed"),
        CheckFiniteAndUnscale { out: vec![], ..unscale(vec![uniform([2])]) }
            .fails("`Out`: 1 variables are needed, not 0"),
        CheckFiniteAndUnscale { scale: positive([2]), ..unscale(vec![uniform([2])]) }
            .fails("`Scale`: one element is needed"),
    ]
);

fn unscale(x: Vec<Draw>) -> CheckFiniteAndUnscale<Draw> {
    let outs = x.iter().map(|_| out()).collect();
    CheckFiniteAndUnscale { x, scale: positive([1]), out: outs, found_infinite: out() }
}

/// The scale of the loss in the next step, and how many steps were finite (good) or not (bad) since the scale last
/// changed: `loss_scaling = max(prev_loss_scaling * decr_ratio, 1)` after `decr_every_n_nan_or_inf` bad steps in
/// succession, `prev_loss_scaling * incr_ratio` after `incr_every_n_steps` good ones if that is finite.
/// `out[i] = 0` if `found_infinite`, else `x[i]`.
#[register_op(grad = Composed, composed)]
pub struct UpdateLossScaling<V = Var> {
    /// Gradients of any shapes.
    #[input]
    pub x: Vec<V>,
    /// One bool: whether this step is bad.
    #[input]
    pub found_infinite: V,
    /// One element.
    #[input]
    pub prev_loss_scaling: V,
    /// Good steps in succession, one int32.
    #[input]
    pub in_good_steps: V,
    /// Bad steps in succession, one int32.
    #[input]
    pub in_bad_steps: V,
    /// One bool in place of the attribute `stop_update`.
    #[input]
    pub stop_update: Option<V>,
    /// Same shapes and dtypes as `x`.
    #[output]
    pub out: Vec<V>,
    /// Same shape as `prev_loss_scaling`.
    #[output]
    pub loss_scaling: V,
    /// Same shape as `in_good_steps`.
    #[output]
    pub out_good_steps: V,
    /// Same shape as `in_bad_steps`.
    #[output]
    pub out_bad_steps: V,
    /// Good steps until the scale rises.
    #[attr(min = 1)]
    pub incr_every_n_steps: i32,
    /// Bad steps until the scale falls.
    #[attr(min = 1)]
    pub decr_every_n_nan_or_inf: i32,
    /// Factor by which the scale rises.
    #[attr(min = 1.0)]
    pub incr_ratio: f32,
    /// Factor by which the scale falls.
    #[attr(min = 0.0, max = 1.0)]
    pub decr_ratio: f32,
    /// Whether scale and numbers of steps stay.
    #[attr("stop_update", default = false)]
    pub is_stopped: bool,
}
impl Infer for UpdateLossScaling<Meta> {
    fn infer(&mut self) -> Result<()> {
        same_count("Out", self.out.len(), self.x.len())?;
        one_of(&self.found_infinite, DType::Bool)?;
        self.prev_loss_scaling.float()?;
        self.prev_loss_scaling.one_element()?;
        one_of(&self.in_good_steps, DType::I32)?;
        one_of(&self.in_bad_steps, DType::I32)?;
        self.stop_update.iter().try_for_each(|stop| one_of(stop, DType::Bool))?;
        for (x, out) in self.x.iter().zip(&mut self.out) {
            x.float()?;
            out.like(x);
        }
        self.loss_scaling.like(&self.prev_loss_scaling);
        self.out_good_steps.like(&self.in_good_steps);
        self.out_bad_steps.like(&self.in_bad_steps);
        Ok(())
    }
}
impl Composition for UpdateLossScaling<Expr> {
    fn compose(&mut self) {
        let found = Some(self.found_infinite.clone());
        self.out = self.x.iter().map(|x| unless(&found, &like(x, 0.0), x.clone())).collect();
        let [before, good, bad] = [&self.prev_loss_scaling, &self.in_good_steps, &self.in_bad_steps];
        if self.is_stopped {
            let copy = |x: &Expr| emit(Assign { x: x.into(), out: New }).out;
            [self.loss_scaling, self.out_good_steps, self.out_bad_steps] = [before, good, bad].map(copy);
            return;
        }
        let none = like(good, 0.0);
        let good_after = unless(&found, &none, good + 1.0);
        let bad_after = unless(&found, &(bad + 1.0), like(bad, 0.0));
        let rises = good_after.greater_equal(&like(good, self.incr_every_n_steps.into()));
        let falls = bad_after.greater_equal(&like(bad, self.decr_every_n_nan_or_inf.into()));
        let higher = before * f64::from(self.incr_ratio);
        let higher = higher.isfinite().where_cond(&higher, before);
        let lower = (before * f64::from(self.decr_ratio)).maximum(&like(before, 1.0));
        let (rises, falls) = (Some(rises), Some(falls));
        let scale = unless(&falls, &lower, unless(&rises, &higher, before.clone()));
        let good_left = unless(&rises, &none, good_after);
        let bad_left = unless(&falls, &like(bad, 0.0), bad_after);
        let kept = |before: &Expr, after: Expr| unless(&self.stop_update, before, after);
        [self.loss_scaling, self.out_good_steps, self.out_bad_steps] =
            [kept(before, scale), kept(good, good_left), kept(bad, bad_left)];
    }
}
autobwd::samples!(
    UpdateLossScaling,
    [
        scaling(0.0, 8.0, [0.0, 1.0]),
        scaling(0.0, 8.0, [2.0, 0.0]),
        scaling(1.0, 8.0, [2.0, 0.0]),
        scaling(1.0, 8.0, [2.0, 1.0]),
        scaling(1.0, 1.5, [0.0, 1.0]),
        UpdateLossScaling { incr_ratio: 1e38, ..scaling(0.0, 1e308, [2.0, 0.0]) },
        UpdateLossScaling { is_stopped: true, ..scaling(1.0, 8.0, [2.0, 1.0]) },
        UpdateLossScaling {
            stop_update: Some(given([1], [1.0]).of(DType::Bool)),
            ..scaling(0.0, 8.0, [2.0, 0.0])
        },
        UpdateLossScaling {
            stop_update: Some(given([1], [0.0]).of(DType::Bool)),
            ..scaling(0.0, 8.0, [2.0, 0.0])
        },
        UpdateLossScaling { x: vec![], out: vec![], ..scaling(0.0, 8.0, [2.0, 0.0]) },
        UpdateLossScaling { decr_every_n_nan_or_inf: 1, ..scaling(1.0, 8.0, [2.0, 0.0]) },
        UpdateLossScaling { found_infinite: uniform([1]), ..scaling(0.0, 8.0, [2.0, 0.0]) }
            .fails("`FoundInfinite`: bool is needed"),
        UpdateLossScaling {
            in_good_steps: integers_below(2, [2]).of(DType::I32),
            ..scaling(0.0, 8.0, [0.0, 0.0])
        }
        .fails("`InGoodSteps`: one element is needed"),
        UpdateLossScaling { in_bad_steps: integers_below(2, [1]), ..scaling(0.0, 8.0, [0.0, 0.0]) }
            .fails("`InBadSteps`: int32 is needed"),
        UpdateLossScaling { decr_ratio: 2.0, ..scaling(0.0, 8.0, [0.0, 0.0]) }
            .fails("attribute `decr_ratio`"),
        UpdateLossScaling { incr_every_n_steps: 0, ..scaling(0.0, 8.0, [0.0, 0.0]) }
            .fails("attribute `incr_every_n_steps`"),
    ]
);

fn scaling(found: f64, scale: f64, [good, bad]: [f64; 2]) -> UpdateLossScaling<Draw> {
    UpdateLossScaling {
        x: vec![uniform([2, 3]), uniform([])],
        found_infinite: given([1], [found]).of(DType::Bool),
        prev_loss_scaling: given([1], [scale]),
        in_good_steps: given([1], [good]).of(DType::I32),
        in_bad_steps: given([1], [bad]).of(DType::I32),
        stop_update: None,
        out: vec![out(), out()],
        loss_scaling: out(),
        out_good_steps: out(),
        out_bad_steps: out(),
        incr_every_n_steps: 3,
        decr_every_n_nan_or_inf: 2,
        incr_ratio: 2.0,
        decr_ratio: 0.5,
        is_stopped: false,
    }
}
