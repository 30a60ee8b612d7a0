//! Matrix products.

use autobwd_ops::matmul::MatmulV2;

use super::prelude::*;

family!(MatmulV2);

/// The dimensions before the last two, broadcast.
fn batch_dims(x: &Hlo, y: &Hlo) -> Vec<usize> {
    let (x, y) = (&x.dims()[..x.rank() - 2], &y.dims()[..y.rank() - 2]);
    let rank = x.len().max(y.len());
    let of = |dims: &[usize], i: usize| (i + dims.len()).checked_sub(rank).map_or(1, |i| dims[i]);
    (0..rank).map(|i| if of(x, i) == 1 { of(y, i) } else { of(x, i) }).collect()
}

fn in_batch(value: &Hlo, batch: &[usize]) -> Hlo {
    let dims: Vec<usize> = batch.iter().chain(&value.dims()[value.rank() - 2..]).copied().collect();
    value.broadcast_to(&dims)
}

impl Lower for MatmulV2<Hlo> {
    fn lower(&mut self) {
        // Vectors become a row and a column.
        let matrix = |value: &Hlo, transposed: bool, vector: [usize; 2]| match (value.rank(), transposed) {
            (1, _) => value.reshape(&vector),
            (_, true) => value.transposed(),
            (_, false) => value.clone(),
        };
        let x = matrix(&self.x, self.trans_x, [1, self.x.numel()]);
        let y = matrix(&self.y, self.trans_y, [self.y.numel(), 1]);
        let batch = batch_dims(&x, &y);
        self.out = in_batch(&x, &batch).matmul(&in_batch(&y, &batch));
    }
}
