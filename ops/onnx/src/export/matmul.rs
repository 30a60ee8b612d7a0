//! Matrix products.

use autobwd::{DType, op::Rule};
use autobwd_ops::matmul::{MatmulV2, QuantizedKind, QuantizedMatmul};

use super::{NodeAttr, Onnx};
use crate::rules;

rules!(MatmulV2, QuantizedMatmul);

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

/// Bits of a code, rows and columns of the weights.
fn quantized_size(op: &QuantizedMatmul<Onnx>) -> Option<[i64; 3]> {
    let (bits, per_cell) = match op.kind {
        QuantizedKind::Int8 => (8, 4),
        QuantizedKind::Int4 => (4, 8),
        QuantizedKind::Nf4 => return None,
    };
    let &[cells, columns, _] = &op.codes.known_dims()?[..] else { return None };
    Some([bits, cells * per_cell, columns])
}

/// The node is read as quantised weights again; the composition would be numbers of float32.
impl Rule<Onnx> for QuantizedMatmul<Onnx> {
    fn fits(&self) -> bool {
        let group = i64::from(self.group_size);
        let blocks_fit = |[bits, rows, _]: [i64; 3]| {
            let are_pairs = bits == 8 || self.zero_point.is_none() || rows / group % 2 == 0;
            rows > 0 && rows % group == 0 && are_pairs
        };
        let is_block = group >= 16 && group.count_ones() == 1;
        let has_dtype = self.x.dtype() == self.scale.dtype() && self.x.dtype() != DType::F64;
        !self.trans_y && is_block && has_dtype && quantized_size(self).is_some_and(blocks_fit)
    }

    fn apply(&mut self) {
        let Some([bits, rows, columns]) = quantized_size(self) else { return };
        let (group, blocks) = (i64::from(self.group_size), rows / i64::from(self.group_size));
        let of_columns = |of_groups: &Onnx| of_groups.permute(&[1, 0]).reshape(&[-1]);
        let codes = self.codes.permute(&[1, 0, 2]).reshape(&[columns, blocks, group * bits / 8]);
        let zero_points = self.zero_point.as_ref().map(|zero_points| match bits {
            8 => of_columns(zero_points),
            // Two in a byte, the first one in the low half.
            _ => {
                let pairs = of_columns(zero_points).cast(DType::F32).reshape(&[-1, 2]);
                pairs.node("MatMul", &[&pairs.floats(&[1.0, 16.0])], &[]).cast(DType::U8)
            }
        });
        let attrs = [("K", rows), ("N", columns), ("bits", bits), ("block_size", group)];
        let attrs = attrs.map(|(name, value)| (name, NodeAttr::Int(value)));
        let others = [Some(&codes), Some(&of_columns(&self.scale)), zero_points.as_ref()];
        let others = if zero_points.is_some() { &others[..] } else { &others[..2] };
        if let Some(out) = self.x.many("com.microsoft:MatMulNBits", others, &attrs, 1).pop() {
            self.out = out;
        }
    }
}
