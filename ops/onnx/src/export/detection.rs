//! Detection of objects: choosing among boxes with scores.

use autobwd::{DType, op::Rule};
use autobwd_ops::detection::NonMaxSuppression;

use super::{NodeAttr, Onnx};
use crate::rules;

rules!(NonMaxSuppression);

impl Rule<Onnx> for NonMaxSuppression<Onnx> {
    /// ONNX has it for float32 alone.
    fn fits(&self) -> bool {
        self.boxes.dtype() == DType::F32
    }

    fn apply(&mut self) {
        let most = self.boxes.ints(&[self.max_output_boxes_per_class]);
        let [overlap, score] = [self.iou_threshold, self.score_threshold].map(|x| self.boxes.floats(&[x]));
        let centre = ("center_point_box", NodeAttr::Int(i64::from(self.center_point_box)));
        self.out = self.boxes.node("NonMaxSuppression", &[&self.scores, &most, &overlap, &score], &[centre]);
    }
}
