//! Detection of objects: choosing among boxes with scores.

use autobwd::{New, emit};
use autobwd_ops::detection::NonMaxSuppression;

use super::{
    node::{NodeContext, Outputs, one},
    rules::{Native, NodeRules},
};

pub(super) const RULES: NodeRules = &[("NonMaxSuppression", Native, non_max_suppression)];

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
