//! An operator whose output shape depends on data.

use autobwd::{
    Buf, Cx, DType, Dims, Expr, Infer, Kernel, Meta, New, Result, Var, ZeroGrad, check::*, emit,
    op::with_float, register_op, tensor::Dim,
};

/// The positions of the local maxima of a row of numbers: elements that are larger than both neighbours and than a level.
#[register_op(grad = ZeroGrad, primitive)]
pub struct Peaks<V = Var> {
    /// `[n]`.
    #[input]
    pub x: V,
    /// Ascending positions, int64, `[k]`; of two neighbours, at most one is a maximum.
    #[output]
    pub out: V,
    /// The level.
    #[attr(default = 0.0)]
    pub level: f64,
}
impl Infer for Peaks<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        let [n] = self.x.unpack()?;
        self.out.set(DType::I64, Dims::from_iter([Dim::at_most(n / 2)]));
        Ok(())
    }
}
impl Kernel for Peaks<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let triples = self.x.slice::<T>()?.windows(3).zip(1..);
            let is_peak = |x: &[T]| x[1] > x[0] && x[1] > x[2] && x[1] > self.level as T;
            let peaks = triples.filter(|(x, _)| is_peak(x)).map(|(_, place)| place);
            let out = self.out.decide::<i64>(&[peaks.clone().count()])?;
            out.iter_mut().zip(peaks).for_each(|(out, place)| *out = place);
        });
        Ok(())
    }
}
autobwd::samples!(
    Peaks,
    [
        Peaks { x: distinct([9]), out: out(), level: 0.0 },
        Peaks { x: given([6], [1.0, 3.0, 2.0, 2.0, 5.0, f64::NAN]), out: out(), level: 2.9 },
        Peaks { x: given([3], [-3.0, -2.0, -3.0]), out: out(), level: -9.0 },
        Peaks { x: distinct([0]), out: out(), level: 0.0 },
        Peaks { x: uniform([2, 2]), out: out(), level: 0.0 }.fails("1 dimensions are needed"),
        Peaks { x: integers_below(3, [4]), out: out(), level: 0.0 }
            .fails("floating point numbers are needed"),
    ]
);

/// The positions of the local maxima of a vector above a level.
pub fn peaks(x: &Expr, level: f64) -> Expr {
    emit(Peaks { x: x.into(), out: New, level }).out
}
