//! How a program reads the weights that are to be quantised.

use autobwd::{
    BlockId, OpDesc, Program,
    op::Op,
    program::{Origin, Var},
};

use super::rewrite::Product;
use crate::shape::Transpose2;

/// How operators read a parameter.
pub(super) struct Reads {
    pub(super) views: Vec<View>,
    /// Whether products read it as its transpose.
    pub(super) is_transposed: bool,
    /// What reads it otherwise than as the right factor of a product.
    pub(super) other: Option<String>,
}

/// A parameter, or a variable that is its transpose, as files have it that PyTorch writes.
pub(super) struct View {
    pub(super) var: Var,
    /// Whether it is the transpose of the parameter.
    pub(super) is_transposed: bool,
    /// Whether operators other than products read it.
    pub(super) is_kept: bool,
}

/// A parameter and its transposes.
fn views(program: &Program, results: &[String], parameter: Var) -> Vec<View> {
    let mut views = vec![View { var: parameter, is_transposed: false, is_kept: false }];
    for op in program.root().ops.iter().filter(|op| op.is::<Transpose2>()) {
        let Ok(Transpose2 { x, out, axis, .. }) = Transpose2::from_desc(op) else { continue };
        let is_result = results.iter().any(|name| name == program.name(out));
        let is_kept = program.root().vars.get(&out).is_some_and(|desc| desc.persistable);
        if x == parameter && axis == [1, 0] && !is_result && !is_kept {
            views.push(View { var: out, is_transposed: true, is_kept: false });
        }
    }
    views
}

impl Reads {
    /// How a program with these results reads a parameter, or why it cannot be quantised.
    pub(super) fn of(
        program: &Program,
        results: &[String],
        parameter: Var,
    ) -> std::result::Result<Reads, String> {
        let ops =
            || (0..).zip(program.blocks()).flat_map(|(id, block)| block.ops.iter().map(move |op| (id, op)));
        if let Some((_, op)) = ops().find(|(_, op)| op.writes().any(|written| written == parameter)) {
            return Err(format!("`{}` writes it: trained parameters cannot be quantised", op.ty));
        }
        let mut views = views(program, results, parameter);
        let transposes: Vec<Var> = views[1..].iter().map(|view| view.var).collect();
        let (mut is_transposed, mut other) = (None, None);
        for View { var, is_transposed: is_transpose, is_kept } in &mut views {
            let is_view = |op: &OpDesc| op.writes().any(|written| transposes.contains(&written));
            // What a block reads is also an input of the operator that runs it.
            let reads = |op: &OpDesc| {
                op.attrs.blocks().next().is_none() && op.reads().any(|read| read == *var) && !is_view(op)
            };
            for (id, op) in ops().filter(|(_, op)| reads(op)) {
                match Product::of(program, BlockId::new(id), op, *var) {
                    Ok(product) => _ = is_transposed.get_or_insert(product.trans_y != *is_transpose),
                    // Gradients are those of the parameter, not of its codes.
                    Err(reason) if matches!(op.origin, Origin::Gradient { .. }) => return Err(reason),
                    Err(reason) => {
                        *is_kept = true;
                        other.get_or_insert(reason);
                    }
                }
            }
        }
        // A transpose that is kept reads it, too.
        views[0].is_kept = other.is_some();
        match (is_transposed, other) {
            (Some(is_transposed), other) => Ok(Reads { views, is_transposed, other }),
            (None, Some(reason)) => Err(reason),
            (None, None) => Err("no operator reads it".into()),
        }
    }
}
