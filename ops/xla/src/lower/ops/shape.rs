//! Shapes: reshaping, permuting, broadcasting, padding.

use autobwd::operators::{Reshape2, Reshape2Grad};
use autobwd_ops::shape::{
    ExpandAsV2, ExpandAsV2Grad, ExpandV2, ExpandV2Grad, FlattenContiguousRange, FlattenContiguousRangeGrad,
    Flip, Meshgrid, MeshgridGrad, Pad, PadGrad, Roll, RollGrad, ShapeOp, Size, Squeeze2, Squeeze2Grad, Tile,
    TileGrad, Transpose2, Transpose2Grad, TrilTriu, Unsqueeze2, Unsqueeze2Grad,
};

use super::prelude::*;

family!(
    ExpandAsV2,
    ExpandAsV2Grad,
    ExpandV2,
    ExpandV2Grad,
    FlattenContiguousRange,
    FlattenContiguousRangeGrad,
    Flip,
    Meshgrid,
    MeshgridGrad,
    Pad,
    PadGrad,
    Reshape2,
    Reshape2Grad,
    Roll,
    RollGrad,
    ShapeOp,
    Size,
    Squeeze2,
    Squeeze2Grad,
    Tile,
    TileGrad,
    Transpose2,
    Transpose2Grad,
    TrilTriu,
    Unsqueeze2,
    Unsqueeze2Grad
);

/// Operators whose output has the elements of an input in other dimensions.
macro_rules! reshaped {
    ($($op:ident: $to:ident = $from:ident),* $(,)?) => {$(
        impl Lower for $op<Hlo> {
            fn lower(&mut self) {
                self.$to = self.$from.clone();
            }
        }
    )*};
}
reshaped!(
    FlattenContiguousRange: out = x,
    FlattenContiguousRangeGrad: dx = dout,
    Reshape2: out = x,
    Reshape2Grad: dx = dout,
    Squeeze2: out = x,
    Squeeze2Grad: dx = dout,
    Unsqueeze2: out = x,
    Unsqueeze2Grad: dx = dout,
);

/// Operators that broadcast to the dimensions of the output, and their gradients.
macro_rules! expanded {
    ($($op:ident $gradient:ident),*) => {$(
        impl Lower for $op<Hlo> {
            fn lower(&mut self) {
                self.out = self.x.broadcast_to(self.out.dims());
            }
        }
        impl Lower for $gradient<Hlo> {
            fn lower(&mut self) {
                self.dx = self.dout.sum_to(self.dx.dims());
            }
        }
    )*};
}
expanded!(ExpandAsV2 ExpandAsV2Grad, ExpandV2 ExpandV2Grad);

fn order(x: &Hlo, axes: &[i32]) -> Vec<usize> {
    axes.iter().map(|axis| x.axis(*axis)).collect()
}

impl Lower for Transpose2<Hlo> {
    fn lower(&mut self) {
        self.out = self.x.transpose(&order(&self.x, &self.axis));
    }
}
impl Lower for Transpose2Grad<Hlo> {
    fn lower(&mut self) {
        let order = order(&self.dout, &self.axis);
        let mut back = vec![0; order.len()];
        order.iter().enumerate().for_each(|(to, from)| back[*from] = to);
        self.dx = self.dout.transpose(&back);
    }
}
impl Lower for Flip<Hlo> {
    fn lower(&mut self) {
        self.out = self.x.reverse(&order(&self.x, &self.axis));
    }
}

/// Each dimension of the result as repetitions and a dimension of the value; the axes of the repetitions.
fn repetitions(x: &[usize], out: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let added = out.len() - x.len();
    let own = |axis: usize| axis.checked_sub(added).map_or(1, |axis| x[axis]);
    let times = |axis: usize| out[axis].checked_div(own(axis)).unwrap_or(1);
    let pairs = (0..out.len()).flat_map(|axis| [times(axis), own(axis)]);
    (pairs.collect(), (0..out.len()).map(|axis| 2 * axis).collect())
}

impl Lower for Tile<Hlo> {
    fn lower(&mut self) {
        if self.x.numel() == 0 || self.out.numel() == 0 {
            self.out = self.out.full_like(0.0);
            return;
        }
        let (pairs, times) = repetitions(self.x.dims(), self.out.dims());
        let own: Vec<usize> = times.iter().map(|axis| pairs[axis + 1]).collect();
        let axes: Vec<usize> = times.iter().map(|axis| axis + 1).collect();
        self.out = self.x.reshape(&own).broadcast(&pairs, &axes);
    }
}
impl Lower for TileGrad<Hlo> {
    fn lower(&mut self) {
        if self.dx.numel() == 0 || self.dout.numel() == 0 {
            self.dx = self.dx.full_like(0.0);
            return;
        }
        let (pairs, times) = repetitions(self.dx.dims(), self.dout.dims());
        self.dx = self.dout.reshape(&pairs).sum(&times);
    }
}

/// Elements before and behind, from pairs.
fn sides(paddings: &[i32]) -> (Vec<i64>, Vec<i64>) {
    paddings.chunks_exact(2).map(|pair| (i64::from(pair[0]), i64::from(pair[1]))).unzip()
}

impl Lower for Pad<Hlo> {
    fn lower(&mut self) {
        let (low, high) = sides(&self.paddings);
        let value = self.x.scalar(f64::from(self.pad_value));
        self.out = self.x.pad(&value, &low, &high, &vec![0; self.x.rank()]);
    }
}
impl Lower for PadGrad<Hlo> {
    fn lower(&mut self) {
        let (low, high) = sides(&self.paddings);
        let cut = |sides: &[i64]| sides.iter().map(|n| -n).collect::<Vec<_>>();
        self.dx = self.dout.pad_zeros(&cut(&low), &cut(&high));
    }
}

impl Lower for TrilTriu<Hlo> {
    fn lower(&mut self) {
        let (x, rank) = (&self.x, self.x.rank());
        let position = |axis: usize| x.iota(HloDType::I32, x.dims(), axis);
        let distance = position(rank - 1) - position(rank - 2);
        let diagonal = distance.full_like(f64::from(self.diagonal));
        let is_kept =
            if self.lower { distance.less_equal(&diagonal) } else { distance.greater_equal(&diagonal) };
        self.out = is_kept.select(x, &x.full_like(0.0));
    }
}

/// The elements moved along axes; without axes, along the flattened tensor. Elements that leave enter at the other end.
fn rolled(x: &Hlo, shifts: (&Option<Hlo>, &[i64]), axis: &[i64], back: bool) -> Hlo {
    let shifts: Vec<i64> = match shifts.0.as_ref().and_then(Hlo::known) {
        Some(known) => known.iter().map(|shift| *shift as i64).collect(),
        None => shifts.1.to_vec(),
    };
    let mut value = if axis.is_empty() { x.reshape(&[x.numel()]) } else { x.clone() };
    if value.numel() == 0 {
        return x.clone();
    }
    for (i, shift) in shifts.iter().enumerate() {
        let at = axis.get(i).map_or(0, |axis| value.axis(*axis));
        let n = value.dims()[at];
        let shift = (if back { -shift } else { *shift }).rem_euclid(n as i64) as usize;
        let parts = [value.slice_axis(at, n - shift, n), value.slice_axis(at, 0, n - shift)];
        value = Hlo::concat(&parts, at).unwrap_or(value);
    }
    value.reshape(x.dims())
}

impl Lower for Roll<Hlo> {
    fn lower(&mut self) {
        self.out = rolled(&self.x, (&self.shifts_tensor, &self.shifts), &self.axis, false);
    }
}
impl Lower for RollGrad<Hlo> {
    fn lower(&mut self) {
        self.dx = rolled(&self.dout, (&self.shifts_tensor, &self.shifts), &self.axis, true);
    }
}

impl Lower for Meshgrid<Hlo> {
    fn lower(&mut self) {
        for (i, (out, x)) in self.out.iter_mut().zip(&self.x).enumerate() {
            *out = x.reshape(&[x.numel()]).broadcast(out.dims(), &[i]);
        }
    }
}
impl Lower for MeshgridGrad<Hlo> {
    fn lower(&mut self) {
        for (i, (dx, dout)) in self.dx.iter_mut().zip(&self.dout).enumerate() {
            if let Some(dx) = dx {
                *dx = dout.sum(&(0..dout.rank()).filter(|axis| *axis != i).collect::<Vec<_>>());
            }
        }
    }
}

impl Lower for ShapeOp<Hlo> {
    fn lower(&mut self) {
        let dims: Vec<f64> = self.input.dims().iter().map(|dim| *dim as f64).collect();
        self.out = self.out.vector(self.out.dtype(), &dims);
    }
}
impl Lower for Size<Hlo> {
    fn lower(&mut self) {
        self.out = self.out.full_like(self.input.numel() as f64);
    }
}
