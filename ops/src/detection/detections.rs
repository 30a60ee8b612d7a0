//! Detections of all classes of an image: their attributes, and the part that does not depend on the suppression.

use autobwd::{Attrs, Buf, Cx, DType, Dims, Meta, Result, tensor::Dim};

use super::{Corners, by_score, check_boxes, gather_if};
use crate::kernel_helpers::KernelFloat;

/// What counts as a detection of a class.
#[derive(Attrs, Clone, Debug)]
pub struct DetectionAttrs {
    /// The class without detections; −1 for none.
    #[attr(default = 0)]
    pub background_label: i32,
    /// The score that a candidate exceeds.
    #[attr]
    pub score_threshold: f32,
    /// The number of candidates of a class, by their scores; −1 for all.
    #[attr]
    pub nms_top_k: i32,
    /// The number of detections of an image, by their scores; −1 for all.
    #[attr]
    pub keep_top_k: i32,
    /// Whether coordinates are points; otherwise they are pixels, and a box with one pixel has the area 1.
    #[attr(default = true)]
    pub normalized: bool,
}

impl DetectionAttrs {
    /// All candidates with scores above a threshold, of all classes but the first; coordinates are points.
    pub fn above(score_threshold: f32) -> DetectionAttrs {
        DetectionAttrs {
            background_label: 0,
            score_threshold,
            nms_top_k: -1,
            keep_top_k: -1,
            normalized: true,
        }
    }

    /// The shape rule of detections: their rows, the numbers of their boxes, and how many an image has.
    pub(super) fn infer(
        &self,
        (boxes, scores): (&Meta, &Meta),
        (out, index, counts): (&mut Meta, &mut Meta, &mut Option<Meta>),
    ) -> Result<()> {
        let [images, classes, n] = check_boxes(boxes, scores)?;
        let most = usize::try_from(self.keep_top_k).unwrap_or(usize::MAX);
        let kept = (classes * n).get().map_or(Dim::UNKNOWN, |each| each.min(most).into());
        let k = Dim::at_most(images * kept);
        out.set(boxes.dtype, Dims::from_iter([k, 6.into()]));
        index.set(DType::I32, Dims::from_iter([k, 1.into()]));
        counts.iter_mut().for_each(|counts| counts.set(DType::I32, Dims::from_iter([images])));
        Ok(())
    }

    /// The candidates of a class in the order of their scores, at the front of `list`; returns their number.
    pub(super) fn candidates<T: KernelFloat>(&self, scores: &[T], list: &mut [i64]) -> usize {
        let threshold = T::of(self.score_threshold.into());
        let above = gather_if(list, scores.len(), |i| scores[i] > threshold);
        list[..above].sort_unstable_by(by_score(|i| scores[i]));
        usize::try_from(self.nms_top_k).map_or(above, |most| most.min(above))
    }

    pub(super) fn corners<T: KernelFloat>(&self, boxes: &[T], i: usize) -> Corners<T> {
        let of = &boxes[i * 4..][..4];
        let pixel = if self.normalized { T::ZERO } else { T::ONE };
        Corners { low: [of[0], of[1]], high: [of[2], of[3]], pixel }
    }

    /// Writes the detections of all images. `of_class` gets the boxes and scores of a class, moves its detections to the
    /// front of the list of candidates and their scores to the front of memory for two numbers a box, and returns their
    /// number.
    pub(super) fn detect<T: KernelFloat>(
        &self,
        cx: &Cx,
        (boxes, scores): (&Buf<'_>, &Buf<'_>),
        detections: Detections<'_, '_>,
        of_class: impl Fn(&[T], &[T], &mut [i64], &mut [T]) -> usize,
    ) -> Result<()> {
        let form = ScoredBoxes::of(scores, detections.out);
        let ScoredBoxes { images, classes, n, most } = form;
        cx.scratch_pair(form.scratch(), |numbers: &mut [T], places: &mut [i64]| {
            let (boxes, scores) = (boxes.slice::<T>()?, scores.slice::<T>()?);
            let (work, rest) = numbers.split_at_mut(2 * n);
            let (of_place, final_scores) = rest.split_at_mut(classes * n);
            let (candidates, rest) = places.split_at_mut(n);
            let (order, rest) = rest.split_at_mut(classes * n);
            let (all, counts) = rest.split_at_mut(most);
            let mut found = 0;
            for image in 0..images {
                let boxes = &boxes[image * n * 4..][..n * 4];
                let scores = &scores[image * classes * n..][..classes * n];
                let mut detected = 0;
                for class in (0..classes).filter(|class| *class as i64 != i64::from(self.background_label)) {
                    let kept = of_class(boxes, &scores[class * n..][..n], candidates, work);
                    for (i, score) in candidates[..kept].iter().zip(&*work) {
                        let place = class * n + *i as usize;
                        (order[detected], of_place[place]) = (place as i64, *score);
                        detected += 1;
                    }
                }
                let falling = by_score(|place| of_place[place]);
                order[..detected].sort_unstable_by(&falling);
                detected = usize::try_from(self.keep_top_k).map_or(detected, |most| most.min(detected));
                if detections.by_class {
                    let class = |place: &i64| *place as usize / n;
                    order[..detected]
                        .sort_unstable_by(|a, b| class(a).cmp(&class(b)).then_with(|| falling(a, b)));
                }
                for place in &order[..detected] {
                    all[found] = (image * classes * n) as i64 + place;
                    final_scores[found] = of_place[*place as usize];
                    found += 1;
                }
                counts[image] = detected as i64;
            }
            detections.write(form, boxes, (&all[..found], &final_scores[..found]), counts)
        })
    }
}

/// The outputs of detections.
pub(super) struct Detections<'a, 'b> {
    pub(super) out: &'a mut Buf<'b>,
    pub(super) index: &'a mut Buf<'b>,
    pub(super) counts: Option<&'a mut Buf<'b>>,
    /// Whether the detections of an image are in the order of their classes, instead of their scores.
    pub(super) by_class: bool,
}

impl Detections<'_, '_> {
    /// Writes class, score and box of each detection, the number of its box, and how many an image has; `places` are
    /// positions among the scores of all images.
    fn write<T: KernelFloat>(
        self,
        ScoredBoxes { classes, n, .. }: ScoredBoxes,
        boxes: &[T],
        (places, scores): (&[i64], &[T]),
        counts: &[i64],
    ) -> Result<()> {
        let rows = self.out.decide::<T>(&[places.len(), 6])?.chunks_exact_mut(6);
        let numbers = self.index.decide::<i32>(&[places.len(), 1])?;
        for (((row, number), place), score) in rows.zip(numbers).zip(places).zip(scores) {
            let place = *place as usize;
            let of_all = place / (classes * n) * n + place % n;
            (row[0], row[1]) = (T::of((place / n % classes) as f64), *score);
            row[2..].copy_from_slice(&boxes[of_all * 4..][..4]);
            *number = of_all as i32;
        }
        if let Some(out) = self.counts {
            out.slice_mut::<i32>()?.iter_mut().zip(counts).for_each(|(out, count)| *out = *count as i32);
        }
        Ok(())
    }
}

/// The numbers of images, of classes, and of boxes of an image.
#[derive(Clone, Copy)]
struct ScoredBoxes {
    images: usize,
    classes: usize,
    n: usize,
    /// The most detections.
    most: usize,
}

impl ScoredBoxes {
    fn of(scores: &Buf<'_>, out: &Buf<'_>) -> ScoredBoxes {
        // Without a score, the other dimensions may be larger than memory.
        let [images, classes, n] = [0, 1, 2].map(|axis| scores.dims()[axis]);
        match scores.numel() {
            0 => ScoredBoxes { images, classes: 0, n: 0, most: 0 },
            _ => ScoredBoxes { images, classes, n, most: out.dims()[0] },
        }
    }

    /// The lengths of scratch memory: numbers, and positions.
    fn scratch(&self) -> (usize, usize) {
        let ScoredBoxes { images, classes, n, most } = *self;
        (2 * n + classes * n + most, n + classes * n + most + images)
    }
}

/// The bytes of scratch memory of [`DetectionAttrs::detect`], which computes in the dtype of the scores.
pub(super) fn scratch_bytes(scores: &Buf<'_>, out: &Buf<'_>) -> usize {
    let (numbers, places) = ScoredBoxes::of(scores, out).scratch();
    match scores.dtype() {
        DType::F64 => Cx::scratch_pair_bytes::<f64, i64>(numbers, places),
        _ => Cx::scratch_pair_bytes::<f32, i64>(numbers, places),
    }
}
