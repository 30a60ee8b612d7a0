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

/// Whether weights are what `MatMulNBits` takes: blocks of a power of two, at least 16.
fn has_blocks(op: &QuantizedMatmul<Onnx>) -> bool {
    let group = i64::from(op.group_size);
    let blocks_fit = |[bits, rows, _]: [i64; 3]| {
        let are_pairs = bits == 8 || op.zero_point.is_none() || rows / group % 2 == 0;
        rows > 0 && rows % group == 0 && are_pairs
    };
    let is_block = group >= 16 && group.count_ones() == 1;
    let has_dtype = op.x.dtype() == op.scale.dtype() && op.x.dtype() != DType::F64;
    !op.trans_y && is_block && has_dtype && quantized_size(op).is_some_and(blocks_fit)
}

/// `MatMulNBits`, which is read as quantised weights again; else, for one scale a column, `DequantizeLinear` of 8 bits,
/// whose codes other tools know. The composition would compute with codes as numbers.
impl Rule<Onnx> for QuantizedMatmul<Onnx> {
    fn fits(&self) -> bool {
        let are_single = [&self.x, &self.scale].iter().all(|x| x.dtype() == DType::F32);
        let has_bytes = self.kind == QuantizedKind::Int8 && are_single;
        let is_group = |[_, rows, _]: [i64; 3]| rows > 0 && rows <= i64::from(self.group_size);
        has_blocks(self) || has_bytes && quantized_size(self).is_some_and(is_group)
    }

    fn apply(&mut self) {
        let Some([bits, rows, columns]) = quantized_size(self) else { return };
        if !has_blocks(self) {
            let codes = self.codes.permute(&[0, 2, 1]).reshape(&[rows, columns]);
            let middle = || self.codes.number(128.0).expand(&self.codes.ints(&[columns]));
            let zero_points = self.zero_point.as_ref().map_or_else(middle, |zeros| zeros.reshape(&[-1]));
            let axis = [("axis", NodeAttr::Int(1))];
            let weights = codes.node("DequantizeLinear", &[&self.scale.reshape(&[-1]), &zero_points], &axis);
            let weights = weights.typed(self.x.dtype());
            let weights = if self.trans_y { weights.permute(&[1, 0]) } else { weights };
            self.out = self.x.node("MatMul", &[&weights], &[]);
            return;
        }
        let group = i64::from(self.group_size);
        let blocks = rows / group;
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
