//! Dropout.

use autobwd::{
    Buf, Composition, Cx, DType, Expr, Float, Infer, Kernel, Meta, New, Pointwise, Result, Var,
    check::*,
    emit,
    op::{SelfAdjoint, with_float},
    register_op,
};

use crate::{
    Math,
    fill::FillAnyLike,
    kernel_helpers::{KernelFloat, PART},
    math::{filled, like},
    random::{NoiseDistribution, NoiseLike, rng, unit},
};

autobwd::op::attr_enum! {
    /// When elements are scaled to compensate for dropped ones.
    pub enum DropoutImplementation {
        /// At inference: all elements are scaled by `1 - p`.
        DowngradeInInfer = "downgrade_in_infer",
        /// At training: kept elements are scaled by `1 / (1 - p)`.
        UpscaleInTrain = "upscale_in_train",
    }
}

/// Dropout with probability `p`: `out = x * mask`.
///
/// Kept elements (at inference: all elements) are scaled as `dropout_implementation` says. Equal seeds give equal
/// masks; for a new mask at each run, feed or count `seed`.
#[register_op(grad = DropoutGrad, infallible)]
pub struct DropoutOp<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Seed of the mask instead of attribute `seed`: one int32 or int64 number.
    #[input("Seed")]
    pub seed_tensor: Option<V>,
    /// Same shape as `x`.
    #[output(like = x)]
    pub out: V,
    /// 1 where an element is kept, else 0; uint8, same shape as `x`.
    #[output]
    pub mask: V,
    /// `p`.
    #[attr(default = 0.5, min = 0.0, max = 1.0)]
    pub dropout_prob: f32,
    /// When elements are scaled to compensate for dropped ones.
    #[attr(default = DropoutImplementation::DowngradeInInfer)]
    pub dropout_implementation: DropoutImplementation,
    /// Inference mode: no element is dropped.
    #[attr(default = false)]
    pub is_test: bool,
    /// Accepted for compatibility: the mask always depends on the seed alone.
    #[attr(default = false)]
    pub fix_seed: bool,
    /// Seed of the mask; 0 is a seed like any other.
    #[attr(default = 0)]
    pub seed: i32,
}
impl Infer for DropoutOp<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        if let Some(seed) = &self.seed_tensor {
            let is_number = matches!(seed.dtype, DType::I32 | DType::I64);
            if !is_number || !seed.dims.numel().agrees(1.into()) {
                return Err(seed.wrong("one number, int64 or int32, is needed"));
            }
        }
        self.mask.set(DType::U8, self.x.dims.clone());
        Ok(())
    }
}
impl Kernel for DropoutOp<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let p = f64::from(self.dropout_prob);
        let seed = match &self.seed_tensor {
            Some(seed) if seed.dtype() == DType::I32 => seed.slice::<i32>()?[0].into(),
            Some(seed) => seed.slice::<i64>()?[0],
            None => self.seed.into(),
        };
        if self.is_test {
            self.mask.slice_mut::<u8>()?.fill(1);
        } else {
            cx.chunks_mut(self.mask.slice_mut::<u8>()?, PART, |part, mask| {
                let mut rng = rng(seed);
                // The generator advances by one for each element.
                rng.advance((part * PART) as u128);
                mask.iter_mut().for_each(|mask| *mask = (unit(&mut rng) >= p).into());
            });
        }
        let scale = scale(p, self.dropout_implementation, self.is_test);
        with_float!(self.x, T => keep::<T>(cx, &self.mask, scale, &self.x, &mut self.out))
    }
}
impl Composition for DropoutOp<Expr> {
    fn compose(&mut self) {
        let (p, x) = (f64::from(self.dropout_prob), &self.x);
        let scale = scale(p, self.dropout_implementation, self.is_test);
        // If nothing is kept, the scale is infinite.
        let scaled = if scale == 1.0 || scale.is_infinite() { x.copy() } else { x * scale };
        let like_x =
            |value, dtype| emit(FillAnyLike { x: x.into(), out: New, value, dtype: Some(dtype) }).out;
        if self.is_test {
            (self.out, self.mask) = (scaled, like_x(1.0, DType::U8));
            return;
        }
        let number = || filled(x.builder(), DType::I64, &self.seed.to_string(), &[1.into()]);
        let seed = self.seed_tensor.clone().unwrap_or_else(number).into();
        // In double precision, as the kernel compares.
        let (shape, distribution) = (like_x(0.0, DType::F64).into(), NoiseDistribution::Uniform);
        let noise = emit(NoiseLike { x: shape, seed, out: New, distribution }).out;
        let is_kept = noise.greater_equal(&like(&noise, p));
        self.out = is_kept.where_cond(&scaled, &like(x, 0.0));
        self.mask = is_kept.cast(DType::U8);
    }
}
autobwd::samples!(
    DropoutOp,
    [
        dropout(uniform([4, 5]), 0.5, DropoutImplementation::DowngradeInInfer, false),
        dropout(uniform([4, 5]), 0.25, DropoutImplementation::UpscaleInTrain, false),
        dropout(uniform([4, 5]), 0.25, DropoutImplementation::DowngradeInInfer, true),
        dropout(uniform([4, 5]), 0.25, DropoutImplementation::UpscaleInTrain, true),
        dropout(uniform([5]), 1.0, DropoutImplementation::UpscaleInTrain, false),
        dropout(uniform([5]), 0.0, DropoutImplementation::UpscaleInTrain, false),
        dropout(uniform([]), 0.5, DropoutImplementation::UpscaleInTrain, false),
        dropout(uniform([0, 3]), 0.5, DropoutImplementation::UpscaleInTrain, false),
        DropoutOp {
            fix_seed: true,
            seed: -3,
            ..dropout(uniform([3, 4]), 0.5, DropoutImplementation::UpscaleInTrain, false)
        },
        DropoutOp {
            seed_tensor: Some(integers_below(1000, [1])),
            ..dropout(uniform([3, 4]), 0.5, DropoutImplementation::UpscaleInTrain, false)
        },
        DropoutOp {
            seed_tensor: Some(integers_below(1000, []).of(DType::I32)),
            ..dropout(uniform([3, 4]), 0.5, DropoutImplementation::DowngradeInInfer, false)
        },
        dropout(uniform([3]), 1.5, DropoutImplementation::UpscaleInTrain, false)
            .fails("attribute `dropout_prob`"),
        DropoutOp {
            seed_tensor: Some(integers_below(9, [2])),
            ..dropout(uniform([3]), 0.5, DropoutImplementation::UpscaleInTrain, false)
        }
        .fails("`Seed`: one number, int64 or int32, is needed"),
    ]
);

fn dropout(
    x: Draw,
    dropout_prob: f32,
    dropout_implementation: DropoutImplementation,
    is_test: bool,
) -> DropoutOp<Draw> {
    DropoutOp {
        x,
        seed_tensor: None,
        out: out(),
        mask: out(),
        dropout_prob,
        dropout_implementation,
        is_test,
        fix_seed: false,
        seed: 0,
    }
}

/// The factor of kept elements.
fn scale(p: f64, implementation: DropoutImplementation, is_test: bool) -> f64 {
    match (implementation, is_test) {
        (DropoutImplementation::UpscaleInTrain, false) => 1.0 / (1.0 - p),
        (DropoutImplementation::DowngradeInInfer, true) => 1.0 - p,
        _ => 1.0,
    }
}

/// `out = x * scale` where the mask is not 0, else 0.
fn keep<T: KernelFloat>(cx: &Cx, mask: &Buf<'_>, scale: f64, x: &Buf<'_>, out: &mut Buf<'_>) -> Result<()> {
    let (mask, x, scale) = (mask.slice::<u8>()?, x.slice::<T>()?, T::of(scale));
    cx.chunks_mut(out.slice_mut::<T>()?, PART, |part, out| {
        let kept = x[part * PART..].iter().zip(&mask[part * PART..]);
        out.iter_mut().zip(kept).for_each(|(out, (x, mask))| {
            *out = if *mask == 0 { T::ZERO } else { *x * scale };
        });
    });
    Ok(())
}

/// `dx = dout * mask`, scaled as the output is.
#[register_op(grad_of = DropoutOp, grad = SelfAdjoint, pointwise, kernel, inferred, infallible)]
pub struct DropoutGrad<V = Var> {
    pub mask: V,
    pub dout: V,
    #[output]
    pub dx: V,
    pub dropout_prob: f32,
    pub dropout_implementation: DropoutImplementation,
    pub is_test: bool,
}
impl Kernel for DropoutGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let scale = scale(self.dropout_prob.into(), self.dropout_implementation, self.is_test);
        with_float!(self.dout, T => keep::<T>(cx, &self.mask, scale, &self.dout, &mut self.dx))
    }
}
impl<F: Float> Pointwise for DropoutGrad<F> {
    fn eval(&mut self) {
        let (p, zero) = (self.dropout_prob.into(), F::from(0.0));
        let scale = F::from(scale(p, self.dropout_implementation, self.is_test));
        self.dx = F::select(self.mask.equals(zero), zero, self.dout * scale);
    }
}
