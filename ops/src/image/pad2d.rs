//! `pad2d`: padding of images.

use autobwd::{Composed, Composition, Expr, Infer, Meta, Result, Var, check::*, register_op};

use super::pad3d::{PadMode, compose_padding, padded, pairs};
use crate::{math::DimExpr, norm::DataLayout};

autobwd::op::attr_enum! {
    /// What the padding of images consists of.
    pub enum EdgeMode {
        /// One value.
        Constant = "constant",
        /// The elements next to the border, mirrored, without the one at the border.
        Reflect = "reflect",
        /// The element at the border.
        Edge = "edge",
    }
}

impl EdgeMode {
    fn mode(self) -> PadMode {
        match self {
            EdgeMode::Constant => PadMode::Constant,
            EdgeMode::Reflect => PadMode::Reflect,
            EdgeMode::Edge => PadMode::Replicate,
        }
    }
}

/// Padding of images in height and width, as `pad3d` of volumes.
#[register_op(grad = Composed, composed)]
pub struct Pad2d<V = Var> {
    /// Images, in the order that `data_format` says; any dtype.
    #[input]
    pub x: V,
    /// Lengths of the padding, int32 or int64, `[4]`; replaces the attribute.
    #[input("Paddings", constant)]
    pub paddings_tensor: Option<V>,
    /// `x`, extended by the padding.
    #[output]
    pub out: V,
    /// Number of elements added at the top, bottom, left and right.
    #[attr(default = [0, 0, 0, 0])]
    pub paddings: Vec<i32>,
    /// What the padding consists of. With `reflect`, it is shorter than the dimension.
    #[attr(default = EdgeMode::Constant)]
    pub mode: EdgeMode,
    /// The value of `constant`.
    #[attr(default = 0.0)]
    pub pad_value: f32,
    /// Order of the dimensions of images (`NCHW`, `NHWC`).
    #[attr(default = DataLayout::Nchw)]
    pub data_format: DataLayout,
}
impl Infer for Pad2d<Meta> {
    fn infer(&mut self) -> Result<()> {
        let paddings = pairs::<2, _>(self.paddings_tensor.as_ref(), &self.paddings)?;
        let [_, _, _, _] = self.x.unpack()?;
        let dims = padded(&self.x, self.mode.mode(), first_axis(self.data_format), &paddings)?;
        self.out.set(self.x.dtype, dims);
        Ok(())
    }
}
impl Composition for Pad2d<Expr> {
    fn compose(&mut self) {
        let length = |i: usize| match &self.paddings_tensor {
            Some(lengths) => DimExpr::element(lengths, i as i32),
            None => i64::from(self.paddings[i]).into(),
        };
        let mut paddings = [const { [0; 2] }; 4].map(|pair| pair.map(DimExpr::from));
        for axis in 0..2 {
            paddings[first_axis(self.data_format) + axis] = [length(2 * axis), length(2 * axis + 1)];
        }
        self.out = compose_padding(&self.x, self.mode.mode(), self.pad_value, &paddings);
    }
}
autobwd::samples!(
    Pad2d,
    [
        Pad2d { pad_value: 0.5, ..pad2d(uniform([2, 3, 4, 5]), [1, 2, 0, 3], EdgeMode::Constant) },
        pad2d(uniform([2, 1, 4, 5]), [1, 3, 4, 0], EdgeMode::Reflect),
        pad2d(uniform([2, 1, 3, 4]), [0, 5, 2, 1], EdgeMode::Edge),
        nhwc(pad2d(uniform([1, 3, 4, 2]), [1, 2, 0, 3], EdgeMode::Constant)),
        nhwc(pad2d(uniform([1, 3, 4, 2]), [1, 2, 3, 0], EdgeMode::Reflect)),
        nhwc(pad2d(uniform([1, 3, 4, 2]), [1, 2, 0, 3], EdgeMode::Edge)),
        pad2d(uniform([1, 2, 3, 4]), [0; 4], EdgeMode::Reflect),
        pad2d(uniform([0, 2, 3, 4]), [1; 4], EdgeMode::Edge),
        pad2d(uniform([1, 2, 0, 3]), [1; 4], EdgeMode::Constant),
        pad2d(integers_below(9, [1, 2, 3, 4]), [1, 0, 2, 1], EdgeMode::Reflect),
        pad2d(integers_below(9, [1, 2, 3, 4]), [1, 0, 2, 1], EdgeMode::Constant),
        Pad2d {
            paddings_tensor: Some(integers(&[1, 0, 2, 1])),
            ..pad2d(uniform([1, 2, 3, 4]), [0; 4], EdgeMode::Reflect)
        },
        pad2d(uniform([2, 3, 4]), [0; 4], EdgeMode::Constant).fails("`X`: 4 dimensions are needed"),
        pad2d(uniform([1, 2, 3, 4]), [0, -1, 0, 0], EdgeMode::Constant)
            .fails("attribute `paddings`: 4 numbers of at least 0 are needed"),
        Pad2d { paddings: vec![1, 1], ..pad2d(uniform([1, 2, 3, 4]), [0; 4], EdgeMode::Constant) }
            .fails("attribute `paddings`: 4 numbers of at least 0 are needed, not [1, 1]"),
        pad2d(uniform([1, 2, 3, 4]), [3, 0, 0, 0], EdgeMode::Reflect)
            .fails("`X`: a dimension longer than its padding of 3 elements is needed"),
        pad2d(uniform([1, 2, 0, 4]), [0, 1, 0, 0], EdgeMode::Edge)
            .fails("`X`: at least one element is needed where padding is not constant"),
    ]
);

fn pad2d(x: Draw, paddings: [i32; 4], mode: EdgeMode) -> Pad2d<Draw> {
    Pad2d {
        x,
        paddings_tensor: None,
        out: out(),
        paddings: paddings.to_vec(),
        mode,
        pad_value: 0.0,
        data_format: DataLayout::Nchw,
    }
}

fn nhwc(pad: Pad2d<Draw>) -> Pad2d<Draw> {
    Pad2d { data_format: DataLayout::Nhwc, ..pad }
}

/// The dimension of the height.
fn first_axis(format: DataLayout) -> usize {
    if format == DataLayout::Nchw { 2 } else { 1 }
}
