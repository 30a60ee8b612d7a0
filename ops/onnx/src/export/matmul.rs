//! Matrix products.

use autobwd::op::Rule;
use autobwd_ops::matmul::MatmulV2;

use super::Onnx;
use crate::rules;

rules!(MatmulV2);

/// Matrices with rows and columns exchanged, if they are stored so; a vector is a row or a column.
fn factor(x: &Onnx, is_transposed: bool) -> Onnx {
    let rank = x.rank();
    if !is_transposed || rank < 2 {
        return x.clone();
    }
    let mut axes: Vec<i64> = (0..rank as i64).collect();
    axes.swap(rank - 1, rank - 2);
    x.permute(&axes)
}

impl Rule<Onnx> for MatmulV2<Onnx> {
    fn apply(&mut self) {
        self.out = factor(&self.x, self.trans_x).node("MatMul", &[&factor(&self.y, self.trans_y)], &[]);
    }
}
