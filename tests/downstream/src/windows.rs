//! An operator whose shape rule computes with dimensions, with a function as its gradient rule.

use autobwd::{
    Buf, Cx, Dims, Expr, GradCx, Infer, Kernel, Meta, New, Result, Var, check::*, emit, op::with_float,
    register_op,
};
use autobwd_ops::shape::Pad;

// The operator.
/// Sums of windows: `out[i] = Σⱼ x[i + j]` for `j < window`.
#[register_op(grad = window_sums_gradient)]
pub struct WindowSums<V = Var> {
    /// `[n]`.
    #[input]
    pub x: V,
    /// `[n - window + 1]`.
    #[output]
    pub out: V,
    /// Length of a window.
    #[attr(min = 1)]
    pub window: i64,
}
impl Infer for WindowSums<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        let [n] = self.x.unpack()?;
        self.out.set(self.x.dtype, Dims::from_iter([n - self.window + 1]));
        Ok(())
    }
}
impl Kernel for WindowSums<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let windows = self.x.slice::<T>()?.windows(self.window as usize);
            self.out.slice_mut::<T>()?.iter_mut().zip(windows).for_each(|(out, x)| *out = x.iter().sum());
        });
        Ok(())
    }
}
autobwd::samples!(
    WindowSums,
    [
        WindowSums { x: uniform([6]), out: out(), window: 3 },
        WindowSums { x: uniform([4]), out: out(), window: 5 },
        WindowSums { x: uniform([4]), out: out(), window: 6 }.fails("`Out`: dimension 0 is negative, -1"),
        WindowSums { x: uniform([4]), out: out(), window: 0 }.fails("must be at least 1, is 0"),
    ]
);

/// `dx` has the sums of windows of `dout` between `window - 1` zeros on either side: the same operator.
fn window_sums_gradient(fwd: &WindowSums, g: &mut GradCx<'_>) {
    let Some(dx) = g.wanted(fwd.x) else { return };
    let (dout, padded) = (g.grad(fwd.out), g.fresh("padded"));
    let zeros = fwd.window as i32 - 1;
    g.push(Pad { x: dout, out: padded, paddings: vec![zeros, zeros], pad_value: 0.0 });
    g.push(WindowSums { x: padded, out: dx, window: fwd.window });
}
// End of the operator.

/// Sums of all windows of a vector. Fails unless `x` is a floating-point vector with at least `window - 1` elements.
#[track_caller]
pub fn window_sums(x: &Expr, window: usize) -> Expr {
    emit(WindowSums { x: x.into(), out: New, window: window as i64 }).out
}
