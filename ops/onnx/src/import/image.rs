//! Sampling of images.

use autobwd::{New, emit};
use autobwd_ops::image::{AffineGrid, GridMode, GridPadding, GridSampler};

use super::{
    arith::narrow_sizes,
    node::{NodeContext, Outputs, one, refuse},
    rules::{Native, NodeRules},
};

pub(super) const RULES: NodeRules =
    &[("GridSample", Native, grid_sample), ("AffineGrid", Native, affine_grid)];

fn grid_sample(n: &mut NodeContext<'_, '_>) -> Outputs {
    let mode = match n.text_or("mode", "linear")? {
        "linear" | "bilinear" => GridMode::Bilinear,
        other => {
            return Err(refuse(format!(
                "attribute `mode` = `{other}` of operator `GridSample` is not supported"
            )));
        }
    };
    let padding_mode = match n.text_or("padding_mode", "zeros")? {
        "zeros" => GridPadding::Zeros,
        "border" => GridPadding::Border,
        "reflection" => GridPadding::Reflection,
        other => {
            return Err(refuse(format!(
                "attribute `padding_mode` = `{other}` of operator `GridSample` is not supported"
            )));
        }
    };
    let align_corners = n.flag("align_corners", false)?;
    if n.rank(0)? != 4 {
        return Err(refuse("operator `GridSample` of volumes is not supported"));
    }
    let (x, grid) = (n.input(0)?, n.input(1)?);
    one(emit(GridSampler {
        x: (&x).into(),
        grid: (&grid).into(),
        output: New,
        align_corners,
        mode,
        padding_mode,
    })
    .output)
}

fn affine_grid(n: &mut NodeContext<'_, '_>) -> Outputs {
    let size = n.constant_ints(1)?.unwrap_or_default();
    let align_corners = n.flag("align_corners", false)?;
    if size.len() != 4 {
        return Err(refuse("operator `AffineGrid` of volumes is not supported"));
    }
    let theta = n.input(0)?;
    let op = AffineGrid {
        theta: (&theta).into(),
        shape_tensor: None,
        output: New,
        output_shape: narrow_sizes(&size)?,
        align_corners,
    };
    one(emit(op).output)
}
