//! Rows as channels: a tensor brought to the shape `[1, rows, width]` and back.

use autobwd::{GradCx, Var};

use crate::shape::{
    FlattenContiguousRange, FlattenContiguousRangeGrad, Reshape2, Reshape2Grad, Transpose2, Transpose2Grad,
    Unsqueeze2, Unsqueeze2Grad,
};

/// One operator on the way.
enum Step {
    Unsqueeze(Vec<i32>),
    Flatten(i32, i32),
    Reshape(Vec<i32>),
    Transpose(Vec<i32>),
}

impl Step {
    /// The result, and the remembered shape of `x`.
    fn forth(&self, g: &mut GradCx<'_>, x: Var) -> (Var, Var) {
        let (out, x_shape) = (g.fresh("rows"), g.fresh("x_shape"));
        match self {
            Step::Unsqueeze(axes) => g.push(Unsqueeze2 { x, out, x_shape, axes: axes.clone() }),
            Step::Flatten(start_axis, stop_axis) => {
                let (start_axis, stop_axis) = (*start_axis, *stop_axis);
                g.push(FlattenContiguousRange { x, out, x_shape, start_axis, stop_axis });
            }
            Step::Reshape(shape) => g.push(Reshape2 { x, out, x_shape, shape: shape.clone() }),
            Step::Transpose(axis) => g.push(Transpose2 { x, out, x_shape, axis: axis.clone() }),
        }
        (out, x_shape)
    }

    fn back(&self, g: &mut GradCx<'_>, x_shape: Var, dout: Var) -> Var {
        let dx = g.fresh("unrolled");
        match self {
            Step::Unsqueeze(axes) => g.push(Unsqueeze2Grad { x_shape, dout, dx, axes: axes.clone() }),
            Step::Flatten(start_axis, stop_axis) => {
                let (start_axis, stop_axis) = (*start_axis, *stop_axis);
                g.push(FlattenContiguousRangeGrad { x_shape, dout, dx, start_axis, stop_axis });
            }
            Step::Reshape(shape) => g.push(Reshape2Grad { x_shape, dout, dx, shape: shape.clone() }),
            Step::Transpose(axis) => g.push(Transpose2Grad { x_shape, dout, dx, axis: axis.clone() }),
        }
        dx
    }
}

/// The way there.
pub(super) struct Rows(Vec<Step>);

impl Rows {
    /// The first so many dimensions number the rows.
    pub(super) fn after(begin: i32) -> Rows {
        let front = if begin == 0 { vec![0, 0] } else { vec![0] };
        let merge = (begin > 1).then_some(Step::Flatten(1, begin));
        let steps = [Step::Unsqueeze(front)].into_iter().chain(merge);
        Rows(steps.chain([Step::Reshape(vec![0, 0, -1])]).collect())
    }

    /// Neighbouring channels of a sample form a row, in that many groups.
    pub(super) fn groups(groups: i32, channels_last: bool) -> Rows {
        let channels_first = [Step::Unsqueeze(vec![1]), Step::Flatten(1, -2), Step::Transpose(vec![0, 2, 1])];
        let steps = channels_first.into_iter().filter(|_| channels_last);
        let grouped = [Step::Unsqueeze(vec![0]), Step::Reshape(vec![0, 0, groups, -1]), Step::Flatten(1, 2)];
        Rows(steps.chain(grouped).collect())
    }

    /// The rows of `x`, and the shapes on the way, for [`back`](Rows::back).
    pub(super) fn of(&self, g: &mut GradCx<'_>, x: Var) -> (Var, Vec<Var>) {
        let mut shapes = vec![];
        let rows = self.0.iter().fold(x, |x, step| {
            let (out, x_shape) = step.forth(g, x);
            shapes.push(x_shape);
            out
        });
        (rows, shapes)
    }

    /// The tensor of which these are the rows.
    pub(super) fn back(&self, g: &mut GradCx<'_>, rows: Var, shapes: &[Var]) -> Var {
        self.0.iter().zip(shapes).rev().fold(rows, |rows, (step, x_shape)| step.back(g, *x_shape, rows))
    }
}

/// Numbers of rows that so many dimensions count, as a vector.
pub(super) fn vector(g: &mut GradCx<'_>, x: Var, rank: i32) -> Var {
    match rank {
        0 => Step::Unsqueeze(vec![0]).forth(g, x).0,
        1 => x,
        _ => Step::Flatten(0, -1).forth(g, x).0,
    }
}
