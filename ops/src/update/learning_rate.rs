//! A schedule of the learning rate as an operator.

use autobwd::{Composition, DType, Error, Expr, Infer, Meta, Result, Var, ZeroGrad, check::*, register_op};

use crate::{
    Math,
    kernel_helpers::one_integer,
    math::{in_dtype, like},
};

/// The learning rate of a step that is counted: linear warmup, then a decay with the square of the rest.
///
/// With `t = step + 1`, it is `base_lr * t / warmup_steps` for `t <= warmup_steps`, then
/// `(base_lr - end_lr) * f² + end_lr` with `f = 1 - (t - warmup_steps) / (total_steps - warmup_steps)`, and `end_lr` from
/// `total_steps` on.
#[register_op(name = "pow2_decay_with_linear_warmup", grad = ZeroGrad, composed)]
pub struct Pow2DecayWithLinearWarmup<V = Var> {
    /// One floating-point number, which is replaced.
    #[input(shape_only)]
    pub learning_rate: V,
    /// The number of steps so far: one int64 number.
    #[input]
    pub step: V,
    /// Same shape as `learning_rate`.
    #[output]
    pub learning_rate_out: V,
    /// `step + 1`
    #[output]
    pub step_out: V,
    /// The number of steps of the warmup.
    #[attr(min = 0)]
    pub warmup_steps: i64,
    /// The number of steps until the end of the decay, not less than the steps of the warmup.
    #[attr(min = 0)]
    pub total_steps: i64,
    /// The learning rate after the warmup.
    #[attr]
    pub base_lr: f32,
    /// The learning rate after the decay.
    #[attr]
    pub end_lr: f32,
}
impl Infer for Pow2DecayWithLinearWarmup<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.learning_rate.float()?;
        self.learning_rate.one_element()?;
        one_integer(&self.step)?;
        self.step.require(self.step.dtype == DType::I64, || "int64 is needed".into())?;
        if self.total_steps < self.warmup_steps {
            let (total, warmup) = (self.total_steps, self.warmup_steps);
            let text = format!("a number not below `warmup_steps` = {warmup} is needed, not {total}");
            return Err(Error::attr("total_steps", text));
        }
        self.learning_rate_out.like(&self.learning_rate);
        self.step_out.like(&self.step);
        Ok(())
    }
}
impl Composition for Pow2DecayWithLinearWarmup<Expr> {
    fn compose(&mut self) {
        self.step_out = &self.step + 1.0;
        let t = self.step_out.cast(DType::F64);
        let (warmup, total) = (self.warmup_steps as f64, self.total_steps as f64);
        let (base, end) = (f64::from(self.base_lr), f64::from(self.end_lr));
        let rising = &t * (base / warmup.max(1.0));
        let rest = (-&t + total) / (total - warmup).max(1.0);
        let falling = rest.square() * (base - end) + end;
        let is_before = |steps: f64| t.less_equal(&like(&t, steps));
        let later = is_before(total - 1.0).where_cond(&falling, &like(&t, end));
        let rate = is_before(warmup).where_cond(&rising, &later);
        let rank = self.learning_rate.dims().len();
        self.learning_rate_out = in_dtype(&rate.reshape(&vec![1; rank]), self.learning_rate.dtype());
    }
}
autobwd::samples!(
    Pow2DecayWithLinearWarmup,
    [
        decay(integers(&[1]), 4, 10),
        decay(integers(&[3]), 4, 10),
        decay(integers(&[6]), 4, 10),
        decay(integers(&[9]), 4, 10),
        decay(integers(&[40]), 4, 10),
        decay(integers(&[0]), 0, 0),
        Pow2DecayWithLinearWarmup { base_lr: 0.25, end_lr: 0.0625, ..decay(integers(&[6]), 4, 10) },
        Pow2DecayWithLinearWarmup { learning_rate: given([], [-0.5]), ..decay(integers(&[6]), 4, 10) },
        decay(integers(&[0]), 4, 3)
            .fails("attribute `total_steps`: a number not below `warmup_steps` = 4 is needed, not 3"),
        decay(integers(&[0]), -1, 3).fails("attribute `warmup_steps`"),
        decay(integers(&[0]), 0, -1).fails("attribute `total_steps`"),
        decay(integers(&[0, 1]), 4, 10).fails("`Step`: one integer is needed"),
        decay(integers(&[0]).of(DType::I32), 4, 10).fails("`Step`: int64 is needed"),
        Pow2DecayWithLinearWarmup { learning_rate: positive([2]), ..decay(integers(&[6]), 4, 10) }
            .fails("`LearningRate`: one element is needed"),
        Pow2DecayWithLinearWarmup { learning_rate: integers(&[1]), ..decay(integers(&[6]), 4, 10) }
            .fails("`LearningRate`: floating point numbers are needed"),
    ]
);

fn decay(step: Draw, warmup_steps: i64, total_steps: i64) -> Pow2DecayWithLinearWarmup<Draw> {
    Pow2DecayWithLinearWarmup {
        learning_rate: given([1], [0.5]),
        step,
        learning_rate_out: out(),
        step_out: out(),
        warmup_steps,
        total_steps,
        base_lr: 0.5,
        end_lr: 0.125,
    }
}
