//! Detection of objects: choosing among boxes with scores.

use autobwd::{DType, New, emit};
use autobwd_ops::{
    Math,
    detection::{NonMaxSuppression, RoiAlign},
    positions,
};

use super::{
    arith::narrow_int,
    node::{NodeContext, Outputs, one, refuse},
    rules::{Native, NodeRules},
};

pub(super) const RULES: NodeRules =
    &[("NonMaxSuppression", Native, non_max_suppression), ("RoiAlign", Native, roi_align)];

fn non_max_suppression(n: &mut NodeContext<'_, '_>) -> Outputs {
    let most = n.constant_ints(2)?.and_then(|most| most.first().copied()).unwrap_or(0);
    let number = |n: &NodeContext<'_, '_>, i: usize| n.constant_floats(i).map(|x| x?.first().copied());
    let iou_threshold = number(n, 3)?.unwrap_or(0.0) as f32;
    let score_threshold = number(n, 4)?.map_or(f32::NEG_INFINITY, |x| x as f32);
    let center_point_box = n.flag("center_point_box", false)?;
    let (boxes, scores) = (n.input(0)?, n.input(1)?);
    let op = NonMaxSuppression {
        boxes: (&boxes).into(),
        scores: (&scores).into(),
        out: New,
        max_output_boxes_per_class: most.max(0),
        iou_threshold,
        score_threshold,
        center_point_box,
    };
    one(emit(op).out)
}

/// `roi_align` of the reference has the boxes of each image together.
fn roi_align(n: &mut NodeContext<'_, '_>) -> Outputs {
    let mode = n.text_or("mode", "avg")?;
    if mode != "avg" {
        return Err(refuse(format!("attribute `mode` = `{mode}` of operator `RoiAlign` is not supported")));
    }
    let before = if n.version() < 16 { "output_half_pixel" } else { "half_pixel" };
    let aligned = match n.text_or("coordinate_transformation_mode", before)? {
        "half_pixel" => true,
        "output_half_pixel" => false,
        other => {
            let name = "coordinate_transformation_mode";
            return Err(refuse(format!(
                "attribute `{name}` = `{other}` of operator `RoiAlign` is not supported"
            )));
        }
    };
    let ratio = narrow_int(n.int_or("sampling_ratio", 0)?)?;
    let [pooled_height, pooled_width] =
        [n.int_or("output_height", 1)?, n.int_or("output_width", 1)?].map(narrow_int);
    let spatial_scale = n.float_or("spatial_scale", 1.0)?;
    let (x, rois, image) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let (_, order) = image.sort(0, false);
    let (_, place) = order.sort(0, false);
    let numbers = positions(x.builder(), &x.dim(0)).unsqueeze(&[1]);
    let counts = numbers.equal(&image.unsqueeze(&[0])).cast(DType::I64).sum(&[1]);
    let op = RoiAlign {
        x: (&x).into(),
        rois: (&rois.index_select(&order, 0)).into(),
        rois_num: Some((&counts).into()),
        out: New,
        pooled_height: pooled_height?,
        pooled_width: pooled_width?,
        spatial_scale,
        sampling_ratio: if ratio == 0 { -1 } else { ratio },
        aligned,
    };
    one(emit(op).out.index_select(&place, 0))
}
