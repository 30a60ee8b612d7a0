//! The neighbours of floating-point numbers.

use autobwd::{Buf, Cx, DType, Infer, Kernel, Meta, NoGrad, Result, Var, check::*, register_op};

use crate::kernel_helpers::{PART, nth_part};

/// The next number of the dtype after `x` in the direction of `y`; `y` where both are equal, NaN where one is NaN.
#[register_op(grad = NoGrad, infallible, primitive)]
pub struct Nextafter<V = Var> {
    /// float32 or float64 numbers of any shape.
    #[input("x")]
    pub x: V,
    /// Same shape and dtype as `x`.
    #[input("y")]
    pub y: V,
    /// Same shape and dtype as `x`.
    #[output("out")]
    pub out: V,
}
impl Infer for Nextafter<Meta> {
    fn infer(&mut self) -> Result<()> {
        let fits = matches!(self.x.dtype, DType::F32 | DType::F64);
        self.x.require(fits, || "float32 or float64 is needed".into())?;
        self.y.same_as(&self.x)?;
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for Nextafter<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        macro_rules! each {
            ($dtype:ty, $next:path) => {{
                let (x, y) = (self.x.slice::<$dtype>()?, self.y.slice::<$dtype>()?);
                cx.chunks_mut(self.out.slice_mut::<$dtype>()?, PART, |part, out| {
                    let pairs = nth_part(x, part, out.len()).iter().zip(nth_part(y, part, out.len()));
                    out.iter_mut().zip(pairs).for_each(|(out, (x, y))| *out = $next(*x, *y));
                });
            }};
        }
        if self.x.dtype() == DType::F32 {
            each!(f32, libm::nextafterf);
        } else {
            each!(f64, libm::nextafter);
        }
        Ok(())
    }
}
autobwd::samples!(
    Nextafter,
    [
        nextafter(uniform([2, 3]), uniform([2, 3]), DType::F32).not_a_derivative(NO_GRADIENT),
        nextafter(uniform([2, 3]), uniform([2, 3]), DType::F64).not_a_derivative(NO_GRADIENT),
        nextafter(given([4], SPECIAL), given([4], [1.0, -1.0, 0.0, 2.0]), DType::F32)
            .not_a_derivative(NO_GRADIENT),
        nextafter(uniform([]), uniform([]), DType::F64).not_a_derivative(NO_GRADIENT),
        nextafter(uniform([0, 3]), uniform([0, 3]), DType::F64).not_a_derivative(NO_GRADIENT),
        nextafter(uniform([2, 3]), uniform([3]), DType::F64).fails("`y`: shape [3]"),
        nextafter(uniform([2]), uniform([2]), DType::F16).fails("`x`: float32 or float64 is needed"),
        nextafter(integers(&[2]), integers(&[3]), DType::I64).fails("`x`: float32 or float64 is needed"),
    ]
);

const NO_GRADIENT: &str = "it has no gradient, as in the reference";
const SPECIAL: [f64; 4] = [1.0, 0.0, f64::INFINITY, f64::NAN];

fn nextafter(x: Draw, y: Draw, dtype: DType) -> Nextafter<Draw> {
    Nextafter { x: x.of(dtype), y: y.of(dtype), out: out() }
}
