//! Counting up.

use autobwd::{
    Buf, Cx, DType, Element, Float, GradCx, GradRule, Infer, Kernel, Meta, Pointwise, Result, Var, check::*,
    register_op,
};

use crate::shape::Assign;

/// `out = x + step`, where `out` may be the variable `x` itself: a counter.
#[register_op(grad = IncrementGrad, pointwise, kernel)]
pub struct Increment<V = Var> {
    /// Numbers of any shape, as a rule one.
    #[input]
    pub x: V,
    /// Same shape and dtype as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// The summand, of which integers take the whole part; they wrap around.
    #[attr(default = 1.0)]
    pub step: f32,
}
impl Infer for Increment<Meta> {
    fn infer(&mut self) -> Result<()> {
        if !self.x.dtype.is_float() && !matches!(self.x.dtype, DType::I32 | DType::I64) {
            return Err(self.x.wrong("signed or floating point numbers are needed"));
        }
        self.out.like(&self.x);
        Ok(())
    }
}
impl Increment<Buf<'_>> {
    fn each<T: Element>(&mut self, f: impl Fn(T) -> T) -> Result<()> {
        self.out.inout(&self.x)?.copied().iter_mut().for_each(|x| *x = f(*x));
        Ok(())
    }
}
impl Kernel for Increment<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let step = self.step;
        match self.x.dtype() {
            DType::F32 => self.each(|x: f32| x + step),
            DType::F64 => self.each(|x: f64| x + f64::from(step)),
            DType::I32 => self.each(|x: i32| x.wrapping_add(step as i32)),
            DType::I64 => self.each(|x: i64| x.wrapping_add(step as i64)),
            DType::Bool | DType::U8 => Err(self.x.wrong("signed or floating point numbers are needed")),
        }
    }
}
impl<F: Float> Pointwise for Increment<F> {
    fn eval(&mut self) {
        self.out = self.x + F::of(self.step.into());
    }
}
autobwd::samples!(
    Increment,
    [
        Increment { x: uniform([1]), out: out(), step: 1.0 },
        Increment { x: uniform([2, 3]), out: out(), step: -1.5 },
        Increment { x: integers_below(9, []), out: out(), step: 2.0 },
        Increment { x: given([2], [2147483647.0, -1.0]).of(DType::I32), out: out(), step: 1.75 },
        Sample::fails(
            Increment { x: integers_below(2, [1]).of(DType::Bool), out: out(), step: 1.0 },
            "`X`: signed or floating point numbers are needed"
        ),
    ]
);

/// `dx = assign(dout)`. Where the operator works in place, `x` keeps the value that the forward part gave it.
pub struct IncrementGrad;
impl GradRule<Increment> for IncrementGrad {
    fn emit(fwd: &Increment, g: &mut GradCx<'_>) {
        if let Some(dx) = g.wanted(fwd.x) {
            g.push(Assign { x: g.grad(fwd.out), out: dx });
        }
    }
}
