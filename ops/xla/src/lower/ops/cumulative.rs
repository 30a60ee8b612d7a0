//! Cumulative sums.

use autobwd_ops::cumsum::{Cumsum, CumsumGrad};

use super::prelude::*;

rules!(Cumsum, CumsumGrad);

/// Sums of the elements up to each along an axis, in as many passes as the length has bits (Hillis and Steele, 1986).
pub(super) fn cumulative_sum(x: &Hlo, axis: usize) -> Hlo {
    let (n, mut all, mut distance) = (x.dims()[axis], x.clone(), 1);
    while distance < n {
        all = shifted(&all, axis, distance) + &all;
        distance *= 2;
    }
    all
}

/// The elements moved towards the end of an axis; zeros enter.
fn shifted(x: &Hlo, axis: usize, distance: usize) -> Hlo {
    let (mut low, mut high) = (vec![0; x.rank()], vec![0; x.rank()]);
    (low[axis], high[axis]) = (distance as i64, -(distance as i64));
    x.pad(&x.scalar(0.0), &low, &high, &vec![0; x.rank()])
}

/// How a cumulative sum runs over a tensor.
struct CumulativeAxis {
    axis: i32,
    flatten: bool,
    exclusive: bool,
    reverse: bool,
}

impl CumulativeAxis {
    fn sum(&self, x: &Hlo) -> Hlo {
        let flat = if self.flatten || x.rank() == 0 { x.reshape(&[x.numel()]) } else { x.clone() };
        let axis = if self.flatten { 0 } else { flat.axis(self.axis) };
        let turned = |x: Hlo| if self.reverse { x.reverse(&[axis]) } else { x };
        let mut all = cumulative_sum(&turned(flat), axis);
        if self.exclusive && all.dims()[axis] > 0 {
            all = shifted(&all, axis, 1);
        }
        turned(all).reshape(x.dims())
    }
}

impl Rule<Hlo> for Cumsum<Hlo> {
    fn apply(&mut self) {
        let Cumsum { axis, flatten, exclusive, reverse, .. } = *self;
        self.out = CumulativeAxis { axis, flatten, exclusive, reverse }.sum(&self.x);
    }
}
impl Rule<Hlo> for CumsumGrad<Hlo> {
    fn apply(&mut self) {
        let CumsumGrad { axis, flatten, exclusive, reverse, .. } = *self;
        self.dx = CumulativeAxis { axis, flatten, exclusive, reverse: !reverse }.sum(&self.dout);
    }
}
