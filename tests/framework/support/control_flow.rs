//! Parts of programs with loops, branches and recurrences.

use autobwd::{Attr, BlockId, Builder, DType, Expr, New, Program};
use autobwd_ops::fill::FillConstant;

pub(crate) const DIMS: [i64; 2] = [2, 2];

pub(crate) fn number(net: &Builder, value: i64) -> Expr {
    let fill =
        FillConstant { shape: vec![1], dtype: DType::I64, value: value as f32, ..FillConstant::of(New) };
    net.emit(fill).out
}

/// Sets `checkpoint_every` of loops and recurrences.
pub(crate) fn keep_every(program: &mut Program, steps: i32) {
    let mut blocks = vec![BlockId::ROOT];
    while let Some(block) = blocks.pop() {
        for op in program.block_mut(block).into_iter().flat_map(|block| &mut block.ops) {
            blocks.extend(op.attrs.blocks());
            if ["while", "recurrent"].contains(&&*op.ty) {
                op.attrs.set("checkpoint_every", Attr::I32(steps));
            }
        }
    }
}
