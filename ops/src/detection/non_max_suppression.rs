//! `non_max_suppression`: the boxes of each class that overlap no better one.

use autobwd::{
    Buf, Cx, DType, Dims, Infer, Kernel, Meta, Result, Var, ZeroGrad, check::*, op::with_float, register_op,
    tensor::Dim,
};

use super::{Corners, by_score, check_boxes, gather_if, suppress};
use crate::kernel_helpers::KernelFloat;

/// Greedy non-maximum suppression for each image and class: boxes in the order of their scores are selected if they
/// overlap none of the selected ones by more than a threshold.
///
/// As `NonMaxSuppression` of ONNX. Of equal scores, the first box comes first. A score that is NaN is below every
/// threshold; a box with NaN overlaps none.
#[register_op(grad = ZeroGrad, primitive)]
pub struct NonMaxSuppression<V = Var> {
    /// `[images, n, 4]`: two opposite corners, the vertical coordinate first; or centre, width and height.
    #[input]
    pub boxes: V,
    /// `[images, classes, n]`.
    #[input]
    pub scores: V,
    /// Image, class and box of each selected one, int64, `[k, 3]`, ordered by image, class and descending score; `k` is at
    /// most the number of scores.
    #[output]
    pub out: V,
    /// The most boxes of an image and class.
    #[attr(min = 0)]
    pub max_output_boxes_per_class: i64,
    /// The largest intersection over union with a selected box.
    #[attr(default = 0.0)]
    pub iou_threshold: f32,
    /// The score that a selected box exceeds.
    #[attr(default = f32::NEG_INFINITY)]
    pub score_threshold: f32,
    /// Whether a box is its centre, horizontal coordinate first, its width and its height.
    #[attr(default = false)]
    pub center_point_box: bool,
}
impl Infer for NonMaxSuppression<Meta> {
    fn infer(&mut self) -> Result<()> {
        let [images, classes, n] = check_boxes(&self.boxes, &self.scores)?;
        let most = usize::try_from(self.max_output_boxes_per_class).unwrap_or(usize::MAX);
        let each = n.get().map_or(Dim::UNKNOWN, |n| n.min(most).into());
        self.out.set(DType::I64, Dims::from_iter([Dim::at_most(images * classes * each), 3.into()]));
        Ok(())
    }
}

impl NonMaxSuppression<Buf<'_>> {
    fn corners<T: KernelFloat>(&self, of: &[T]) -> Corners<T> {
        let (low, high) = match self.center_point_box {
            true => {
                let half = [of[2], of[3]].map(|side| side * T::of(0.5));
                ([of[0] - half[0], of[1] - half[1]], [of[0] + half[0], of[1] + half[1]])
            }
            false => ([of[0], of[1]], [of[2], of[3]]),
        };
        let sorted = |axis: usize| match high[axis] < low[axis] {
            true => (high[axis], low[axis]),
            false => (low[axis], high[axis]),
        };
        let ((x, far_x), (y, far_y)) = (sorted(0), sorted(1));
        Corners { low: [x, y], high: [far_x, far_y], pixel: T::ZERO }
    }

    /// The number of boxes of an image, and the most rows of the output; 0 without scores, where the other dimensions may be
    /// larger than memory.
    fn sizes(&self) -> (usize, usize) {
        if self.scores.numel() == 0 { (0, 0) } else { (self.scores.dims()[2], self.out.dims()[0]) }
    }
}
impl Kernel for NonMaxSuppression<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let (classes, (n, most_rows)) = (self.scores.dims()[1], self.sizes());
        let most = self.max_output_boxes_per_class as usize;
        with_float!(self.boxes, T => cx.scratch(n + most_rows * 3, |scratch: &mut [i64]| {
            let (boxes, scores) = (self.boxes.slice::<T>()?, self.scores.slice::<T>()?);
            let (score_threshold, threshold) =
                (T::of(self.score_threshold.into()), T::of(self.iou_threshold.into()));
            let (candidates, rows) = scratch.split_at_mut(n);
            let mut found = 0;
            for (group, scores) in scores.chunks_exact(n.max(1)).enumerate() {
                let boxes = &boxes[group / classes * n * 4..][..n * 4];
                let above = gather_if(candidates, n, |i| scores[i] > score_threshold);
                candidates[..above].sort_unstable_by(by_score(|i| scores[i]));
                let corners = |i: usize| self.corners(&boxes[i * 4..][..4]);
                let kept = suppress(&mut candidates[..above], most, corners, |_| threshold);
                for (row, i) in rows[found * 3..].chunks_exact_mut(3).zip(&candidates[..kept]) {
                    row.copy_from_slice(&[(group / classes) as i64, (group % classes) as i64, *i]);
                }
                found += kept;
            }
            self.out.decide::<i64>(&[found, 3])?.copy_from_slice(&rows[..found * 3]);
            Ok(())
        }))
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        let (n, most_rows) = self.sizes();
        (n + most_rows * 3).saturating_mul(size_of::<i64>())
    }
}
autobwd::samples!(
    NonMaxSuppression,
    [
        non_max_suppression(uniform([2, 7, 4]), distinct([2, 3, 7]), 3, 0.3),
        NonMaxSuppression {
            center_point_box: true,
            ..non_max_suppression(uniform([1, 9, 4]), distinct([1, 1, 9]), 9, 0.1)
        },
        NonMaxSuppression {
            score_threshold: 0.25,
            ..non_max_suppression(uniform([1, 6, 4]), uniform([1, 2, 6]), 6, 0.5)
        },
        non_max_suppression(
            given(
                [1, 4, 4],
                [0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 2.0, 1.0, 3.0, 0.0, 0.0, 1.0, 1.0]
            ),
            given([1, 1, 4], [0.5, 0.5, f64::NAN, f64::NEG_INFINITY]),
            4,
            0.5
        ),
        // Near both thresholds.
        NonMaxSuppression {
            center_point_box: true,
            score_threshold: 0.25,
            ..non_max_suppression(
                given([1, 3, 4], [0.0, 0.0, 0.1, 0.1, 0.05, 0.0, 0.1, 0.1, 9.0, 9.0, 1.0, 1.0]),
                given([1, 1, 3], [0.9, 0.8, 0.26]),
                3,
                0.35
            )
        },
        non_max_suppression(uniform([1, 5, 4]), distinct([1, 1, 5]), 0, 0.5),
        non_max_suppression(uniform([1, 0, 4]), uniform([1, 2, 0]), 2, 0.5),
        non_max_suppression(uniform([0, 3, 4]), uniform([0, 2, 3]), 2, 0.5),
        non_max_suppression(uniform([1, 3, 5]), uniform([1, 2, 3]), 2, 0.5)
            .fails("`Boxes`: 4 coordinates are needed"),
        non_max_suppression(uniform([1, 3, 4]), uniform([1, 2, 4]), 2, 0.5)
            .fails("`Scores`: a score of each of the boxes, [1, 3, 4], is needed"),
        non_max_suppression(uniform([1, 3, 4]), uniform([1, 2, 3]), -1, 0.5)
            .fails("attribute `max_output_boxes_per_class`"),
    ]
);

fn non_max_suppression(boxes: Draw, scores: Draw, most: i64, iou_threshold: f32) -> NonMaxSuppression<Draw> {
    NonMaxSuppression {
        boxes,
        scores,
        out: out(),
        max_output_boxes_per_class: most,
        iou_threshold,
        score_threshold: f32::NEG_INFINITY,
        center_point_box: false,
    }
}
