//! `matrix_nms`: scores that fall with the overlap of better boxes.

use autobwd::{
    Buf, Cx, DType, Infer, Kernel, Meta, NoGrad, Result, Var, check::*, op::with_float, register_op,
};

use super::{Corners, ScoredBoxes, WITHOUT, by_score, gather_if};
use crate::kernel_helpers::KernelFloat;

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
    /// Class, score and box of each detection, `[k, 6]`, ordered by image and falling score; `k` is at most the number of
    /// scores.
    #[output]
    pub out: V,
    /// The number of each box among those of all images, int32, `[k, 1]`.
    #[output]
    pub index: V,
    /// The number of detections of each image, int32.
    #[output]
    pub rois_num: Option<V>,
    /// The class without detections; −1 for none.
    #[attr(default = 0)]
    pub background_label: i32,
    /// The score that a candidate exceeds.
    #[attr]
    pub score_threshold: f32,
    /// The score that a detection still exceeds.
    #[attr]
    pub post_threshold: f32,
    /// The number of candidates of a class, by their scores; −1 for all.
    #[attr]
    pub nms_top_k: i32,
    /// The number of detections of an image, by their scores; −1 for all.
    #[attr]
    pub keep_top_k: i32,
    /// Whether the decay is a Gaussian.
    #[attr(default = false)]
    pub use_gaussian: bool,
    /// The factor `σ` of the Gaussian.
    #[attr(default = 2.0)]
    pub gaussian_sigma: f32,
    /// Whether coordinates are points; otherwise they are pixels, and a box with one pixel has the area 1.
    #[attr(default = true)]
    pub normalized: bool,
}
impl Infer for MatrixNms<Meta> {
    fn infer(&mut self) -> Result<()> {
        let outputs = (&mut self.out, &mut self.index, &mut self.rois_num);
        ScoredBoxes::infer((&self.bboxes, &self.scores), self.keep_top_k, outputs)
    }
}
impl MatrixNms<Buf<'_>> {
    fn decay<T: KernelFloat>(&self, overlap: T, largest: T) -> T {
        match self.use_gaussian {
            true => ((largest * largest - overlap * overlap) * T::of(self.gaussian_sigma.into())).exp(),
            false => (T::ONE - overlap) / (T::ONE - largest),
        }
    }

    /// Candidates of a class in the order of their scores, at the front of `candidates`, and their scores after the decay.
    fn detect<T: KernelFloat>(
        &self,
        (boxes, scores): (&[T], &[T]),
        candidates: &mut [i64],
        [largest, decayed]: [&mut [T]; 2],
    ) -> usize {
        let threshold = T::of(self.score_threshold.into());
        let above = gather_if(candidates, scores.len(), |i| scores[i] > threshold);
        candidates[..above].sort_unstable_by(by_score(|i| scores[i]));
        let count = usize::try_from(self.nms_top_k).map_or(above, |most| most.min(above));
        let corners =
            |k: usize| Corners::of_pixels(&boxes[candidates[k] as usize * 4..][..4], self.normalized);
        for k in 0..count {
            let (own, mut most, mut least) = (corners(k), T::ZERO, T::ONE);
            for better in 0..k {
                let overlap = own.overlap(&corners(better));
                most = if overlap > most { overlap } else { most };
                let decay = self.decay(overlap, largest[better]);
                least = if decay < least { decay } else { least };
            }
            (largest[k], decayed[k]) = (most, scores[candidates[k] as usize] * least);
        }
        count
    }
}
impl Kernel for MatrixNms<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let form = ScoredBoxes::of(&self.scores, &self.out);
        let ScoredBoxes { images, classes, n, most } = form;
        let scratch = (2 * n + classes * n + most, n + classes * n + most + images);
        with_float!(self.bboxes, T => cx.scratch_pair(scratch, |numbers: &mut [T], places: &mut [i64]| {
            let (boxes, scores) = (self.bboxes.slice::<T>()?, self.scores.slice::<T>()?);
            let (largest, rest) = numbers.split_at_mut(n);
            let (decayed, rest) = rest.split_at_mut(n);
            let (of_image, final_scores) = rest.split_at_mut(classes * n);
            let (candidates, rest) = places.split_at_mut(n);
            let (order, rest) = rest.split_at_mut(classes * n);
            let (all, counts) = rest.split_at_mut(most);
            let post = T::of(self.post_threshold.into());
            let mut found = 0;
            for (image, count) in counts.iter_mut().enumerate() {
                let (boxes, scores) = (&boxes[image * n * 4..][..n * 4], &scores[image * classes * n..][..classes * n]);
                let mut detected = 0;
                for class in (0..classes).filter(|class| *class as i64 != i64::from(self.background_label)) {
                    let of_class = (boxes, &scores[class * n..][..n]);
                    let considered = self.detect(of_class, candidates, [&mut *largest, &mut *decayed]);
                    for (i, score) in candidates[..considered].iter().zip(&*decayed).filter(|(_, x)| **x > post) {
                        let place = class * n + *i as usize;
                        (order[detected], of_image[place]) = (place as i64, *score);
                        detected += 1;
                    }
                }
                order[..detected].sort_unstable_by(by_score(|i| of_image[i]));
                detected = usize::try_from(self.keep_top_k).map_or(detected, |most| most.min(detected));
                for (k, i) in order[..detected].iter().enumerate() {
                    all[found + k] = (image * classes * n) as i64 + i;
                    final_scores[found + k] = of_image[*i as usize];
                }
                (*count, found) = (detected as i64, found + detected);
            }
            form.write((boxes, &all[..found]), |k, _| final_scores[k], &mut self.out, &mut self.index)?;
            form.write_counts(counts, self.rois_num.as_mut())
        }))
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        let ScoredBoxes { images, classes, n, most } = ScoredBoxes::of(&self.scores, &self.out);
        let (numbers, places) = (2 * n + classes * n + most, n + classes * n + most + images);
        match self.bboxes.dtype() {
            DType::F64 => Cx::scratch_pair_bytes::<f64, i64>(numbers, places),
            _ => Cx::scratch_pair_bytes::<f32, i64>(numbers, places),
        }
    }
}
autobwd::samples!(
    MatrixNms,
    [
        matrix_nms(uniform([2, 5, 4]), distinct([2, 3, 5]), 4).not_a_derivative(WITHOUT),
        MatrixNms { use_gaussian: true, ..matrix_nms(uniform([1, 6, 4]), distinct([1, 2, 6]), -1) }
            .not_a_derivative(WITHOUT),
        MatrixNms {
            normalized: false,
            nms_top_k: 3,
            background_label: -1,
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
        background_label: 0,
        score_threshold: 0.1,
        post_threshold: 0.05,
        nms_top_k: -1,
        keep_top_k,
        use_gaussian: false,
        gaussian_sigma: 2.0,
        normalized: true,
    }
}
