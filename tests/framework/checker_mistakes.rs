//! Single mistakes in shape rules, declarations and gradients: the checker finds each. For those of kernels, see
//! `checker_kernel_mistakes`.

use autobwd::{
    Buf, Composed, Composition, Cx, DType, Derived, Expr, Float, GradCx, GradRule, Infer, Kernel, Meta, New,
    NoGrad, OpDesc, Pointwise, Result, Var,
    check::{Sample, integers, integers_below, out, uniform},
    emit,
    op::{Decompose, Integer, Parts, Peephole, PointwiseInteger, with_float},
    operators, register_op,
    tensor::OptionalBuf,
};

use crate::support::{
    checks::{assert_all_found, kernel},
    operators::FirstRows,
};

/// `out = x²`, and `dx = factor x dout`; the input of the gradient operator is `$x`, its elements have type `$T`.
macro_rules! squared {
    ($op:ident, $grad:ident, $name:literal, |$x:ident, $T:ident| $factor:expr) => {
        kernel!($op, $name, $grad, |x, out, T| square(x.slice::<T>()?, out));
        #[register_op(grad_of = $op, grad = NoGrad)]
        pub(crate) struct $grad<V = Var> {
            pub(crate) x: V,
            pub(crate) dout: V,
            #[output(like = x)]
            pub(crate) dx: V,
        }
        impl Kernel for $grad<Buf<'_>> {
            fn run(&mut self, _: &Cx) -> Result<()> {
                with_float!(self.x, $T => {
                    let $x = &self.x;
                    let factor: $T = $factor;
                    let (x, d) = (self.x.slice::<$T>()?, self.dout.slice::<$T>()?);
                    for ((o, x), d) in self.dx.slice_mut::<$T>()?.iter_mut().zip(x).zip(d) {
                        *o = factor * x * d;
                    }
                });
                Ok(())
            }
        }
    };
}

fn square<T: Copy + std::ops::Mul<Output = T>>(x: &[T], out: &mut [T]) {
    out.iter_mut().zip(x).for_each(|(out, x)| *out = *x * *x);
}

squared!(SingleWrong, SingleWrongGrad, "single_wrong", |x, T| if x.dtype() == DType::F32 {
    2.02
} else {
    2.0
});
squared!(ScalarWrong, ScalarWrongGrad, "scalar_wrong", |x, T| if x.dims().is_empty() { 3.0 } else { 2.0 });

/// Its shape rule indexes a dimension that vectors lack.
#[register_op(name = "rule_panics", grad = NoGrad)]
pub(crate) struct RulePanics<V = Var> {
    #[input]
    pub(crate) x: V,
    #[output]
    pub(crate) out: V,
}
impl Infer for RulePanics<Meta> {
    fn infer(&mut self) -> Result<()> {
        _ = self.x.dims[1];
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for RulePanics<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.out.copy_from(&self.x)
    }
}

kernel!(WrongParts, "wrong_parts", NoGrad, decomposed, |x, out, T| square(x.slice::<T>()?, out));
impl Decompose for WrongParts {
    fn decompose(&self, parts: &mut Parts<'_>) {
        parts.push(operators::Scale {
            x: self.x,
            out: self.out,
            scale: 2.0,
            bias: 0.0,
            bias_after_scale: true,
        });
    }
}

kernel!(LostByPeephole, "lost_by_peephole", NoGrad, peephole = LostByPeephole, |x, out, T| square(
    x.slice::<T>()?,
    out
));
impl Peephole<LostByPeephole> for LostByPeephole {
    fn merge(&self, then: &LostByPeephole) -> Option<OpDesc> {
        Some(LostByPeephole { x: self.x, out: then.out }.into())
    }
}
autobwd::samples!(LostByPeephole, [LostByPeephole { x: uniform([2, 3]), out: out() }]);

/// Divides by the largest element, so that no part of a parameter may be updated alone.
#[register_op(name = "update_of_all", grad = NoGrad, elementwise_update)]
pub(crate) struct UpdateOfAll<V = Var> {
    #[input]
    pub(crate) param: V,
    #[input]
    pub(crate) grad: V,
    #[output(like = param)]
    pub(crate) param_out: V,
}
impl Kernel for UpdateOfAll<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        with_float!(self.param, T => {
            let (param, grad) = (self.param.slice::<T>()?, self.grad.slice::<T>()?);
            let norm = grad.iter().fold(1.0, |sum, x| sum + x * x);
            for ((out, p), g) in self.param_out.slice_mut::<T>()?.iter_mut().zip(param).zip(grad) {
                *out = p - g / norm;
            }
        });
        Ok(())
    }
}

/// `out = 2 x`, `out2 = 3 x`
#[register_op(name = "nested_gradients", grad = NestedGradientsGrad)]
pub(crate) struct NestedGradients<V = Var> {
    #[input]
    pub(crate) x: V,
    #[output(like = x)]
    pub(crate) out: V,
    #[output(like = x)]
    pub(crate) out2: V,
}
impl Kernel for NestedGradients<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let (x, out2) = (self.x.slice::<T>()?, self.out2.slice_mut::<T>()?);
            for ((out, out2), x) in self.out.slice_mut::<T>()?.iter_mut().zip(out2).zip(x) {
                (*out, *out2) = (2.0 * x, 3.0 * x);
            }
        });
        Ok(())
    }
}
/// Ignores the second gradient where the first is absent.
#[register_op(grad_of = NestedGradients, grad = NoGrad)]
pub(crate) struct NestedGradientsGrad<V = Var> {
    pub(crate) x: V,
    #[input]
    pub(crate) dout: Option<V>,
    #[input]
    pub(crate) dout2: Option<V>,
    #[output(like = x)]
    pub(crate) dx: V,
}
impl Kernel for NestedGradientsGrad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let dx = self.dx.slice_mut::<T>()?;
            dx.fill(0.0);
            if let Some(d) = self.dout.slice::<T>()? {
                dx.iter_mut().zip(d).for_each(|(dx, d)| *dx += 2.0 * d);
                if let Some(d) = self.dout2.slice::<T>()? {
                    dx.iter_mut().zip(d).for_each(|(dx, d)| *dx += 3.0 * d);
                }
            }
        });
        Ok(())
    }
}

/// `out = x[i]`
macro_rules! taken {
    ($op:ident, $grad:ident, $name:literal, |$i:ident, $n:ident| $check:expr, |$dx:ident, $d:ident| $add:expr) => {
        #[register_op(name = $name, grad = $grad)]
        pub(crate) struct $op<V = Var> {
            #[input]
            pub(crate) x: V,
            #[input]
            pub(crate) i: V,
            #[output]
            pub(crate) out: V,
        }
        impl Infer for $op<Meta> {
            fn infer(&mut self) -> Result<()> {
                self.x.float()?;
                let [_] = self.x.unpack()?;
                self.i.require(self.i.dtype == DType::I64, || "int64 is needed".into())?;
                self.out.set(self.x.dtype, self.i.dims.clone());
                Ok(())
            }
        }
        impl Kernel for $op<Buf<'_>> {
            fn run(&mut self, _: &Cx) -> Result<()> {
                with_float!(self.x, T => {
                    let (x, i) = (self.x.slice::<T>()?, self.i.slice::<i64>()?);
                    for (out, $i) in self.out.slice_mut::<T>()?.iter_mut().zip(i) {
                        let $n = x.len();
                        $check;
                        *out = x[*$i as usize];
                    }
                });
                Ok(())
            }
        }
        #[register_op(grad_of = $op, grad = NoGrad)]
        pub(crate) struct $grad<V = Var> {
            pub(crate) x: V,
            pub(crate) i: V,
            pub(crate) dout: V,
            #[output(like = x)]
            pub(crate) dx: V,
        }
        impl Kernel for $grad<Buf<'_>> {
            fn run(&mut self, _: &Cx) -> Result<()> {
                with_float!(self.x, T => {
                    let (i, d) = (self.i.slice::<i64>()?, self.dout.slice::<T>()?);
                    let dx = self.dx.slice_mut::<T>()?;
                    dx.fill(0.0);
                    for ($i, $d) in i.iter().zip(d) {
                        let $n = dx.len();
                        $check;
                        let $dx = &mut dx[*$i as usize];
                        $add;
                    }
                });
                Ok(())
            }
        }
    };
}
fn in_range(i: i64, n: usize) -> Result<()> {
    let is_in_range = usize::try_from(i).is_ok_and(|i| i < n);
    is_in_range.then_some(()).ok_or_else(|| autobwd::Error::data(format!("index {i} is out of range")))
}
fn trust(_index: i64, _rows: usize) {}

taken!(TakenUnchecked, TakenUncheckedGrad, "taken_unchecked", |i, n| trust(*i, n), |dx, d| *dx += *d);
taken!(TakenOnce, TakenOnceGrad, "taken_once", |i, n| in_range(*i, n)?, |dx, d| *dx = *d);

/// `out = n x`, of `n` elements along an axis that is not checked.
#[register_op(name = "unchecked_axis", grad = UncheckedAxisRule)]
pub(crate) struct UncheckedAxis<V = Var> {
    #[input]
    pub(crate) x: V,
    #[output(like = x)]
    pub(crate) out: V,
    #[attr(default = 0)]
    pub(crate) axis: i64,
}
impl Kernel for UncheckedAxis<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let n = self.x.dims()[self.axis as usize];
        with_float!(self.x, T => {
            let x = self.x.slice::<T>()?;
            self.out.slice_mut::<T>()?.iter_mut().zip(x).for_each(|(out, x)| *out = x * n as T);
        });
        Ok(())
    }
}
pub(crate) struct UncheckedAxisRule;
impl GradRule<UncheckedAxis> for UncheckedAxisRule {
    fn emit(fwd: &UncheckedAxis, g: &mut GradCx<'_>) {
        let dout = g.grad(fwd.out);
        if let Some(dx) = g.wanted(fwd.x) {
            g.push(UncheckedAxis { x: dout, out: dx, axis: fwd.axis });
        }
    }
}

/// `out = x²`, for integers `2 x`
#[register_op(name = "integers_disagree", grad = Derived, pointwise, integers)]
pub(crate) struct IntegersDisagree<V = Var> {
    #[input]
    pub(crate) x: V,
    #[output]
    pub(crate) out: V,
}
impl<F: Float> Pointwise for IntegersDisagree<F> {
    fn eval(&mut self) {
        self.out = self.x * self.x;
    }
}
impl<I: Integer> PointwiseInteger for IntegersDisagree<I> {
    fn eval(&mut self) -> Result<()> {
        self.out = self.x + self.x;
        Ok(())
    }
}

/// An operator composed of another one.
macro_rules! composed_of {
    ($op:ident, $name:literal, $other:ident) => {
        kernel!($op, $name, Composed, |x, out, T| out.copy_from_slice(x.slice()?));
        impl Composition for $op<Expr> {
            fn compose(&mut self) {
                self.out = emit($other { x: (&self.x).into(), out: New }).out;
            }
        }
    };
}
composed_of!(OfItself, "of_itself", OfItself);
composed_of!(OfOther, "of_other", OtherOfIt);
composed_of!(OtherOfIt, "other_of_it", OfOther);

#[test]
fn mistakes_in_rules_and_gradients_are_found() {
    let matrix = || uniform([2, 3]);
    let mistakes: Vec<(Sample, &str)> = vec![
        (SingleWrong { x: matrix(), out: out() }.into(), "gradient `X@GRAD` in float32 is "),
        (ScalarWrong { x: matrix(), out: out() }.into(), "`X` of 0 dimensions, the gradient of `X` is "),
        (
            RulePanics { x: matrix(), out: out() }.into(),
            "of 0 dimensions, the shape rule of `rule_panics` panicked at tests/framework/checker_mistakes.rs:",
        ),
        (WrongParts { x: matrix(), out: out() }.into(), "output `Out`, fused with other operators, is "),
        (
            LostByPeephole { x: matrix(), out: out() }.into(),
            "an output of the operator that replaces `lost_by_peephole` and `lost_by_peephole` is ",
        ),
        (
            UpdateOfAll { param: matrix(), grad: matrix(), param_out: out() }.into(),
            "of an update declared elementwise, computed in parts, is ",
        ),
        (
            NestedGradients { x: matrix(), out: out(), out2: out() }.into(),
            "with the gradient of `Out` absent, the gradient of `X` is ",
        ),
        (
            TakenUnchecked { x: uniform([6]), i: integers_below(4, [3]), out: out() }.into(),
            "on inputs with all bytes 0x7f, the kernel of `taken_unchecked` panicked at tests/framework/checker_mistakes.rs:",
        ),
        (
            TakenOnce { x: uniform([9]), i: integers(&[1, 3, 8]), out: out() }.into(),
            "every element of `I` made 1, the gradient of `X` is ",
        ),
        (
            UncheckedAxis { x: matrix(), out: out(), axis: 0 }.into(),
            "attribute `axis` made -1, operator `unchecked_axis` (block 0, operator 0; X = `X`, Out = `Out`): the \
             kernel of `unchecked_axis` panicked at tests/framework/checker_mistakes.rs:",
        ),
        (
            IntegersDisagree { x: matrix(), out: out() }.into(),
            "output `Out`[0, 0] is 6 for integers, but 9 by the formula for the same numbers",
        ),
        (
            OfItself { x: matrix(), out: out() }.into(),
            "the composition of `of_itself` contains `of_itself` itself",
        ),
        (
            OfOther { x: matrix(), out: out() }.into(),
            "contains `of_other` itself (`of_other` → `other_of_it` → ",
        ),
        (
            FirstRows { x: matrix(), out: out(), numbers: vec![1, 0] }.into(),
            "`X@GRAD`: its kernel wrote row 0 after row 1; rows ascend, each once, and -1 ends them",
        ),
    ];
    assert_all_found(mistakes);
}
