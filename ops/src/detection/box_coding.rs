//! Relations of boxes: `iou_similarity` and `box_coder`.

use autobwd::{
    Composed, Composition, Dims, Error, Expr, Infer, Meta, Result, Var, check::*, register_op, tensor::Dim,
};

use crate::{Math, concat, fill::constants};

/// Intersection over union of each box of one list with each box of another one; 0 for boxes that do not meet.
///
/// As in the reference, `1e-10` is added to the area of the union.
#[register_op(grad = Composed, composed)]
pub struct IouSimilarity<V = Var> {
    /// Boxes, `[n, 4]`: the smaller coordinates of two opposite corners, and the larger ones.
    #[input]
    pub x: V,
    /// Other boxes, `[m, 4]`.
    #[input]
    pub y: V,
    /// `[n, m]`.
    #[output]
    pub out: V,
    /// Whether coordinates are points; otherwise they are pixels, and a box with one pixel has the area 1.
    #[attr(default = true)]
    pub box_normalized: bool,
}
impl Infer for IouSimilarity<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.y.same_dtype(&self.x)?;
        self.out.set(self.x.dtype, Dims::from_iter([boxes(&self.x)?, boxes(&self.y)?]));
        Ok(())
    }
}
impl Composition for IouSimilarity<Expr> {
    fn compose(&mut self) {
        let pixel = pixel(self.box_normalized);
        let area = |x: &Expr| ((corner(x, 1) - corner(x, 0)) + pixel).prod(&[-1]);
        let (x, y) = (self.x.unsqueeze(&[1]), self.y.unsqueeze(&[0]));
        let low = corner(&x, 0).maximum(&corner(&y, 0));
        let high = corner(&x, 1).minimum(&corner(&y, 1));
        let shared = (high - low + pixel).relu();
        let shared = (shared.slice(2, 0, 1) * shared.slice(2, 1, 2)).squeeze(&[2]);
        self.out = &shared / &(area(&x) + area(&y) - &shared + 1e-10);
    }
}
autobwd::samples!(
    IouSimilarity,
    [
        iou_similarity(given([3, 4], BOXES), given([2, 4], OTHERS), true),
        iou_similarity(given([3, 4], BOXES), given([2, 4], OTHERS), false),
        iou_similarity(uniform([0, 4]), given([2, 4], OTHERS), true),
        iou_similarity(given([2, 4], OTHERS), uniform([0, 4]), true),
        iou_similarity(uniform([3, 5]), uniform([2, 4]), true).fails("`X`: boxes, [n, 4], are needed"),
        iou_similarity(uniform([3, 4]), uniform([2, 2, 4]), true).fails("`Y`: boxes, [n, 4], are needed"),
        iou_similarity(integers_below(9, [3, 4]), integers_below(9, [2, 4]), true)
            .fails("`X`: floating point numbers are needed"),
    ]
);

/// Boxes for samples: the first meets both others, the last one none.
const BOXES: [f64; 12] = [0.1, -0.2, 2.3, 1.7, 1.1, 0.4, 3.2, 2.9, -5.0, -4.5, -3.5, -3.0];
const OTHERS: [f64; 8] = [0.5, 0.3, 1.9, 2.6, -0.7, 0.2, 1.4, 1.5];

fn iou_similarity(x: Draw, y: Draw, box_normalized: bool) -> IouSimilarity<Draw> {
    IouSimilarity { x, y, out: out(), box_normalized }
}

/// The number of boxes.
fn boxes(x: &Meta) -> Result<Dim> {
    match *x.dims {
        [n, four] if four.agrees(4.into()) => Ok(n),
        _ => Err(x.wrong("boxes, [n, 4], are needed")),
    }
}

/// The smaller coordinates of boxes, or the larger ones.
fn corner(x: &Expr, which: i32) -> Expr {
    let last = x.dims().len() as i32 - 1;
    x.slice(last, 2 * which, 2 * which + 2)
}

/// What the last coordinate adds to a length.
fn pixel(is_normalized: bool) -> f64 {
    if is_normalized { 0.0 } else { 1.0 }
}

autobwd::op::attr_enum! {
    /// Which way boxes are translated.
    pub enum BoxCode {
        /// From corners to positions relative to other boxes.
        Encode = "encode_center_size",
        /// Back to corners.
        Decode = "decode_center_size",
    }
}

/// Boxes relative to prior boxes: a prior box with centre `p` and size `s` turns the box with centre `c` and size `w` into
/// `((c - p) / s, ln |w / s|) / variance`, or back.
///
/// The centre of a prior box is its first corner plus half of its size, as in the reference, also where coordinates are
/// pixels.
#[register_op(grad = Composed, composed)]
pub struct BoxCoder<V = Var> {
    /// Prior boxes, `[m, 4]`: the smaller coordinates of two opposite corners, and the larger ones.
    #[input]
    pub prior_box: V,
    /// Variances of each prior box, `[m, 4]`; they replace the attribute.
    #[input]
    pub prior_box_var: Option<V>,
    /// Boxes, `[n, 4]`; for decoding relative ones, `[n, m, 4]`, or `[m, n, 4]` if `axis` is 1.
    #[input]
    pub target_box: V,
    /// `[n, m, 4]`, or the shape of relative boxes.
    #[output]
    pub output_box: V,
    /// Which way boxes are translated.
    #[attr(default = BoxCode::Encode)]
    pub code_type: BoxCode,
    /// Whether coordinates are points; otherwise they are pixels, and a box with one pixel has the area 1.
    #[attr(default = true)]
    pub box_normalized: bool,
    /// The dimension of relative boxes along which all have the same prior box, for decoding.
    #[attr(default = 0, min = 0, max = 1)]
    pub axis: i32,
    /// Variances of all prior boxes, 4 numbers; without them, all are 1.
    #[attr(default = [])]
    pub variance: Vec<f32>,
}
impl Infer for BoxCoder<Meta> {
    fn infer(&mut self) -> Result<()> {
        let (prior, target) = (&self.prior_box, &self.target_box);
        prior.float()?;
        target.same_dtype(prior)?;
        let m = boxes(prior)?;
        if let Some(variances) = &self.prior_box_var {
            variances.same_dtype(prior)?;
            variances.require(variances.dims.agrees(&prior.dims), || {
                format!("the shape of the prior boxes, {}, is needed", prior.dims)
            })?;
        }
        if !matches!(self.variance.len(), 0 | 4) {
            let text = format!("4 numbers or none are needed, not {:?}", self.variance);
            return Err(Error::attr("variance", text));
        }
        let dims = match self.code_type {
            BoxCode::Encode => Dims::from_iter([boxes(target)?, m, 4.into()]),
            BoxCode::Decode => {
                let mut needed = [Dim::UNKNOWN, Dim::UNKNOWN, 4.into()];
                needed[1 - self.axis as usize] = m;
                target.require(target.dims.agrees(&needed), || {
                    format!("relative boxes, {}, are needed", Dims::from_iter(needed))
                })?;
                target.dims.iter().zip(needed).map(|(dim, needed)| dim.or(needed)).collect()
            }
        };
        self.output_box.set(prior.dtype, dims);
        Ok(())
    }
}
impl Composition for BoxCoder<Expr> {
    fn compose(&mut self) {
        let (pixel, target) = (pixel(self.box_normalized), &self.target_box);
        let axis = if self.code_type == BoxCode::Decode { self.axis } else { 0 };
        let size = |x: &Expr| corner(x, 1) - corner(x, 0) + pixel;
        let prior = self.prior_box.unsqueeze(&[axis]);
        let prior_size = size(&prior);
        let prior_centre = corner(&prior, 0) + &prior_size * 0.5;
        let numbers: Vec<f64> = self.variance.iter().map(|number| f64::from(*number)).collect();
        let variances = match &self.prior_box_var {
            Some(variances) => Some(variances.unsqueeze(&[axis])),
            None => (!numbers.is_empty()).then(|| constants(target, &numbers)),
        };
        self.output_box = match self.code_type {
            BoxCode::Encode => {
                let target = target.unsqueeze(&[1]);
                let centre = (corner(&target, 0) + corner(&target, 1)) * 0.5;
                let offset = (centre - prior_centre) / &prior_size;
                let code = concat(&[&offset, &(size(&target) / prior_size).abs().log()], 2);
                variances.map_or(code.clone(), |variances| code / variances)
            }
            BoxCode::Decode => {
                let code = variances.map_or(target.clone(), |variances| target * &variances);
                let centre = corner(&code, 0) * &prior_size + prior_centre;
                let half = corner(&code, 1).exp() * prior_size * 0.5;
                concat(&[&(&centre - &half), &(centre + half - pixel)], 2)
            }
        };
    }
}
autobwd::samples!(
    BoxCoder,
    [
        box_coder(BoxCode::Encode, given([2, 4], OTHERS), given([3, 4], BOXES)),
        BoxCoder {
            prior_box_var: Some(positive([2, 4])),
            box_normalized: false,
            ..box_coder(BoxCode::Encode, given([2, 4], OTHERS), given([3, 4], BOXES))
        },
        BoxCoder {
            variance: vec![0.1, 0.3, 0.2, 0.5],
            ..box_coder(BoxCode::Encode, given([2, 4], OTHERS), given([3, 4], BOXES))
        },
        box_coder(BoxCode::Decode, uniform([2, 4]), uniform([3, 2, 4])),
        BoxCoder {
            axis: 1,
            prior_box_var: Some(uniform([2, 4])),
            ..box_coder(BoxCode::Decode, uniform([2, 4]), uniform([2, 3, 4]))
        },
        BoxCoder {
            box_normalized: false,
            variance: vec![0.1, 0.3, 0.2, 0.5],
            ..box_coder(BoxCode::Decode, uniform([2, 4]), uniform([3, 2, 4]))
        },
        box_coder(BoxCode::Encode, uniform([2, 4]), uniform([0, 4])),
        box_coder(BoxCode::Decode, uniform([0, 4]), uniform([2, 0, 4])),
        box_coder(BoxCode::Encode, uniform([2, 5]), uniform([3, 4]))
            .fails("`PriorBox`: boxes, [n, 4], are needed"),
        box_coder(BoxCode::Encode, uniform([2, 4]), uniform([3, 2, 4]))
            .fails("`TargetBox`: boxes, [n, 4], are needed"),
        box_coder(BoxCode::Decode, uniform([2, 4]), uniform([2, 3, 4]))
            .fails("`TargetBox`: relative boxes, [-1, 2, 4], are needed"),
        BoxCoder {
            prior_box_var: Some(uniform([3, 4])),
            ..box_coder(BoxCode::Encode, uniform([2, 4]), uniform([3, 4]))
        }
        .fails("`PriorBoxVar`: the shape of the prior boxes, [2, 4], is needed"),
        BoxCoder { variance: vec![0.5], ..box_coder(BoxCode::Encode, uniform([2, 4]), uniform([3, 4])) }
            .fails("attribute `variance`: 4 numbers or none are needed, not [0.5]"),
        BoxCoder { axis: 2, ..box_coder(BoxCode::Encode, uniform([2, 4]), uniform([3, 4])) }
            .fails("attribute `axis`"),
    ]
);

fn box_coder(code_type: BoxCode, prior_box: Draw, target_box: Draw) -> BoxCoder<Draw> {
    BoxCoder {
        prior_box,
        prior_box_var: None,
        target_box,
        output_box: out(),
        code_type,
        box_normalized: true,
        axis: 0,
        variance: vec![],
    }
}
