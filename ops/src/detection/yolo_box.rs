//! `yolo_box`: boxes of YOLO v3.

use autobwd::{
    Composed, Composition, DType, Dims, Error, Expr, Infer, Meta, Result, Var, check::*, register_op,
    tensor::Dim,
};

use crate::{
    Math,
    fill::constants,
    math::{like, positions},
    stack,
};

/// Boxes and scores from the output of YOLO v3 (Redmon and Farhadi 2018).
///
/// Each cell of a feature map has a box for each anchor. With `σ` the logistic function and `s = scale_x_y`, its centre is at
/// `(column + s σ(x₀) - (s - 1) / 2) / width`, and its width is `exp(x₂) * anchor / (downsample_ratio * width)`, both in widths
/// of the image; the same holds for `x₁`, `x₃` and heights. The score of a class is `σ(x₄) σ(x₅₊ᵢ)`. Boxes whose confidence
/// `σ(x₄)` is below the threshold are 0, with scores of 0.
#[register_op(grad = Composed, composed)]
pub struct YoloBox<V = Var> {
    /// `[images, anchors * (5 + class_num), height, width]`; with `iou_aware`, one channel for each anchor comes before them.
    #[input]
    pub x: V,
    /// Height and width of each image, int32, `[images, 2]`.
    #[input]
    pub img_size: V,
    /// `[images, anchors * height * width, 4]`: the smaller coordinates of two opposite corners, and the larger ones, in pixels.
    #[output]
    pub boxes: V,
    /// `[images, anchors * height * width, class_num]`.
    #[output]
    pub scores: V,
    /// Width and height of each anchor in pixels.
    #[attr]
    pub anchors: Vec<i32>,
    /// The number of classes.
    #[attr(min = 1)]
    pub class_num: i32,
    /// The least confidence of a box.
    #[attr(default = 0.01)]
    pub conf_thresh: f32,
    /// Size of the input of the network / size of the feature map.
    #[attr(default = 32, min = 1)]
    pub downsample_ratio: i32,
    /// Restricts coordinates to the image.
    #[attr(default = true)]
    pub clip_bbox: bool,
    /// The factor `s` of positions.
    #[attr(default = 1.0)]
    pub scale_x_y: f32,
    /// The confidence is `σ(x₄)¹⁻ᶠ σ(x)ᶠ`, where `x` is the channel of the anchor before the others.
    #[attr(default = false)]
    pub iou_aware: bool,
    /// The exponent `f`.
    #[attr(default = 0.5)]
    pub iou_aware_factor: f32,
}
impl Infer for YoloBox<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        let [images, channels, height, width] = self.x.unpack()?;
        let count = self.anchors.len() / 2;
        if count == 0 || !self.anchors.len().is_multiple_of(2) || self.anchors.iter().any(|side| *side < 1) {
            let text = format!("pairs of numbers of at least 1 are needed, not {:?}", self.anchors);
            return Err(Error::attr("anchors", text));
        }
        let each = 5 + self.class_num as usize + usize::from(self.iou_aware);
        self.x.require(channels.agrees((count * each).into()), || {
            format!("{} channels are needed, {each} for each of {count} anchors", count * each)
        })?;
        self.img_size.require(self.img_size.dtype == DType::I32, || "int32 is needed".into())?;
        let fits = self.img_size.dims.agrees(&[images, 2.into()]);
        self.img_size.require(fits, || format!("[{images}, 2] is needed, height and width of each image"))?;
        let images = images.or(self.img_size.dims[0]);
        let boxes = Dim::from(count) * height * width;
        self.boxes.set(self.x.dtype, Dims::from_iter([images, boxes, 4.into()]));
        self.scores.set(self.x.dtype, Dims::from_iter([images, boxes, (self.class_num as usize).into()]));
        Ok(())
    }
}
impl Composition for YoloBox<Expr> {
    fn compose(&mut self) {
        let (x, builder, float) = (&self.x, self.x.builder(), self.x.dtype());
        let (count, classes) = ((self.anchors.len() / 2) as i32, self.class_num);
        let [images, height, width] = [0, 2, 3].map(|axis| x.dim(axis));
        let first = if self.iou_aware { count } else { 0 };
        let rest = x.slice(1, first, first + count * (5 + classes));
        let each = i64::from(5 + classes).into();
        let of_anchors =
            rest.reshape_to(&[images, i64::from(count).into(), each, height.clone(), width.clone()]);
        // [images, anchors, height, width]
        let channel = |i: i32| of_anchors.slice(2, i, i + 1).squeeze(&[2]);
        let mut confidence = channel(4).sigmoid();
        if self.iou_aware {
            let power = |x: &Expr, exponent: f64| x.pow(&constants(x, &[exponent]));
            let factor = f64::from(self.iou_aware_factor);
            let iou = x.slice(1, 0, count).sigmoid();
            confidence = power(&confidence, 1.0 - factor) * power(&iou, factor);
        }
        let is_box = confidence.greater_equal(&constants(x, &[self.conf_thresh.into()]));
        let confidence = is_box.where_cond(&confidence, &like(&confidence, 0.0));
        let class_scores = of_anchors.slice(2, 5, 5 + classes).sigmoid() * confidence.unsqueeze(&[2]);
        self.scores = class_scores.transpose(&[0, 1, 3, 4, 2]).flatten(1, 3);

        let scale = f64::from(self.scale_x_y);
        // The smaller and the larger coordinate along an axis of images: 0 is horizontal.
        let bounds = |i: i32| {
            let cells = if i == 0 { &width } else { &height };
            let places = positions(builder, cells).cast(float);
            let places = if i == 0 { places } else { places.unsqueeze(&[1]) };
            let cells = cells.number(builder).cast(float);
            let size = self.img_size.slice(1, 1 - i, 2 - i).cast(float).unsqueeze(&[2, 3]);
            let centre = (channel(i).sigmoid() * scale + places - (scale - 1.0) * 0.5) * &size / &cells;
            let sides: Vec<f64> =
                self.anchors.iter().skip(i as usize).step_by(2).map(|side| f64::from(*side)).collect();
            let sides = constants(x, &sides).unsqueeze(&[1, 2]);
            let side = channel(2 + i).exp() * sides * &size / (cells * f64::from(self.downsample_ratio));
            let [low, high] = [&centre - &side * 0.5, centre + side * 0.5];
            if self.clip_bbox { [low.relu(), high.minimum(&(size - 1.0))] } else { [low, high] }
        };
        let ([left, right], [top, bottom]) = (bounds(0), bounds(1));
        let of_box = |x: &Expr| is_box.where_cond(x, &like(x, 0.0));
        let corners = [left, top, right, bottom].map(|x| of_box(&x));
        self.boxes = stack(&corners.each_ref(), 4).flatten(1, 3);
    }
}
autobwd::samples!(
    YoloBox,
    [
        yolo_box(uniform([2, 14, 3, 5]), sizes(2), [10, 13, 16, 30]),
        YoloBox {
            clip_bbox: false,
            downsample_ratio: 16,
            scale_x_y: 1.2,
            ..yolo_box(uniform([2, 14, 3, 5]), sizes(2), [10, 13, 16, 30])
        },
        YoloBox {
            iou_aware: true,
            iou_aware_factor: 0.4,
            ..yolo_box(uniform([1, 16, 3, 5]), sizes(1), [10, 13, 16, 30])
        },
        YoloBox { conf_thresh: 0.5, ..yolo_box(uniform([2, 14, 3, 5]), sizes(2), [10, 13, 16, 30]) }
            .discontinuous("boxes become 0 at the threshold"),
        yolo_box(uniform([0, 14, 3, 5]), given([0, 2], []).of(DType::I32), [10, 13, 16, 30]),
        yolo_box(uniform([2, 13, 3, 5]), sizes(2), [10, 13, 16, 30])
            .fails("`X`: 14 channels are needed, 7 for each of 2 anchors"),
        yolo_box(uniform([2, 14, 3, 5]), sizes(1), [10, 13, 16, 30])
            .fails("`ImgSize`: [2, 2] is needed, height and width of each image"),
        yolo_box(uniform([1, 14, 3, 5]), integers_below(9, [1, 2]), [10, 13, 16, 30])
            .fails("`ImgSize`: int32 is needed"),
        yolo_box(uniform([2, 14, 3, 5]), sizes(2), [10, 0, 16, 30])
            .fails("attribute `anchors`: pairs of numbers of at least 1 are needed"),
        YoloBox { class_num: 0, ..yolo_box(uniform([2, 14, 3, 5]), sizes(2), [10, 13, 16, 30]) }
            .fails("attribute `class_num`: must be at least 1"),
        yolo_box(integers_below(9, [2, 14, 3, 5]), sizes(2), [10, 13, 16, 30])
            .fails("`X`: floating point numbers are needed"),
    ]
);

fn yolo_box(x: Draw, img_size: Draw, anchors: [i32; 4]) -> YoloBox<Draw> {
    YoloBox {
        x,
        img_size,
        boxes: out(),
        scores: out(),
        anchors: anchors.to_vec(),
        class_num: 2,
        conf_thresh: 0.01,
        downsample_ratio: 32,
        clip_bbox: true,
        scale_x_y: 1.0,
        iou_aware: false,
        iou_aware_factor: 0.5,
    }
}

/// Heights and widths of images.
fn sizes(images: usize) -> Draw {
    match images {
        1 => given([1, 2], [90.0, 140.0]),
        _ => given([2, 2], [90.0, 140.0, 64.0, 111.0]),
    }
    .of(DType::I32)
}
