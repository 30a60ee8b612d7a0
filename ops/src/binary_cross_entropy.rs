//! Binary cross entropy with logits.

use autobwd::{
    Buf, Composed, Composition, Cx, DType, Expr, Infer, Kernel, Meta, New, Result, Var, check::*, emit,
    op::with_float, register_op,
};

use crate::{
    Math,
    activation::Softplus,
    fill::{FillAnyLike, FillZerosLike},
    kernel_helpers::{KernelFloat, PART, nth_part},
};

/// Binary cross entropy of `sigmoid(x)` with labels: `out = max(x, 0) - x * label + ln(1 + exp(-|x|))`.
///
/// Stable for arbitrarily small probabilities.
#[register_op(grad = SigmoidCrossEntropyWithLogitsGrad, infallible)]
pub struct SigmoidCrossEntropyWithLogits<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Target probabilities, same shape and dtype as `x`.
    #[input]
    pub label: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// Whether to divide by the number of elements that are not ignored.
    #[attr(default = false)]
    pub normalize: bool,
    /// Label, truncated to an integer, of ignored elements: their loss is 0.
    #[attr(default = -100)]
    pub ignore_index: i32,
}
impl Infer for SigmoidCrossEntropyWithLogits<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.label.same_as(&self.x)?;
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for SigmoidCrossEntropyWithLogits<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let SigmoidCrossEntropyWithLogits { x, label, out, normalize, ignore_index } = self;
        with_float!(label, T => {
            let label = label.slice::<T>()?;
            let counted = Counted::new(label, *ignore_index, *normalize);
            cx.chunks_mut(out.inout::<T>(x)?.copied(), PART, |part, out| {
                let label = nth_part(label, part, out.len());
                for (x, label) in out.iter_mut().zip(label) {
                    let rest = KernelFloat::ln_1p(KernelFloat::exp(-x.abs()));
                    let loss = x.max(0.0) - *x * label + rest;
                    *x = counted.scaled(*label, loss);
                }
            });
            Ok(())
        })
    }
}
impl Composition for SigmoidCrossEntropyWithLogits<Expr> {
    fn compose(&mut self) {
        let (x, label) = (&self.x, self.label.cast(DType::I32));
        let (value, x_in) = (self.ignore_index.into(), (&label).into());
        let ignored = emit(FillAnyLike { x: x_in, out: New, value, dtype: None }).out;
        let counts = label.not_equal(&ignored);
        // Above this threshold, `x` equals the logarithm in every dtype.
        let log = emit(Softplus { x: x.into(), out: New, beta: 1.0, threshold: 100.0 }).out;
        let zeros = emit(FillZerosLike { x: x.into(), out: New }).out;
        self.out = counts.where_cond(&(log - x * &self.label), &zeros);
        if self.normalize {
            let number = counts.cast(x.dtype()).sum(&[]);
            self.out = &self.out / &number.maximum(&(&number * 0.0 + 1.0));
        }
    }
}
autobwd::samples!(
    SigmoidCrossEntropyWithLogits,
    [
        row(between(-3.0, 3.0, [2, 3]), between(0.0, 1.0, [2, 3]), false, -100),
        row(between(-3.0, 3.0, [4]), given([4], [0.0, -1.5, 1.0, -1.25]), false, -1),
        row(between(-3.0, 3.0, [4]), given([4], [0.0, -1.5, 1.0, 0.25]), true, -1),
        row(given([3], [-90.0, 90.0, 30.0]), given([3], [0.0, 1.0, 0.5]), false, -100),
        row(between(-3.0, 3.0, [3]), between(0.25, 0.75, [3]), true, 0),
        row(uniform([]), given([], [1.0]), true, -100),
        row(uniform([2]), given([2], [-1.5, -1.25]), true, -1),
        row(uniform([0, 3]), uniform([0, 3]), true, -100),
        row(uniform([2, 3]), uniform([3]), false, -100)
            .fails("`Label`: shape [3] does not match [2, 3] of `X`"),
        row(uniform([3]), integers_below(2, [3]), false, -100).fails("`Label`: dtype int64 does not match"),
    ]
);

fn row(x: Draw, label: Draw, normalize: bool, ignore_index: i32) -> SigmoidCrossEntropyWithLogits<Draw> {
    SigmoidCrossEntropyWithLogits { x, label, out: out(), normalize, ignore_index }
}

/// The elements that are not ignored, and the factor of each.
struct Counted<T> {
    ignored: i32,
    factor: T,
}
impl<T: KernelFloat> Counted<T> {
    fn new(label: &[T], ignored: i32, normalize: bool) -> Counted<T> {
        let counted = || label.iter().filter(|label| label.to_i32() != Some(ignored)).count().max(1);
        Counted { ignored, factor: if normalize { T::of(1.0 / counted() as f64) } else { T::of(1.0) } }
    }

    fn scaled(&self, label: T, x: T) -> T {
        if label.to_i32() == Some(self.ignored) { T::of(0.0) } else { x * self.factor }
    }
}

/// `dx = dout * (sigmoid(x) - label)`, `dlabel = -dout * x`, both 0 for ignored elements.
#[register_op(grad_of = SigmoidCrossEntropyWithLogits, grad = Composed, inferred, infallible)]
pub struct SigmoidCrossEntropyWithLogitsGrad<V = Var> {
    pub x: V,
    pub label: V,
    pub dout: V,
    #[output]
    pub dx: Option<V>,
    #[output]
    pub dlabel: Option<V>,
    pub normalize: bool,
    pub ignore_index: i32,
}
impl Kernel for SigmoidCrossEntropyWithLogitsGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let SigmoidCrossEntropyWithLogitsGrad { x, label, dout, dx, dlabel, normalize, ignore_index } = self;
        with_float!(x, T => {
            let (x, label, dout) = (x.slice::<T>()?, label.slice::<T>()?, dout.slice::<T>()?);
            let counted = Counted::new(label, *ignore_index, *normalize);
            let fill = |grad: &mut Option<Buf<'_>>, slope: fn(T, T) -> T| -> Result<()> {
                let Some(grad) = grad else { return Ok(()) };
                cx.chunks_mut(grad.slice_mut::<T>()?, PART, |part, grad| {
                    let n = grad.len();
                    let (x, label, dout) =
                        (nth_part(x, part, n), nth_part(label, part, n), nth_part(dout, part, n));
                    for (((grad, x), label), dout) in grad.iter_mut().zip(x).zip(label).zip(dout) {
                        *grad = counted.scaled(*label, *dout * slope(*x, *label));
                    }
                });
                Ok(())
            };
            fill(dx, |x, label| 1.0 / (1.0 + KernelFloat::exp(-x)) - label)?;
            fill(dlabel, |x, _| -x)
        })
    }
}
