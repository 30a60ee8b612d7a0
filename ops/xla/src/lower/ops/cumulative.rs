//! Cumulative sums.

use autobwd_ops::cumsum::Cumsum;

use super::prelude::*;

family!(Cumsum);

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

impl Lower for Cumsum<Hlo> {
    fn lower(&mut self) {
        let x = &self.x;
        let flat = if self.flatten || x.rank() == 0 { x.reshape(&[x.numel()]) } else { x.clone() };
        let axis = if self.flatten { 0 } else { flat.axis(self.axis) };
        let turned = |x: Hlo| if self.reverse { x.reverse(&[axis]) } else { x };
        let mut all = cumulative_sum(&turned(flat), axis);
        if self.exclusive && all.dims()[axis] > 0 {
            all = shifted(&all, axis, 1);
        }
        self.out = turned(all);
    }
}
