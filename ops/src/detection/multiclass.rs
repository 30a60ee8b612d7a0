//! `multiclass_nms3` and `matrix_nms`: the best boxes of all classes.

use autobwd::{Buf, Cx, Infer, Kernel, Meta, NoGrad, Result, Var, check::*, op::with_float, register_op};

use super::{
    Corners,
    detections::{DetectionAttrs, Detections, scratch_bytes},
    suppress,
};
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
    /// Class, score and box of each detection, `[k, 6]`, ordered by image, class and descending score; `k` is at most the
    /// number of scores.
    #[output]
    pub out: V,
    /// The number of each box in all images, int32, `[k, 1]`.
    #[output]
    pub index: V,
    /// The number of detections of each image, int32.
    #[output]
    pub nms_rois_num: Option<V>,
    /// What counts as a detection.
    #[attrs]
    pub detection: DetectionAttrs,
    /// The largest intersection over union of two boxes of a class.
    #[attr(default = 0.3)]
    pub nms_threshold: f32,
    /// The factor of `nms_threshold` after each detection of a class, while the threshold is above 0.5.
    #[attr(default = 1.0)]
    pub nms_eta: f32,
}
impl Infer for MulticlassNms3<Meta> {
    fn infer(&mut self) -> Result<()> {
        let outputs = (&mut self.out, &mut self.index, &mut self.nms_rois_num);
        self.detection.infer((&self.bboxes, &self.scores), outputs)
    }
}
impl Kernel for MulticlassNms3<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let MulticlassNms3 { bboxes, scores, out, index, nms_rois_num, detection, .. } = self;
        let (attrs, nms_eta) = (&*detection, self.nms_eta);
        with_float!(bboxes, T => {
            let of_class = |boxes: &[T], scores: &[T], candidates: &mut [i64], kept_scores: &mut [T]| {
                let considered = attrs.candidates(scores, candidates);
                let corners = |i: usize| attrs.corners(boxes, i);
                let (mut threshold, mut detected) = (self.nms_threshold, 0);
                let kept = suppress(&mut candidates[..considered], usize::MAX, corners, |kept| {
                    if kept > detected && nms_eta < 1.0 && threshold > 0.5 {
                        threshold *= nms_eta;
                    }
                    detected = kept;
                    T::of(threshold.into())
                });
                for (score, i) in kept_scores.iter_mut().zip(&candidates[..kept]) {
                    *score = scores[*i as usize];
                }
                kept
            };
            let detections = Detections { out, index, counts: nms_rois_num.as_mut(), by_class: true };
            attrs.detect(cx, (bboxes, scores), detections, of_class)
        })
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        scratch_bytes(&self.scores, &self.out)
    }
}
autobwd::samples!(
    MulticlassNms3,
    [
        MulticlassNms3 {
            detection: above(0.29),
            nms_threshold: 0.8,
            ..multiclass_nms3(overlapping(), of_overlapping(), -1)
        }
        .not_a_derivative(WITHOUT),
        MulticlassNms3 {
            nms_threshold: 0.8,
            nms_eta: 0.5,
            detection: above(0.1).nms_top_k(2),
            nms_rois_num: None,
            ..multiclass_nms3(overlapping(), of_overlapping(), -1)
        }
        .not_a_derivative(WITHOUT),
        MulticlassNms3 {
            detection: above(0.1).normalized(false),
            nms_threshold: 0.1,
            ..multiclass_nms3(pixels(), of_pixels(), -1)
        }
        .not_a_derivative(WITHOUT),
        MulticlassNms3 { nms_threshold: 0.1, ..multiclass_nms3(pixels(), of_pixels(), -1) }
            .not_a_derivative(WITHOUT),
        multiclass_nms3(uniform([2, 5, 4]), distinct([2, 3, 5]), 4).not_a_derivative(WITHOUT),
        multiclass_nms3(uniform([1, 6, 4]), uniform([1, 2, 6]), -1).not_a_derivative(WITHOUT),
        MulticlassNms3 {
            nms_threshold: 0.8,
            nms_eta: 0.5,
            detection: above(0.1).normalized(false).nms_top_k(4).keep_top_k(3).background_label(-1),
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

fn above(score_threshold: f32) -> DetectionAttrs {
    DetectionAttrs::above(score_threshold)
}

/// Three boxes that overlap, with scores of the second class.
fn overlapping() -> Draw {
    given([1, 3, 4], [0.0, 0.0, 4.0, 4.0, 1.0, 1.0, 5.0, 5.0, 0.0, 0.0, 4.0, 3.0])
}

fn of_overlapping() -> Draw {
    given([1, 2, 3], [0.0, 0.0, 0.0, 0.9, 0.6, 0.3])
}

/// Two boxes that share a pixel.
fn pixels() -> Draw {
    given([1, 2, 4], [0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0])
}

fn of_pixels() -> Draw {
    given([1, 2, 2], [0.0, 0.0, 0.9, 0.8])
}

fn multiclass_nms3(bboxes: Draw, scores: Draw, keep_top_k: i32) -> MulticlassNms3<Draw> {
    MulticlassNms3 {
        bboxes,
        scores,
        out: out(),
        index: out(),
        nms_rois_num: Some(out()),
        detection: above(0.1).keep_top_k(keep_top_k),
        nms_threshold: 0.3,
        nms_eta: 1.0,
    }
}

/// Matrix non-maximum suppression: the score of a box is multiplied by the smallest decay that a better box `j` of its
/// class gives it, `(1 − o)/(1 − oⱼ)`, or with a Gaussian `exp(σ·(oⱼ² − o²))`, where `o` is their intersection over union,
/// and `oⱼ` the largest one of `j` with boxes better than `j`.
///
/// From "SOLOv2: Dynamic and Fast Instance Segmentation", Wang et al., 2020. Of equal scores, the first class and box come
/// first; NaN is below every threshold.
#[register_op(grad = NoGrad, primitive)]
pub struct MatrixNms<V = Var> {
    /// `[images, n, 4]`: left, top, right and bottom.
    #[input("BBoxes")]
    pub bboxes: V,
    /// `[images, classes, n]`.
    #[input]
    pub scores: V,
    /// Class, score and box of each detection, `[k, 6]`, ordered by image and descending score; `k` is at most the number of
    /// scores.
    #[output]
    pub out: V,
    /// The number of each box in all images, int32, `[k, 1]`.
    #[output]
    pub index: V,
    /// The number of detections of each image, int32.
    #[output]
    pub rois_num: Option<V>,
    /// What counts as a detection.
    #[attrs]
    pub detection: DetectionAttrs,
    /// The score that a detection still exceeds after the decay.
    #[attr]
    pub post_threshold: f32,
    /// Whether the decay is a Gaussian.
    #[attr(default = false)]
    pub use_gaussian: bool,
    /// The factor `σ` of the Gaussian.
    #[attr(default = 2.0)]
    pub gaussian_sigma: f32,
}
impl Infer for MatrixNms<Meta> {
    fn infer(&mut self) -> Result<()> {
        let outputs = (&mut self.out, &mut self.index, &mut self.rois_num);
        self.detection.infer((&self.bboxes, &self.scores), outputs)
    }
}
/// The decay of a score by a better box.
#[derive(Clone, Copy)]
enum Decay<T> {
    Linear,
    Gaussian(T),
}

impl<T: KernelFloat> Decay<T> {
    fn factor(self, overlap: T, largest: T) -> T {
        match self {
            Decay::Linear => (T::ONE - overlap) / (T::ONE - largest),
            Decay::Gaussian(sigma) => ((largest * largest - overlap * overlap) * sigma).exp(),
        }
    }

    /// Writes the decayed scores of candidates in the order of their scores, and the largest overlap of each with a better
    /// one.
    fn scores(
        self,
        count: usize,
        candidate: impl Fn(usize) -> (Corners<T>, T),
        decayed: &mut [T],
        largest: &mut [T],
    ) {
        for k in 0..count {
            let (own, score) = candidate(k);
            let (mut most, mut least) = (T::ZERO, T::ONE);
            for (better, largest) in largest[..k].iter().enumerate() {
                let overlap = own.overlap(&candidate(better).0);
                most = if overlap > most { overlap } else { most };
                let factor = self.factor(overlap, *largest);
                least = if factor < least { factor } else { least };
            }
            (largest[k], decayed[k]) = (most, score * least);
        }
    }
}
impl Kernel for MatrixNms<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let MatrixNms { bboxes, scores, out, index, rois_num, detection, .. } = self;
        let attrs = &*detection;
        with_float!(bboxes, T => {
            let decay = match self.use_gaussian {
                true => Decay::Gaussian(T::of(self.gaussian_sigma.into())),
                false => Decay::Linear,
            };
            let post_threshold = T::of(self.post_threshold.into());
            let of_class = |boxes: &[T], scores: &[T], candidates: &mut [i64], work: &mut [T]| {
                let considered = attrs.candidates(scores, candidates);
                let (decayed, largest) = work.split_at_mut(scores.len());
                let of_candidate = |k: usize| {
                    let i = candidates[k] as usize;
                    (attrs.corners(boxes, i), scores[i])
                };
                decay.scores(considered, of_candidate, decayed, largest);
                let mut kept = 0;
                for k in 0..considered {
                    if decayed[k] > post_threshold {
                        (candidates[kept], decayed[kept]) = (candidates[k], decayed[k]);
                        kept += 1;
                    }
                }
                kept
            };
            let detections = Detections { out, index, counts: rois_num.as_mut(), by_class: false };
            attrs.detect(cx, (bboxes, scores), detections, of_class)
        })
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        scratch_bytes(&self.scores, &self.out)
    }
}
autobwd::samples!(
    MatrixNms,
    [
        MatrixNms { detection: above(0.29), ..matrix_nms(overlapping(), of_overlapping(), -1) }
            .not_a_derivative(WITHOUT),
        MatrixNms {
            use_gaussian: true,
            gaussian_sigma: 0.5,
            rois_num: None,
            detection: above(0.35).nms_top_k(2).normalized(false),
            post_threshold: 0.3,
            ..matrix_nms(overlapping(), of_overlapping(), -1)
        }
        .not_a_derivative(WITHOUT),
        matrix_nms(uniform([2, 5, 4]), distinct([2, 3, 5]), 4).not_a_derivative(WITHOUT),
        MatrixNms { use_gaussian: true, ..matrix_nms(uniform([1, 6, 4]), distinct([1, 2, 6]), -1) }
            .not_a_derivative(WITHOUT),
        MatrixNms {
            detection: above(0.1).nms_top_k(3).keep_top_k(3).normalized(false).background_label(-1),
            post_threshold: 0.3,
            ..matrix_nms(uniform([2, 5, 4]), distinct([2, 2, 5]), 3)
        }
        .not_a_derivative(WITHOUT),
        matrix_nms(uniform([1, 2, 4]), given([1, 2, 2], [0.9, 0.9, f64::NAN, -1.0]), -1)
            .not_a_derivative(WITHOUT),
        matrix_nms(uniform([2, 0, 4]), uniform([2, 3, 0]), 4).not_a_derivative(WITHOUT),
        matrix_nms(uniform([0, 2, 4]), uniform([0, 3, 2]), 4).not_a_derivative(WITHOUT),
        matrix_nms(uniform([1, 3, 5]), uniform([1, 2, 3]), 2).fails("`BBoxes`: 4 coordinates are needed"),
    ]
);

fn matrix_nms(bboxes: Draw, scores: Draw, keep_top_k: i32) -> MatrixNms<Draw> {
    MatrixNms {
        bboxes,
        scores,
        out: out(),
        index: out(),
        rois_num: Some(out()),
        detection: above(0.1).keep_top_k(keep_top_k),
        post_threshold: 0.05,
        use_gaussian: false,
        gaussian_sigma: 2.0,
    }
}

/// Why samples are not differentiated.
const WITHOUT: &str = "detections have no gradient, as in the reference";
