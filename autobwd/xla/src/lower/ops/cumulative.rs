//! Cumulative sums and products.

use autobwd_ops::{
    cumprod::{Cumprod, Logcumsumexp},
    cumsum::{Cumsum, CumsumGrad},
};

use super::prelude::*;

family!(Cumprod, Cumsum, CumsumGrad, Logcumsumexp);

/// Inclusive scan along an axis, in as many passes as the length has bits (Hillis and Steele, 1986).
pub(super) fn scan(x: &Hlo, axis: usize, identity: f64, combine: impl Fn(&Hlo, &Hlo) -> Hlo) -> Hlo {
    let (n, mut all, mut distance) = (x.dims()[axis], x.clone(), 1);
    while distance < n {
        all = combine(&shifted(&all, axis, distance, identity), &all);
        distance *= 2;
    }
    all
}

/// The elements moved behind along an axis; a number enters.
fn shifted(x: &Hlo, axis: usize, distance: usize, number: f64) -> Hlo {
    let (mut low, mut high) = (vec![0; x.rank()], vec![0; x.rank()]);
    (low[axis], high[axis]) = (distance as i64, -(distance as i64));
    x.pad(&x.scalar(number), &low, &high, &vec![0; x.rank()])
}

/// How a scan runs over a tensor.
struct CumulativeAxis {
    axis: i32,
    flatten: bool,
    exclusive: bool,
    reverse: bool,
}

impl CumulativeAxis {
    fn run(&self, x: &Hlo, identity: f64, first: f64, combine: impl Fn(&Hlo, &Hlo) -> Hlo) -> Hlo {
        let flat = if self.flatten || x.rank() == 0 { x.reshape(&[x.numel()]) } else { x.clone() };
        let axis = if self.flatten { 0 } else { flat.axis(self.axis) };
        let turned = |x: Hlo| if self.reverse { x.reverse(&[axis]) } else { x };
        let mut all = scan(&turned(flat), axis, identity, combine);
        if self.exclusive && all.dims()[axis] > 0 {
            all = shifted(&all, axis, 1, first);
        }
        turned(all).reshape(x.dims())
    }
}

impl Lower for Cumsum<Hlo> {
    fn lower(&mut self) {
        let Cumsum { axis, flatten, exclusive, reverse, .. } = *self;
        self.out = CumulativeAxis { axis, flatten, exclusive, reverse }.run(&self.x, 0.0, 0.0, |x, y| x + y);
    }
}
impl Lower for CumsumGrad<Hlo> {
    fn lower(&mut self) {
        let CumsumGrad { axis, flatten, exclusive, reverse, .. } = *self;
        let back = CumulativeAxis { axis, flatten, exclusive, reverse: !reverse };
        self.dx = back.run(&self.dout, 0.0, 0.0, |x, y| x + y);
    }
}
impl Lower for Cumprod<Hlo> {
    fn lower(&mut self) {
        let along = CumulativeAxis { axis: self.dim, flatten: false, exclusive: false, reverse: false };
        self.out = along.run(&self.x, 1.0, 1.0, |x, y| x * y);
    }
}

/// `ln(eˣ + eʸ)`
fn log_add(x: &Hlo, y: &Hlo) -> Hlo {
    let (larger, smaller) = (x.max(y), x.min(y));
    let sum = &larger + (smaller - &larger).exp().log1p();
    // The difference of two infinities is NaN.
    larger.is_finite().select(&sum, &larger)
}

impl Lower for Logcumsumexp<Hlo> {
    fn lower(&mut self) {
        let Logcumsumexp { axis, flatten, exclusive, reverse, .. } = *self;
        let lowest = if self.x.dtype() == HloDType::F32 { f64::from(f32::MIN) } else { f64::MIN };
        let along = CumulativeAxis { axis, flatten, exclusive, reverse };
        self.out = along.run(&self.x, f64::NEG_INFINITY, lowest, log_add);
    }
}
