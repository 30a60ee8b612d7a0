//! Reductions, and sums of tensors.

use autobwd_ops::reduce::{ReduceAmax, ReduceAmin, ReduceAttrs, ReduceMax, ReduceMin, ReduceProd, ReduceSum};

use super::prelude::*;

family!(ReduceAmax, ReduceAmin, ReduceMax, ReduceMin, ReduceProd, ReduceSum);

/// The reduced axes of a tensor.
fn axes(x: &Hlo, reduce: &ReduceAttrs) -> Vec<usize> {
    if reduce.reduce_all || reduce.dim.is_empty() || x.rank() == 0 {
        return (0..x.rank()).collect();
    }
    let mut axes: Vec<usize> = reduce.dim.iter().map(|axis| x.axis(*axis)).collect();
    axes.sort_unstable();
    axes.dedup();
    axes
}

macro_rules! reductions {
    ($($op:ident $by:ident),*) => {$(
        impl Lower for $op<Hlo> {
            fn lower(&mut self) {
                let x = self.x.convert(self.out.dtype());
                self.out = x.reduce(Reduction::$by, &axes(&x, &self.reduce));
            }
        }
    )*};
}
reductions!(
    ReduceAmax Max, ReduceAmin Min, ReduceMax Max, ReduceMin Min, ReduceProd Product, ReduceSum Sum
);
