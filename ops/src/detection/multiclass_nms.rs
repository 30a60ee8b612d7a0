//! `multiclass_nms3`: the best boxes of all classes.

use autobwd::{Buf, Cx, Infer, Kernel, Meta, NoGrad, Result, Var, check::*, op::with_float, register_op};

use super::{Corners, ScoredBoxes, WITHOUT, by_score, gather_if, suppress};
use crate::kernel_helpers::KernelFloat;

/// Greedy non-maximum suppression for each class of an image, and then the boxes with the highest scores of all its
/// classes.
///
/// Of equal scores, the first class and box come first; NaN is below every threshold.
#[register_op(name = "multiclass_nms3", grad = NoGrad, primitive)]
pub struct MulticlassNms3<V = Var> {
    /// `[images, n, 4]`: left, top, right and bottom.
    #[input("BBoxes")]
    pub bboxes: V,
    /// `[images, classes, n]`.
    #[input]
    pub scores: V,
    /// Class, score and box of each detection, `[k, 6]`, ordered by image, class and falling score; `k` is at most the
    /// number of scores.
    #[output]
    pub out: V,
    /// The number of each box among those of all images, int32, `[k, 1]`.
    #[output]
    pub index: V,
    /// The number of detections of each image, int32.
    #[output]
    pub nms_rois_num: Option<V>,
    /// The class without detections; −1 for none.
    #[attr(default = 0)]
    pub background_label: i32,
    /// The score that a detection exceeds.
    #[attr]
    pub score_threshold: f32,
    /// The number of candidates of a class, by their scores; −1 for all.
    #[attr]
    pub nms_top_k: i32,
    /// The largest intersection over union of two boxes of a class.
    #[attr(default = 0.3)]
    pub nms_threshold: f32,
    /// What that is multiplied by after each detection of a class, while it is above 0.5; 1 keeps it.
    #[attr(default = 1.0)]
    pub nms_eta: f32,
    /// The number of detections of an image, by their scores; −1 for all.
    #[attr]
    pub keep_top_k: i32,
    /// Whether coordinates are points; otherwise they are pixels, and a box with one pixel has the area 1.
    #[attr(default = true)]
    pub normalized: bool,
}
impl Infer for MulticlassNms3<Meta> {
    fn infer(&mut self) -> Result<()> {
        let outputs = (&mut self.out, &mut self.index, &mut self.nms_rois_num);
        ScoredBoxes::infer((&self.bboxes, &self.scores), self.keep_top_k, outputs)
    }
}
impl MulticlassNms3<Buf<'_>> {
    /// The detections of a class: they are at the front of `candidates`.
    fn detect<T: KernelFloat>(&self, boxes: &[T], scores: &[T], candidates: &mut [i64]) -> usize {
        let threshold = T::of(self.score_threshold.into());
        let above = gather_if(candidates, scores.len(), |i| scores[i] > threshold);
        candidates[..above].sort_unstable_by(by_score(|i| scores[i]));
        let considered = usize::try_from(self.nms_top_k).map_or(above, |most| most.min(above));
        let corners = |i: usize| Corners::of_pixels(&boxes[i * 4..][..4], self.normalized);
        let (mut overlap, mut detected) = (self.nms_threshold, 0);
        suppress(&mut candidates[..considered], usize::MAX, corners, |kept| {
            if kept > detected && self.nms_eta < 1.0 && overlap > 0.5 {
                overlap *= self.nms_eta;
            }
            detected = kept;
            T::of(overlap.into())
        })
    }
}
impl Kernel for MulticlassNms3<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let form = ScoredBoxes::of(&self.scores, &self.out);
        let ScoredBoxes { images, classes, n, most } = form;
        with_float!(self.bboxes, T => cx.scratch(n + classes * n + most + images, |scratch: &mut [i64]| {
            let (boxes, scores) = (self.bboxes.slice::<T>()?, self.scores.slice::<T>()?);
            let (candidates, rest) = scratch.split_at_mut(n);
            let (of_image, rest) = rest.split_at_mut(classes * n);
            let (all, counts) = rest.split_at_mut(most);
            let mut found = 0;
            for (image, count) in counts.iter_mut().enumerate() {
                let (boxes, scores) = (&boxes[image * n * 4..][..n * 4], &scores[image * classes * n..][..classes * n]);
                let mut detected = 0;
                for class in (0..classes).filter(|class| *class as i64 != i64::from(self.background_label)) {
                    let kept = self.detect(boxes, &scores[class * n..][..n], candidates);
                    for (place, i) in of_image[detected..].iter_mut().zip(&candidates[..kept]) {
                        *place = (class * n) as i64 + i;
                    }
                    detected += kept;
                }
                let best = usize::try_from(self.keep_top_k).unwrap_or(usize::MAX);
                if best < detected {
                    of_image[..detected].sort_unstable_by(by_score(|i| scores[i]));
                    detected = best;
                    let class = |i: &i64| *i as usize / n;
                    let falling = by_score(|i| scores[i]);
                    of_image[..detected]
                        .sort_unstable_by(|a, b| class(a).cmp(&class(b)).then_with(|| falling(a, b)));
                }
                for (to, i) in all[found..].iter_mut().zip(&of_image[..detected]) {
                    *to = (image * classes * n) as i64 + i;
                }
                (*count, found) = (detected as i64, found + detected);
            }
            form.write((boxes, &all[..found]), |_, i| scores[i], &mut self.out, &mut self.index)?;
            form.write_counts(counts, self.nms_rois_num.as_mut())
        }))
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        let ScoredBoxes { images, classes, n, most } = ScoredBoxes::of(&self.scores, &self.out);
        (n + classes * n + most + images).saturating_mul(size_of::<i64>())
    }
}
autobwd::samples!(
    MulticlassNms3,
    [
        multiclass_nms3(uniform([2, 5, 4]), distinct([2, 3, 5]), 4).not_a_derivative(WITHOUT),
        multiclass_nms3(uniform([1, 6, 4]), uniform([1, 2, 6]), -1).not_a_derivative(WITHOUT),
        MulticlassNms3 {
            normalized: false,
            nms_threshold: 0.8,
            nms_eta: 0.5,
            nms_top_k: 4,
            background_label: -1,
            ..multiclass_nms3(uniform([2, 5, 4]), distinct([2, 2, 5]), 3)
        }
        .not_a_derivative(WITHOUT),
        multiclass_nms3(uniform([1, 2, 4]), given([1, 2, 2], [0.9, 0.9, f64::NAN, -1.0]), -1)
            .not_a_derivative(WITHOUT),
        multiclass_nms3(uniform([2, 0, 4]), uniform([2, 3, 0]), 4).not_a_derivative(WITHOUT),
        multiclass_nms3(uniform([0, 2, 4]), uniform([0, 3, 2]), 4).not_a_derivative(WITHOUT),
        multiclass_nms3(uniform([1, 3, 8]), uniform([1, 2, 3]), 2)
            .fails("`BBoxes`: 4 coordinates are needed"),
        multiclass_nms3(uniform([3, 2, 4]), uniform([3, 2]), 2).fails("`Scores`: 3 dimensions are needed"),
    ]
);

fn multiclass_nms3(bboxes: Draw, scores: Draw, keep_top_k: i32) -> MulticlassNms3<Draw> {
    MulticlassNms3 {
        bboxes,
        scores,
        out: out(),
        index: out(),
        nms_rois_num: Some(out()),
        background_label: 0,
        score_threshold: 0.1,
        nms_top_k: -1,
        nms_threshold: 0.3,
        nms_eta: 1.0,
        keep_top_k,
        normalized: true,
    }
}
