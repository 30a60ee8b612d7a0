//! Products with constant matrices, which are packed once, with the bias and the function after them.

use std::collections::{HashMap, HashSet};

use autobwd::{DType, OpDesc, Result, Tensor, op::CHANNEL_BLOCK, program::Var};

use super::{super::recognise::Uses, Frozen, convolutions::function};
use crate::{
    channel_blocks::ActivationAttrs,
    elementwise::ElementwiseAdd,
    matmul::{MatmulV2, PackedMatmul},
};

/// The least number of terms and of columns with which packing pays.
const LEAST: usize = 8;

/// A product with a constant matrix.
struct Linear {
    x: Var,
    y: Var,
    is_transposed: bool,
    /// Terms and columns.
    size: [usize; 2],
    bias: Vec<f32>,
    activation: ActivationAttrs,
    output: Var,
    /// The operators, in ascending order.
    ops: Vec<usize>,
}

/// Packs the matrices of products of the main block that nothing else reads.
pub(super) fn pack(frozen: &mut Frozen<'_>, fetched: &[Var]) -> Result<()> {
    let uses = Uses::of(&frozen.program, |var| fetched.contains(&var));
    let (mut found, mut taken): (HashMap<usize, Linear>, HashSet<usize>) = Default::default();
    for i in 0..frozen.program.root().ops.len() {
        if let Some(linear) = Linear::of(frozen, &uses, i) {
            taken.extend(&linear.ops);
            found.insert(i, linear);
        }
    }
    let mut ops = vec![];
    for (i, op) in std::mem::take(&mut frozen.program.root_mut().ops).into_iter().enumerate() {
        if let Some(linear) = found.remove(&i) {
            ops.push(OpDesc { site: op.site, ..linear.packed(frozen)? });
        } else if !taken.contains(&i) {
            ops.push(op);
        }
    }
    frozen.program.root_mut().ops = ops;
    Ok(())
}

impl Linear {
    /// The product that an operator computes, with what follows it.
    fn of(frozen: &Frozen<'_>, uses: &Uses, i: usize) -> Option<Linear> {
        let ops = &frozen.program.root().ops;
        let product = ops[i].as_op::<MatmulV2>()?;
        let rank = |var: Var| {
            let desc = frozen.program.root().vars.get(&var)?;
            (desc.dtype == DType::F32 && !desc.persistable).then_some(desc.dims.len())
        };
        let fits = rank(product.x)? >= 2 && !product.trans_x && uses.only_reader(product.y) == Some(i);
        if !fits || frozen.value(product.x).is_some() {
            return None;
        }
        let y = frozen.value(product.y).filter(|y| y.dtype() == DType::F32)?;
        let &[rows, columns] = y.dims() else { return None };
        let size = if product.trans_y { [columns, rows] } else { [rows, columns] };
        if size.iter().any(|n| *n < LEAST) {
            return None;
        }
        let mut linear = Linear {
            x: product.x,
            y: product.y,
            is_transposed: product.trans_y,
            size,
            bias: vec![0.0; size[1]],
            activation: ActivationAttrs::default(),
            output: product.out,
            ops: vec![i],
        };
        while let Some(reader) = uses.only_reader(linear.output) {
            let (op, x) = (&ops[reader], linear.output);
            if let Some((bias, output)) = added(frozen, op, x, size[1]).filter(|_| linear.ops.len() == 1) {
                (linear.bias, linear.output) = (bias, output);
                linear.ops.push(reader);
                continue;
            }
            if let Some((activation, output)) = function(op, x) {
                (linear.activation, linear.output) = (activation, output);
                linear.ops.push(reader);
            }
            break;
        }
        uses.is_fixed(linear.output).then_some(linear)
    }

    /// The operator with the packed matrix.
    fn packed(self, frozen: &mut Frozen<'_>) -> Result<OpDesc> {
        let [terms, columns] = self.size;
        let blocks = columns.div_ceil(CHANNEL_BLOCK);
        let matrix = frozen.expect(self.y)?.slice::<f32>()?;
        let mut packed = vec![0.0; blocks * terms * CHANNEL_BLOCK];
        for (block, packed) in packed.chunks_mut(terms * CHANNEL_BLOCK).enumerate() {
            let first = block * CHANNEL_BLOCK;
            let n = CHANNEL_BLOCK.min(columns - first);
            for (term, packed) in packed.chunks_mut(CHANNEL_BLOCK).enumerate() {
                match self.is_transposed {
                    true => packed[..n]
                        .iter_mut()
                        .enumerate()
                        .for_each(|(l, to)| *to = matrix[(first + l) * terms + term]),
                    false => packed[..n].copy_from_slice(&matrix[term * columns + first..][..n]),
                }
            }
        }
        let name = frozen.program.name(self.y).to_string();
        let y = frozen
            .constant(&format!("{name}@BLOCKS"), Tensor::from_vec([blocks, terms, CHANNEL_BLOCK], packed)?);
        let mut bias = self.bias;
        bias.resize(blocks * CHANNEL_BLOCK, 0.0);
        let bias = frozen.constant(&format!("{name}@BIAS"), Tensor::from_vec([bias.len()], bias)?);
        let (x, out, activation) = (self.x, self.output, self.activation);
        Ok(PackedMatmul { x, y, bias, out, columns: columns as i32, activation }.into())
    }
}

/// The numbers that an operator adds to the columns of `x`, and its result.
fn added(frozen: &Frozen<'_>, op: &OpDesc, x: Var, columns: usize) -> Option<(Vec<f32>, Var)> {
    let op = op.as_op::<ElementwiseAdd>()?;
    let other = if op.x == x { op.y } else { op.x };
    let value = frozen.value(other).filter(|value| value.dtype() == DType::F32)?;
    let rank = |var: Var| frozen.program.root().vars.get(&var).map(|desc| desc.dims.len());
    let is_row = value.dims().last() == Some(&columns) && value.numel() == columns;
    let is_last = op.axis == -1 || op.x == x && rank(x)? == op.axis as usize + value.dims().len();
    let fits = is_row && is_last && value.dims().len() <= rank(x)?;
    fits.then(|| Some((value.slice::<f32>().ok()?.to_vec(), op.out))).flatten()
}
