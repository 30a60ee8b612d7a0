//! The products of a program, and those that take their place.

use std::collections::BTreeMap;

use autobwd::{
    BlockId, Error, ErrorKind, OpDesc, Program, Result, VarDesc,
    op::Op,
    operators::{ElementwiseAdd, Scale},
    program::Var,
};

use super::Quantization;
use crate::matmul::{Addmm, Matmul, MatmulV2, Mul, QuantizedMatmul};

/// What takes the place of a matrix in products.
pub(super) struct QuantizedVars {
    pub(super) codes: Var,
    pub(super) scale: Var,
    pub(super) zero_point: Option<Var>,
    pub(super) quantization: Quantization,
    /// Whether the matrix was the transpose of the weights.
    pub(super) is_transposed: bool,
    /// Whether other operators go on reading the matrix.
    pub(super) is_kept: bool,
}

/// A product whose right factor is quantised.
pub(super) struct Product {
    x: Var,
    out: Var,
    pub(super) trans_y: bool,
    /// For `addmm`: the input, its factor, and the factor of the product.
    added: Option<(Var, f32, f32)>,
}

impl Product {
    /// The product that an operator computes of the parameter, or why it is none.
    pub(super) fn of(
        program: &Program,
        block: BlockId,
        op: &OpDesc,
        var: Var,
    ) -> std::result::Result<Product, String> {
        let reason = |text: &str| Err(format!("`{}` {text}", op.ty));
        let failed = |e: Error| e.to_string();
        let (product, y, is_plain) = if op.is::<MatmulV2>() {
            let MatmulV2 { x, y, out, trans_x, trans_y } = MatmulV2::from_desc(op).map_err(failed)?;
            (Product { x, out, trans_y, added: None }, y, !trans_x)
        } else if op.is::<Matmul>() {
            let Matmul { x, y, out, transpose_x, transpose_y, alpha, .. } =
                Matmul::from_desc(op).map_err(failed)?;
            (Product { x, out, trans_y: transpose_y, added: None }, y, !transpose_x && alpha == 1.0)
        } else if op.is::<Mul>() {
            let Mul { x, y, out, x_num_col_dims, y_num_col_dims } = Mul::from_desc(op).map_err(failed)?;
            let rank = program.lookup(block, x).map(|desc| desc.dims.len());
            let is_last = rank == Some(x_num_col_dims as usize + 1) && y_num_col_dims == 1;
            (Product { x, out, trans_y: false, added: None }, y, is_last)
        } else if op.is::<Addmm>() {
            let Addmm { input, x, y, out, alpha, beta } = Addmm::from_desc(op).map_err(failed)?;
            (Product { x, out, trans_y: false, added: Some((input, alpha, beta)) }, y, input != var)
        } else {
            return reason("reads it, which is no product");
        };
        match y == var && product.x != var && is_plain {
            true => Ok(product),
            false => reason("reads it otherwise than as its right factor"),
        }
    }
}

/// Replaces the products of a block.
pub(super) fn rewrite(
    program: &mut Program,
    id: BlockId,
    weights: &BTreeMap<Var, QuantizedVars>,
) -> Result<()> {
    let ops = program.block_mut(id).map(|block| std::mem::take(&mut block.ops)).unwrap_or_default();
    let mut rewritten = Vec::with_capacity(ops.len());
    for mut op in ops {
        let read = op.reads().find_map(|var| Some((var, weights.get(&var)?)));
        let Some((view, vars)) = read else {
            rewritten.push(op);
            continue;
        };
        let is_dropped = |var: Var| weights.get(&var).is_some_and(|vars| !vars.is_kept);
        if op.writes().any(is_dropped) {
            continue; // A transpose.
        }
        if op.attrs.blocks().next().is_some() {
            // What a block reads is an input of the operator that runs it.
            let read: Vec<(Var, &QuantizedVars)> =
                op.reads().filter_map(|var| Some((var, weights.get(&var)?))).collect();
            for (view, QuantizedVars { codes, scale, zero_point, is_kept, .. }) in read {
                let Some(slot) = op.inputs.slot_of(view) else { continue };
                let others = op.inputs.get(slot.as_str()).to_vec().into_iter();
                let others = others.filter(|var| *var != view || *is_kept);
                let read: Vec<Var> = others.chain([*codes, *scale]).chain(*zero_point).collect();
                op.inputs.set(slot, read);
            }
            rewritten.push(op);
            continue;
        }
        let Product { x, out, trans_y, added } = match Product::of(program, id, &op, view) {
            Ok(product) => product,
            Err(_) if vars.is_kept => {
                rewritten.push(op);
                continue;
            }
            Err(text) => return Err(Error::new(ErrorKind::Internal, text)),
        };
        let mut push = |desc: OpDesc| rewritten.push(OpDesc { site: op.site, origin: op.origin, ..desc });
        let mut part = |of: &str| {
            let var = program.fresh(of);
            let desc = program.lookup(id, out).cloned();
            if let (Some(block), Some(desc)) = (program.block_mut(id), desc) {
                block.vars.insert(var, VarDesc { persistable: false, ..desc });
            }
            var
        };
        let product = if added.is_some() { part("quantized_matmul") } else { out };
        push(
            QuantizedMatmul {
                x,
                codes: vars.codes,
                scale: vars.scale,
                zero_point: vars.zero_point,
                out: product,
                kind: vars.quantization.kind,
                group_size: vars.quantization.group_size as i32,
                trans_y: trans_y != vars.is_transposed,
            }
            .into(),
        );
        let Some((input, alpha, beta)) = added else { continue };
        let mut scaled = |x: Var, by: f32| {
            if by == 1.0 {
                return x;
            }
            let out = part("scale");
            push(Scale { x, out, scale: by.into(), bias: 0.0, bias_after_scale: true }.into());
            out
        };
        let (product, input) = (scaled(product, alpha), scaled(input, beta));
        push(ElementwiseAdd { x: product, y: input, out, axis: -1 }.into());
    }
    if let Some(block) = program.block_mut(id) {
        block.ops = rewritten;
    }
    Ok(())
}
