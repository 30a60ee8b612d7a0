//! Detections equal the results of PaddlePaddle 3.3.1 (`multiclass_nms3`, `matrix_nms`) and ONNX Runtime 1.32
//! (`NonMaxSuppression`) on the same boxes.

use autobwd::{Expr, New, Result, Tensor, emit};
use autobwd_ops::{
    Math,
    detection::{DetectionAttrs, MatrixNms, MulticlassNms3, NonMaxSuppression, PsroiPool, RoiAlign, RoiPool},
};

/// Two images with six boxes each.
const BOXES: [[f32; 4]; 12] = [
    [5.0, 0.0, 9.0, 6.0],
    [3.0, 3.0, 4.0, 6.0],
    [7.0, 3.0, 11.0, 4.0],
    [5.0, 2.0, 7.0, 6.0],
    [4.0, 7.0, 10.0, 11.0],
    [6.0, 8.0, 10.0, 9.0],
    [8.0, 1.0, 10.0, 3.0],
    [6.0, 7.0, 8.0, 8.0],
    [7.0, 8.0, 10.0, 13.0],
    [1.0, 5.0, 5.0, 9.0],
    [8.0, 4.0, 11.0, 9.0],
    [3.0, 0.0, 6.0, 1.0],
];

/// Scores of three classes for each image, times 40.
const SCORES: [u8; 36] = [
    25, 2, 16, 33, 8, 32, 27, 13, 21, 20, 31, 29, 23, 12, 34, 22, 19, 35, 18, 14, 11, 6, 3, 30, 7, 28, 1, 24,
    26, 10, 9, 4, 15, 17, 5, 0,
];

fn inputs() -> Result<[Expr; 2]> {
    let tape = autobwd::eager();
    let boxes = Tensor::from_vec([2, 6, 4], BOXES.concat())?;
    let scores = Tensor::from_vec([2, 3, 6], SCORES.map(|score| f32::from(score) / 40.0).to_vec())?;
    Ok([boxes, scores].map(|tensor| tape.constant(tensor)))
}

/// Detections: class, score and box of each, the numbers of the boxes, and how many an image has.
struct Expected<'a> {
    scores: &'a [f32],
    classes: &'a [usize],
    index: &'a [i32],
    counts: [i32; 2],
}

impl Expected<'_> {
    fn check(&self, out: &Expr, index: &Expr, counts: &Expr) -> Result<()> {
        let out = out.tensor()?;
        assert_eq!(out.dims(), [self.scores.len(), 6]);
        for ((row, score), (class, i)) in
            out.slice::<f32>()?.chunks(6).zip(self.scores).zip(self.classes.iter().zip(self.index))
        {
            assert!((row[1] - score).abs() < 1e-6, "{row:?}, not {score}");
            assert_eq!((row[0], &row[2..]), (*class as f32, &BOXES[*i as usize][..]));
        }
        assert_eq!(index.tensor()?, Tensor::from_vec([self.index.len(), 1], self.index.to_vec())?);
        assert_eq!(counts.tensor()?, Tensor::from_vec([2], self.counts.to_vec())?);
        Ok(())
    }
}

fn multiclass_nms3(
    set: impl FnOnce(&mut MulticlassNms3<autobwd::Arg>),
    expected: &Expected<'_>,
) -> Result<()> {
    let [boxes, scores] = inputs()?;
    let mut op = MulticlassNms3 {
        bboxes: (&boxes).into(),
        scores: (&scores).into(),
        out: New,
        index: New,
        nms_rois_num: Some(New),
        detection: DetectionAttrs::above(0.1),
        nms_threshold: 0.3,
        nms_eta: 1.0,
    };
    set(&mut op);
    let op = emit(op);
    expected.check(&op.out, &op.index, &op.nms_rois_num.expect("it is asked for"))
}

#[test]
fn multiclass_nms_keeps_the_boxes_of_paddlepaddle() -> Result<()> {
    multiclass_nms3(
        |_| {},
        &Expected {
            scores: &[
                0.775, 0.725, 0.675, 0.525, 0.325, 0.875, 0.85, 0.575, 0.475, 0.3, 0.7, 0.65, 0.6, 0.25,
                0.175, 0.425, 0.375, 0.225, 0.125,
            ],
            classes: &[1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 2, 2, 2, 2],
            index: &[4, 5, 0, 2, 1, 5, 2, 0, 4, 1, 7, 10, 9, 11, 6, 9, 8, 6, 10],
            counts: [10, 9],
        },
    )?;
    multiclass_nms3(
        |op| (op.detection.background_label, op.detection.keep_top_k, op.nms_threshold) = (-1, 3, 0.05),
        &Expected {
            scores: &[0.825, 0.875, 0.85, 0.75, 0.7, 0.65],
            classes: &[0, 2, 2, 0, 1, 1],
            index: &[3, 5, 2, 11, 7, 10],
            counts: [3, 3],
        },
    )?;
    multiclass_nms3(
        |op| {
            (op.detection.normalized, op.nms_threshold, op.nms_eta) = (false, 0.7, 0.6);
            (op.detection.nms_top_k, op.detection.background_label) = (4, -1);
        },
        &Expected {
            scores: &[
                0.825, 0.8, 0.4, 0.775, 0.725, 0.675, 0.525, 0.875, 0.85, 0.575, 0.75, 0.45, 0.35, 0.275,
                0.7, 0.65, 0.6, 0.25, 0.425, 0.375, 0.225, 0.125,
            ],
            classes: &[0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2],
            index: &[3, 5, 2, 4, 5, 0, 2, 5, 2, 0, 11, 6, 7, 8, 7, 10, 9, 11, 9, 8, 6, 10],
            counts: [10, 12],
        },
    )
}

fn matrix_nms(set: impl FnOnce(&mut MatrixNms<autobwd::Arg>), expected: &Expected<'_>) -> Result<()> {
    let [boxes, scores] = inputs()?;
    let mut op = MatrixNms {
        bboxes: (&boxes).into(),
        scores: (&scores).into(),
        out: New,
        index: New,
        rois_num: Some(New),
        detection: DetectionAttrs::above(0.1),
        post_threshold: 0.05,
        use_gaussian: false,
        gaussian_sigma: 2.0,
    };
    set(&mut op);
    let op = emit(op);
    expected.check(&op.out, &op.index, &op.rois_num.expect("it is asked for"))
}

#[test]
fn matrix_nms_decays_scores_as_paddlepaddle() -> Result<()> {
    matrix_nms(
        |_| {},
        &Expected {
            scores: &[
                0.875, 0.85, 0.775, 0.675, 0.604167, 0.530769, 0.484615, 0.397222, 0.395833, 0.333333, 0.325,
                0.3, 0.7, 0.65, 0.6, 0.425, 0.375, 0.25, 0.225, 0.175, 0.116071,
            ],
            classes: &[2, 2, 1, 1, 1, 2, 1, 2, 2, 1, 1, 2, 1, 1, 1, 2, 2, 1, 2, 1, 2],
            index: &[5, 2, 4, 0, 5, 0, 2, 3, 4, 3, 1, 1, 7, 10, 9, 9, 8, 11, 6, 6, 10],
            counts: [12, 9],
        },
    )?;
    matrix_nms(
        |op| {
            (op.use_gaussian, op.detection.normalized) = (true, false);
            (op.detection.keep_top_k, op.detection.background_label) = (4, -1);
        },
        &Expected {
            scores: &[0.875, 0.85, 0.825, 0.8, 0.75, 0.7, 0.643401, 0.6],
            classes: &[2, 2, 0, 0, 0, 1, 1, 1],
            index: &[5, 2, 3, 5, 11, 7, 10, 9],
            counts: [4, 4],
        },
    )?;
    matrix_nms(
        |op| (op.detection.nms_top_k, op.post_threshold, op.detection.background_label) = (3, 0.3, 1),
        &Expected {
            scores: &[0.875, 0.85, 0.825, 0.8, 0.530769, 0.416667, 0.75, 0.45, 0.425, 0.375, 0.35],
            classes: &[2, 2, 0, 0, 2, 0, 0, 0, 2, 2, 0],
            index: &[5, 2, 3, 5, 0, 0, 11, 6, 9, 8, 7],
            counts: [6, 5],
        },
    )
}

#[test]
fn non_max_suppression_selects_as_onnx_runtime() -> Result<()> {
    let [boxes, scores] = inputs()?;
    let select = |most, iou_threshold, score_threshold, center_point_box| {
        let (boxes, scores) = ((&boxes).into(), (&scores).into());
        let max_output_boxes_per_class = most;
        let op = NonMaxSuppression {
            boxes,
            scores,
            out: New,
            max_output_boxes_per_class,
            iou_threshold,
            score_threshold,
            center_point_box,
        };
        emit(op).out.tensor()?.into_vec::<i64>()
    };
    let expected = [
        [0, 0, 3],
        [0, 0, 5],
        [0, 1, 4],
        [0, 1, 0],
        [0, 2, 5],
        [0, 2, 2],
        [1, 0, 5],
        [1, 0, 0],
        [1, 1, 1],
        [1, 1, 4],
        [1, 2, 3],
        [1, 2, 2],
    ];
    assert_eq!(select(2, 0.1, 0.3, false)?, expected.concat());
    let expected = [
        [0, 0, 3],
        [0, 0, 5],
        [0, 0, 1],
        [0, 1, 4],
        [0, 1, 0],
        [0, 1, 2],
        [0, 1, 1],
        [0, 2, 5],
        [0, 2, 2],
        [0, 2, 0],
        [0, 2, 1],
        [1, 0, 5],
        [1, 0, 0],
        [1, 0, 1],
        [1, 0, 3],
        [1, 0, 4],
        [1, 1, 1],
        [1, 1, 4],
        [1, 1, 3],
        [1, 1, 5],
        [1, 1, 0],
        [1, 2, 3],
        [1, 2, 2],
        [1, 2, 0],
    ];
    assert_eq!(select(6, 0.4, 0.0, true)?, expected.concat());
    Ok(())
}

/// Features of boxes are linear functions of the image; of maxima, as long as these stay where they are.
#[test]
fn gradient_of_features_of_boxes_is_the_adjoint() -> Result<()> {
    let boxes = [0.7, 1.2, 4.3, 3.9, -2.6, 0.4, 9.1, 7.7, 2.2, 2.1, 2.6, 2.8];
    for (number, aligned) in [0, 1, 2].into_iter().flat_map(|number| [(number, false), (number, true)]) {
        let tape = autobwd::eager();
        let image: Vec<f64> = (0..720).map(|i| f64::from(i * 37 % 101) / 101.0 - 0.5).collect();
        let x = tape.leaf("x", Tensor::from_vec([2, 12, 5, 6], image)?);
        let boxes = tape.constant(Tensor::from_vec([3, 4], boxes.to_vec())?);
        let counts = tape.constant(Tensor::from_vec([2], vec![2_i32, 1])?);
        let (pooled_height, pooled_width) = (2, 3);
        let spatial_scale = if aligned { 0.5 } else { 1.0 };
        let (image, rois, rois_num) = ((&x).into(), (&boxes).into(), Some((&counts).into()));
        let out = match number {
            0 => {
                let (x, out, sampling_ratio) = (image, New, if aligned { 2 } else { -1 });
                emit(RoiAlign {
                    x,
                    rois,
                    rois_num,
                    out,
                    pooled_height,
                    pooled_width,
                    spatial_scale,
                    sampling_ratio,
                    aligned,
                })
                .out
            }
            1 => {
                let (x, out, output_channels) = (image, New, 2);
                emit(PsroiPool {
                    x,
                    rois,
                    rois_num,
                    out,
                    output_channels,
                    pooled_height,
                    pooled_width,
                    spatial_scale,
                })
                .out
            }
            _ => {
                let (x, out, argmax) = (image, New, New);
                emit(RoiPool { x, rois, rois_num, out, argmax, pooled_height, pooled_width, spatial_scale })
                    .out
            }
        };
        let elements = out.tensor()?;
        let weights = (0..elements.numel()).map(|i| (i * 29 % 53) as f64 / 53.0).collect();
        let weighted = (&out * tape.constant(Tensor::from_vec(elements.dims(), weights)?)).sum(&[]);
        weighted.backward()?;
        let (gradient, image) = (x.gradient()?.tensor()?.to_f64s(), x.tensor()?.to_f64s());
        let product: f64 = gradient.iter().zip(&image).map(|(dx, x)| dx * x).sum();
        assert!((product - weighted.item()?).abs() < 1e-9, "operator {number}: {product}");
        assert!(gradient.iter().any(|dx| *dx != 0.0));
    }
    Ok(())
}
