//! Detection of objects: boxes, their scores and their features, and choosing among them.

mod anchors;
mod box_coding;
mod detections;
mod multiclass;
mod non_max_suppression;
mod prior_boxes;
mod roi_bins;
mod roi_features;
mod roi_pool;
mod rois;
mod yolo_box;

pub use anchors::AnchorGenerator;
pub use box_coding::{BoxCode, BoxCoder, IouSimilarity};
pub use detections::DetectionAttrs;
pub use multiclass::{MatrixNms, MulticlassNms3};
pub use non_max_suppression::NonMaxSuppression;
pub use prior_boxes::{DensityPriorBox, PriorAttrs, PriorBox};
pub use roi_features::{PsroiPool, PsroiPoolGrad, RoiAlign, RoiAlignGrad};
pub use roi_pool::{RoiPool, RoiPoolGrad};
pub use yolo_box::YoloBox;

use std::cmp::Ordering;

use autobwd::{Meta, Result, tensor::Dim};

use crate::kernel_helpers::KernelFloat;

/// Checks boxes, `[images, n, 4]`, and scores, `[images, classes, n]`; returns the dimensions of the scores.
fn check_boxes(boxes: &Meta, scores: &Meta) -> Result<[Dim; 3]> {
    boxes.float()?;
    scores.same_dtype(boxes)?;
    let [images, n, four] = boxes.unpack()?;
    boxes.require(four.agrees(4.into()), || "4 coordinates are needed".into())?;
    let [scored, classes, of] = scores.unpack()?;
    scores.require(scored.agrees(images) && of.agrees(n), || {
        format!("a score of each of the boxes, {}, is needed", boxes.dims)
    })?;
    Ok([images.or(scored), classes, n.or(of)])
}

/// A box by two opposite corners: the smaller coordinates, and the larger ones.
#[derive(Clone, Copy)]
struct Corners<T> {
    low: [T; 2],
    high: [T; 2],
    /// What the last coordinate adds to a length: 1 for pixels, 0 for points.
    pixel: T,
}

impl<T: KernelFloat> Corners<T> {
    fn area(&self) -> T {
        if self.high[0] < self.low[0] || self.high[1] < self.low[1] {
            return T::ZERO;
        }
        (self.high[0] - self.low[0] + self.pixel) * (self.high[1] - self.low[1] + self.pixel)
    }

    /// Intersection over union; 0 for boxes that do not meet, and for two without area.
    fn overlap(&self, other: &Corners<T>) -> T {
        let side = |axis: usize| {
            let low = if self.low[axis] > other.low[axis] { self.low[axis] } else { other.low[axis] };
            let high = if self.high[axis] < other.high[axis] { self.high[axis] } else { other.high[axis] };
            (high >= low).then(|| high - low + self.pixel)
        };
        let (Some(width), Some(height)) = (side(0), side(1)) else { return T::ZERO };
        let shared = width * height;
        let union = self.area() + other.area() - shared;
        if union > T::ZERO { shared / union } else { T::ZERO }
    }
}

/// The order of descending scores; of equal ones, the first comes first. NaN is no candidate.
fn by_score<T: KernelFloat>(score: impl Fn(usize) -> T) -> impl Fn(&i64, &i64) -> Ordering {
    move |a, b| {
        let [x, y] = [*a, *b].map(|i| score(i as usize));
        y.partial_cmp(&x).unwrap_or(Ordering::Equal).then(a.cmp(b))
    }
}

/// Fills the front of `list` with the numbers below `count` that fit, ascending; returns how many there are.
fn gather_if(list: &mut [i64], count: usize, fits: impl Fn(usize) -> bool) -> usize {
    let mut found = 0;
    for i in (0..count).filter(|i| fits(*i)) {
        list[found] = i as i64;
        found += 1;
    }
    found
}

/// Greedy non-maximum suppression, in place: keeps each candidate, in their order, that overlaps none of the kept ones by
/// more than the threshold. Returns how many are kept, at most `most`.
fn suppress<T: KernelFloat>(
    candidates: &mut [i64],
    most: usize,
    corners: impl Fn(usize) -> Corners<T>,
    mut threshold: impl FnMut(usize) -> T,
) -> usize {
    let mut kept = 0;
    for next in 0..candidates.len() {
        if kept == most {
            break;
        }
        let (candidate, threshold) = (candidates[next], threshold(kept));
        let own = corners(candidate as usize);
        if candidates[..kept].iter().all(|other| corners(*other as usize).overlap(&own) <= threshold) {
            candidates[kept] = candidate;
            kept += 1;
        }
    }
    kept
}
