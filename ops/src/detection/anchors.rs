//! Boxes around the cells of feature maps, in pixels: `anchor_generator`.

use autobwd::{Composition, Error, Expr, Infer, Meta, Result, Var, ZeroGrad, check::*, register_op};

use super::prior_boxes::{cells, infer_boxes, pairs, positive_numbers, repeated};
use crate::{concat, fill::constants};

/// The anchors of Faster R-CNN (Ren et al. 2015): for each cell, boxes of several aspect ratios and sizes around its centre, in
/// pixels.
///
/// The base of ratio `r` has width `w = round(√(area / r))` and height `round(w r)`, where `area` is the area of a cell;
/// it is stretched by size / width of a cell, and size / height of a cell.
#[register_op(grad = ZeroGrad, composed)]
pub struct AnchorGenerator<V = Var> {
    /// Feature maps, `[images, channels, height, width]`.
    #[input(shape_only)]
    pub input: V,
    /// `[height, width, boxes, 4]`: the smaller coordinates of two opposite corners, and the larger ones.
    #[output]
    pub anchors: V,
    /// The variances of each box, same shape.
    #[output("Variances")]
    pub variances_out: V,
    /// Sizes in pixels.
    #[attr]
    pub anchor_sizes: Vec<f32>,
    /// Ratios of height and width.
    #[attr]
    pub aspect_ratios: Vec<f32>,
    /// The variances of each box.
    #[attr(default = [0.1, 0.1, 0.2, 0.2])]
    pub variances: Vec<f32>,
    /// Width and height of a cell in pixels.
    #[attr]
    pub stride: Vec<f32>,
    /// The centre of a cell, as a part of its pixels.
    #[attr(default = 0.5)]
    pub offset: f32,
}
impl<V> AnchorGenerator<V> {
    /// Width and height of a cell.
    fn steps(&self) -> [f64; 2] {
        [0, 1].map(|i| self.stride.get(i).copied().unwrap_or(1.0).into())
    }

    /// Half of width and height of each box of a cell, without its last pixel.
    fn halves(&self) -> Vec<[f64; 2]> {
        let steps = self.steps();
        let of = |ratio: f64, size: f64| {
            let width = libm::round((steps[0] * steps[1] / ratio).sqrt());
            let base = [width, libm::round(width * ratio)];
            [0, 1].map(|i| 0.5 * (size / steps[i] * base[i] - 1.0))
        };
        let ratios = self.aspect_ratios.iter();
        ratios
            .flat_map(|ratio| self.anchor_sizes.iter().map(move |size| of((*ratio).into(), (*size).into())))
            .collect()
    }
}
impl Infer for AnchorGenerator<Meta> {
    fn infer(&mut self) -> Result<()> {
        positive_numbers("anchor_sizes", &self.anchor_sizes)?;
        positive_numbers("aspect_ratios", &self.aspect_ratios)?;
        positive_numbers("stride", &self.stride)?;
        if self.stride.len() != 2 {
            return Err(Error::attr("stride", format!("2 numbers are needed, not {:?}", self.stride)));
        }
        let count = self.anchor_sizes.len().saturating_mul(self.aspect_ratios.len());
        let dims = infer_boxes(&self.input, &self.variances, count)?;
        self.variances_out.set(self.input.dtype, dims.clone());
        self.anchors.set(self.input.dtype, dims);
        Ok(())
    }
}
impl Composition for AnchorGenerator<Expr> {
    fn compose(&mut self) {
        let (input, steps, offset) = (&self.input, self.steps(), f64::from(self.offset));
        let first = constants(input, &steps.map(|step| offset * (step - 1.0)));
        let centres = cells(input) * constants(input, &steps) + first;
        let half = pairs(input, &self.halves());
        self.anchors = concat(&[&(&centres - &half), &(centres + half)], 3);
        self.variances_out = repeated(&self.variances, &self.anchors);
    }
}
autobwd::samples!(
    AnchorGenerator,
    [
        anchor_generator([1, 1, 3, 4], vec![32.0, 64.0], vec![0.5, 1.0, 2.0]),
        AnchorGenerator {
            stride: vec![8.0, 16.0],
            offset: 0.25,
            variances: vec![0.5, 0.25, 1.0, 2.0],
            ..anchor_generator([1, 1, 3, 4], vec![24.0], vec![0.75])
        },
        anchor_generator([1, 1, 0, 4], vec![32.0], vec![1.0]),
        anchor_generator([1, 1, 3, 4], vec![], vec![1.0])
            .fails("attribute `anchor_sizes`: at least one positive number is needed, not []"),
        anchor_generator([1, 1, 3, 4], vec![32.0], vec![0.0])
            .fails("attribute `aspect_ratios`: at least one positive number is needed, not [0.0]"),
        AnchorGenerator { stride: vec![8.0], ..anchor_generator([1, 1, 3, 4], vec![32.0], vec![1.0]) }
            .fails("attribute `stride`: 2 numbers are needed, not [8.0]"),
        AnchorGenerator { variances: vec![], ..anchor_generator([1, 1, 3, 4], vec![32.0], vec![1.0]) }
            .fails("attribute `variances`: 4 numbers are needed, not []"),
        anchor_generator([1, 2, 3], vec![32.0], vec![1.0]).fails("`Input`: 4 dimensions are needed"),
    ]
);

fn anchor_generator<const N: usize>(
    input: [usize; N],
    anchor_sizes: Vec<f32>,
    aspect_ratios: Vec<f32>,
) -> AnchorGenerator<Draw> {
    AnchorGenerator {
        input: uniform(input),
        anchors: out(),
        variances_out: out(),
        anchor_sizes,
        aspect_ratios,
        variances: vec![0.1, 0.1, 0.2, 0.2],
        stride: vec![16.0, 16.0],
        offset: 0.5,
    }
}
