//! `multiclass_nms3` and `matrix_nms`: the best boxes of all classes.

use autobwd::{
    Buf, Cx, DType, Dims, Infer, Kernel, Meta, NoGrad, Result, Var, check::*, op::with_float, register_op,
    tensor::Dim,
};

use super::{Corners, by_score, check_boxes, gather_if, suppress};
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
        MulticlassNms3 {
            score_threshold: 0.29,
            nms_threshold: 0.8,
            ..multiclass_nms3(overlapping(), of_overlapping(), -1)
        }
        .not_a_derivative(WITHOUT),
        MulticlassNms3 {
            nms_threshold: 0.8,
            nms_eta: 0.5,
            nms_top_k: 2,
            nms_rois_num: None,
            ..multiclass_nms3(overlapping(), of_overlapping(), -1)
        }
        .not_a_derivative(WITHOUT),
        MulticlassNms3 {
            normalized: false,
            nms_threshold: 0.1,
            ..multiclass_nms3(pixels(), of_pixels(), -1)
        }
        .not_a_derivative(WITHOUT),
        MulticlassNms3 { nms_threshold: 0.1, ..multiclass_nms3(pixels(), of_pixels(), -1) }
            .not_a_derivative(WITHOUT),
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
        background_label: 0,
        score_threshold: 0.1,
        nms_top_k: -1,
        nms_threshold: 0.3,
        nms_eta: 1.0,
        keep_top_k,
        normalized: true,
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
            for (better, largest) in largest[..k].iter().enumerate() {
                let overlap = own.overlap(&corners(better));
                most = if overlap > most { overlap } else { most };
                let decay = self.decay(overlap, *largest);
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
        MatrixNms { score_threshold: 0.29, ..matrix_nms(overlapping(), of_overlapping(), -1) }
            .not_a_derivative(WITHOUT),
        MatrixNms {
            use_gaussian: true,
            gaussian_sigma: 0.5,
            rois_num: None,
            score_threshold: 0.35,
            nms_top_k: 2,
            normalized: false,
            post_threshold: 0.3,
            ..matrix_nms(overlapping(), of_overlapping(), -1)
        }
        .not_a_derivative(WITHOUT),
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

/// Why samples are not differentiated.
const WITHOUT: &str = "detections have no gradient, as in the reference";

/// Boxes and their scores for each class of an image.
#[derive(Clone, Copy)]
struct ScoredBoxes {
    images: usize,
    classes: usize,
    /// The number of boxes of an image.
    n: usize,
    /// The most detections.
    most: usize,
}

impl ScoredBoxes {
    /// The shape rule of detections, at most so many of an image: of their rows, the numbers of their boxes, and how many an
    /// image has.
    fn infer(
        (boxes, scores): (&Meta, &Meta),
        keep_top_k: i32,
        (out, index, counts): (&mut Meta, &mut Meta, &mut Option<Meta>),
    ) -> Result<()> {
        let [images, classes, n] = check_boxes(boxes, scores)?;
        let each = classes * n;
        let most = usize::try_from(keep_top_k).unwrap_or(usize::MAX);
        let kept = each.get().map_or(Dim::UNKNOWN, |each| each.min(most).into());
        let k = Dim::at_most(images * kept);
        out.set(boxes.dtype, Dims::from_iter([k, 6.into()]));
        index.set(DType::I32, Dims::from_iter([k, 1.into()]));
        counts.iter_mut().for_each(|counts| counts.set(DType::I32, Dims::from_iter([images])));
        Ok(())
    }

    fn of(scores: &Buf<'_>, out: &Buf<'_>) -> ScoredBoxes {
        let [images, classes, n] = [0, 1, 2].map(|axis| scores.dims()[axis]);
        ScoredBoxes { images, classes, n, most: out.dims()[0] }
    }

    /// Writes class, score and box of each detection, and the number of its box; `detections` are positions among all
    /// scores, and `score` gets a row and such a position.
    fn write<T: KernelFloat>(
        &self,
        (boxes, detections): (&[T], &[i64]),
        score: impl Fn(usize, usize) -> T,
        out: &mut Buf<'_>,
        index: &mut Buf<'_>,
    ) -> Result<()> {
        let ScoredBoxes { classes, n, .. } = *self;
        let rows = out.decide::<T>(&[detections.len(), 6])?.chunks_exact_mut(6);
        let numbers = index.decide::<i32>(&[detections.len(), 1])?;
        for (k, ((row, number), place)) in rows.zip(numbers).zip(detections).enumerate() {
            let place = *place as usize;
            let of_all = place / (classes * n) * n + place % n;
            row[0] = T::of((place / n % classes) as f64);
            row[1] = score(k, place);
            row[2..].copy_from_slice(&boxes[of_all * 4..][..4]);
            *number = of_all as i32;
        }
        Ok(())
    }

    /// Writes the number of detections of each image.
    fn write_counts(&self, counts: &[i64], out: Option<&mut Buf<'_>>) -> Result<()> {
        let Some(out) = out else { return Ok(()) };
        out.slice_mut::<i32>()?.iter_mut().zip(counts).for_each(|(out, count)| *out = *count as i32);
        Ok(())
    }
}
