//! Boxes around the cells of feature maps, as parts of images: `prior_box` and `density_prior_box`.

use autobwd::{
    Attrs, Composition, Dims, Error, Expr, Infer, Meta, Result, Var, ZeroGrad, check::*, register_op,
    tensor::Dim,
};

use crate::{
    Math, concat,
    fill::constants,
    math::{DimExpr, positions},
};

/// The attributes of prior boxes.
#[derive(Attrs, Clone, Debug)]
pub struct PriorAttrs {
    /// The variances of each box.
    #[attr(default = [0.1, 0.1, 0.2, 0.2])]
    pub variances: Vec<f32>,
    /// Restricts coordinates to the image.
    #[attr(default = true)]
    pub clip: bool,
    /// Width of a cell in pixels; 0 for either width or height means image size / feature map size for both.
    #[attr(default = 0.0, min = 0.0)]
    pub step_w: f32,
    /// Height of a cell in pixels.
    #[attr(default = 0.0, min = 0.0)]
    pub step_h: f32,
    /// The centre of a cell, in cells.
    #[attr(default = 0.5)]
    pub offset: f32,
}

impl PriorAttrs {
    /// The attributes that are the default.
    pub fn new() -> PriorAttrs {
        PriorAttrs::default()
    }

    fn infer(&self, [input, image]: [&Meta; 2], count: usize) -> Result<Dims> {
        image.same_dtype(input)?;
        let [_, _, height, width] = image.unpack()?;
        image.require(height != 0 && width != 0, || "at least one row and column is needed".into())?;
        infer_boxes(input, &self.variances, count)
    }

    /// Width and height of a cell in pixels, `[2]`.
    fn steps(&self, input: &Expr, image: &Expr) -> Expr {
        if self.step_w == 0.0 || self.step_h == 0.0 {
            return size(image) / size(input);
        }
        constants(input, &[self.step_w.into(), self.step_h.into()])
    }

    /// Centres of cells in pixels, `[height, width, 1, 2]`.
    fn centres(&self, input: &Expr, steps: &Expr) -> Expr {
        (cells(input) + f64::from(self.offset)) * steps
    }

    fn restricted(&self, boxes: Expr) -> Expr {
        if self.clip { boxes.clip(0.0, 1.0) } else { boxes }
    }
}

/// The shape rule: so many boxes for each cell of a feature map.
pub(super) fn infer_boxes(input: &Meta, variances: &[f32], count: usize) -> Result<Dims> {
    input.float()?;
    let [_, _, height, width]: [Dim; 4] = input.unpack()?;
    if variances.len() != 4 {
        return Err(Error::attr("variances", format!("4 numbers are needed, not {variances:?}")));
    }
    Ok(Dims::from_iter([height, width, count.into(), 4.into()]))
}

/// Width and height of images, `[2]`, in their dtype.
fn size(images: &Expr) -> Expr {
    let number = |axis: i32| images.dim(axis).number(images.builder()).cast(images.dtype());
    concat(&[&number(3), &number(2)], 0)
}

/// Column and row of each cell, `[height, width, 1, 2]`.
pub(super) fn cells(input: &Expr) -> Expr {
    let dims = [input.dim(2), input.dim(3), 1.into(), 1.into()];
    let along = |n: &DimExpr, others: &[i32]| {
        positions(input.builder(), n).cast(input.dtype()).unsqueeze(others).expand_to(&dims)
    };
    concat(&[&along(&dims[1], &[0, 2, 3]), &along(&dims[0], &[1, 2, 3])], 3)
}

/// Pairs of numbers, `[n, 2]`.
pub(super) fn pairs(input: &Expr, numbers: &[[f64; 2]]) -> Expr {
    constants(input, &numbers.concat()).reshape(&[numbers.len() as i32, 2])
}

/// The variances, for each of the boxes.
pub(super) fn repeated(variances: &[f32], boxes: &Expr) -> Expr {
    let numbers: Vec<f64> = variances.iter().map(|number| f64::from(*number)).collect();
    constants(boxes, &numbers).expand_to(&crate::all_sizes(boxes))
}

pub(super) fn positive_numbers(name: &str, numbers: &[f32]) -> Result<()> {
    let fits = !numbers.is_empty() && numbers.iter().all(|number| *number > 0.0 && number.is_finite());
    let refuse = || Error::attr(name, format!("at least one positive number is needed, not {numbers:?}"));
    fits.then_some(()).ok_or_else(refuse)
}

/// The prior boxes of SSD (Liu et al. 2016): for each cell, boxes of several sizes and aspect ratios around its centre.
///
/// For each minimal size `s` there are boxes of width `s √r` and height `s / √r`, one for each aspect ratio `r`. Ratio 1 comes
/// first. There is also one of side `√(s · m)` for the maximal size `m`. Coordinates are parts of the image.
#[register_op(grad = ZeroGrad, composed)]
pub struct PriorBox<V = Var> {
    /// Feature maps, `[images, channels, height, width]`.
    #[input(shape_only)]
    pub input: V,
    /// Images, `[images, channels, height, width]`.
    #[input(shape_only)]
    pub image: V,
    /// `[height, width, boxes, 4]`: the smaller coordinates of two opposite corners, and the larger ones.
    #[output]
    pub boxes: V,
    /// The variances of each box, same shape.
    #[output("Variances")]
    pub variances_out: V,
    /// Minimal sizes in pixels.
    #[attr]
    pub min_sizes: Vec<f32>,
    /// Maximal sizes in pixels, each more than its minimal size; or none.
    #[attr(default = [])]
    pub max_sizes: Vec<f32>,
    /// Aspect ratios other than 1; equal ones count once.
    #[attr(default = [])]
    pub aspect_ratios: Vec<f32>,
    /// Also takes the reciprocals of aspect ratios.
    #[attr(default = true)]
    pub flip: bool,
    /// The box of the maximal size comes before the boxes with other aspect ratios than 1.
    #[attr(default = false)]
    pub min_max_aspect_ratios_order: bool,
    /// Positions of the boxes.
    #[attrs]
    pub prior: PriorAttrs,
}
impl<V> PriorBox<V> {
    /// Aspect ratios, 1 and then each other one once.
    fn ratios(&self) -> Vec<f64> {
        let mut all = vec![1.0];
        for ratio in self.aspect_ratios.iter().map(|ratio| f64::from(*ratio)) {
            if all.iter().all(|other: &f64| (ratio - other).abs() >= 1e-6) {
                all.push(ratio);
                all.extend(self.flip.then_some(1.0 / ratio));
            }
        }
        all
    }

    /// Half of width and height of each box of a cell.
    fn halves(&self) -> Vec<[f64; 2]> {
        let mut all = vec![];
        for (i, size) in self.min_sizes.iter().map(|size| f64::from(*size)).enumerate() {
            let of_ratio = |ratio: f64| [size * ratio.sqrt() / 2.0, size / ratio.sqrt() / 2.0];
            let own = all.len();
            all.extend(self.ratios().into_iter().map(of_ratio));
            if let Some(largest) = self.max_sizes.get(i) {
                let at = if self.min_max_aspect_ratios_order { own + 1 } else { all.len() };
                all.insert(at, [(size * f64::from(*largest)).sqrt() / 2.0; 2]);
            }
        }
        all
    }
}
impl Infer for PriorBox<Meta> {
    fn infer(&mut self) -> Result<()> {
        positive_numbers("min_sizes", &self.min_sizes)?;
        if !self.aspect_ratios.is_empty() {
            positive_numbers("aspect_ratios", &self.aspect_ratios)?;
        }
        let pairs = || self.min_sizes.iter().zip(&self.max_sizes);
        let is_larger = self.max_sizes.len() == self.min_sizes.len() && pairs().all(|(min, max)| max > min);
        if !(self.max_sizes.is_empty() || is_larger) {
            let text = format!("a larger number for each of {:?} is needed", self.min_sizes);
            return Err(Error::attr("max_sizes", text));
        }
        let dims = self.prior.infer([&self.input, &self.image], self.halves().len())?;
        self.variances_out.set(self.input.dtype, dims.clone());
        self.boxes.set(self.input.dtype, dims);
        Ok(())
    }
}
impl Composition for PriorBox<Expr> {
    fn compose(&mut self) {
        let (input, half) = (&self.input, pairs(&self.input, &self.halves()));
        let centres = self.prior.centres(input, &self.prior.steps(input, &self.image));
        let boxes = concat(&[&(&centres - &half), &(centres + half)], 3);
        let size = size(&self.image);
        self.boxes = self.prior.restricted(boxes / concat(&[&size, &size], 0));
        self.variances_out = repeated(&self.prior.variances, &self.boxes);
    }
}
autobwd::samples!(
    PriorBox,
    [
        prior_box([1, 1, 3, 4], [1, 1, 9, 14], vec![4.0]),
        PriorBox {
            max_sizes: vec![7.0, 11.0],
            aspect_ratios: vec![2.0, 1.0, 3.0],
            ..prior_box([1, 1, 3, 4], [1, 1, 9, 14], vec![4.0, 6.0])
        },
        PriorBox {
            max_sizes: vec![7.0],
            aspect_ratios: vec![2.0],
            flip: false,
            min_max_aspect_ratios_order: true,
            prior: PriorAttrs::new().clip(false).offset(0.25_f32).step_w(5.0_f32).step_h(7.0_f32),
            ..prior_box([1, 1, 3, 4], [1, 1, 9, 14], vec![4.0])
        },
        PriorBox {
            prior: PriorAttrs::new().variances(vec![0.5, 0.25, 1.0, 2.0]),
            ..prior_box([1, 1, 0, 4], [1, 1, 9, 14], vec![4.0])
        },
        prior_box([1, 2, 3], [1, 1, 9, 14], vec![4.0]).fails("`Input`: 4 dimensions are needed"),
        prior_box([1, 1, 3, 4], [1, 1, 0, 14], vec![4.0])
            .fails("`Image`: at least one row and column is needed"),
        prior_box([1, 1, 3, 4], [1, 1, 9, 14], vec![])
            .fails("attribute `min_sizes`: at least one positive number is needed, not []"),
        PriorBox { aspect_ratios: vec![-1.0], ..prior_box([1, 1, 3, 4], [1, 1, 9, 14], vec![4.0]) }
            .fails("attribute `aspect_ratios`: at least one positive number is needed"),
        PriorBox { max_sizes: vec![3.0], ..prior_box([1, 1, 3, 4], [1, 1, 9, 14], vec![4.0]) }
            .fails("attribute `max_sizes`: a larger number for each of [4.0] is needed"),
        PriorBox {
            prior: PriorAttrs::new().variances(vec![0.5]),
            ..prior_box([1, 1, 3, 4], [1, 1, 9, 14], vec![4.0])
        }
        .fails("attribute `variances`: 4 numbers are needed, not [0.5]"),
    ]
);

fn prior_box<const N: usize>(input: [usize; N], image: [usize; 4], min_sizes: Vec<f32>) -> PriorBox<Draw> {
    PriorBox {
        input: uniform(input),
        image: uniform(image),
        boxes: out(),
        variances_out: out(),
        min_sizes,
        max_sizes: vec![],
        aspect_ratios: vec![],
        flip: true,
        min_max_aspect_ratios_order: false,
        prior: PriorAttrs::new(),
    }
}

/// Dense prior boxes (FaceBoxes, Zhang et al. 2017): for each cell, fixed size `s` and ratio `r`, boxes of width `s √r` and height
/// `s / √r` on a grid of `density` times `density` positions in the cell.
///
/// The distance of the positions is `⌊a / density⌋`, where `a` is the mean of width and height of a cell, rounded down.
/// Coordinates are parts of the image, the smaller ones at least 0, the larger ones at most 1.
#[register_op(grad = ZeroGrad, composed)]
pub struct DensityPriorBox<V = Var> {
    /// Feature maps, `[images, channels, height, width]`.
    #[input(shape_only)]
    pub input: V,
    /// Images, `[images, channels, height, width]`.
    #[input(shape_only)]
    pub image: V,
    /// `[height, width, boxes, 4]`, or `[height * width * boxes, 4]`: the smaller coordinates of two opposite corners, and the
    /// larger ones.
    #[output]
    pub boxes: V,
    /// The variances of each box, same shape.
    #[output("Variances")]
    pub variances_out: V,
    /// Sizes in pixels.
    #[attr(default = [])]
    pub fixed_sizes: Vec<f32>,
    /// Ratios of width and height.
    #[attr(default = [])]
    pub fixed_ratios: Vec<f32>,
    /// The number of rows and columns of boxes in a cell, for each size.
    #[attr(default = [])]
    pub densities: Vec<i32>,
    /// Merges the dimensions of the cells and of their boxes.
    #[attr(default = false)]
    pub flatten_to_2d: bool,
    /// Positions of the boxes.
    #[attrs]
    pub prior: PriorAttrs,
}
impl<V> DensityPriorBox<V> {
    /// Of each box of a cell: its column and row, its density, and half of width and height.
    fn cell(&self) -> Vec<([f64; 2], f64, [f64; 2])> {
        let mut all = vec![];
        for (size, density) in self.fixed_sizes.iter().zip(&self.densities) {
            for ratio in &self.fixed_ratios {
                let (size, root) = (f64::from(*size), f64::from(*ratio).sqrt());
                let places = (0..*density).flat_map(|row| (0..*density).map(move |column| [column, row]));
                all.extend(places.map(|place| {
                    (place.map(f64::from), f64::from(*density), [size * root / 2.0, size / root / 2.0])
                }));
            }
        }
        all
    }
}
impl Infer for DensityPriorBox<Meta> {
    fn infer(&mut self) -> Result<()> {
        positive_numbers("fixed_sizes", &self.fixed_sizes)?;
        positive_numbers("fixed_ratios", &self.fixed_ratios)?;
        let few = self.densities.iter().all(|density| (1..=64).contains(density));
        if self.densities.len() != self.fixed_sizes.len() || !few {
            let text = format!("a number from 1 to 64 for each of {:?} is needed", self.fixed_sizes);
            return Err(Error::attr("densities", text));
        }
        let mut dims = self.prior.infer([&self.input, &self.image], self.cell().len())?;
        if self.flatten_to_2d {
            dims = Dims::from_iter([dims[0] * dims[1] * dims[2], 4.into()]);
        }
        self.variances_out.set(self.input.dtype, dims.clone());
        self.boxes.set(self.input.dtype, dims);
        Ok(())
    }
}
impl Composition for DensityPriorBox<Expr> {
    fn compose(&mut self) {
        let (input, cell) = (&self.input, self.cell());
        let steps = self.prior.steps(input, &self.image);
        let mean = steps.mean_keepdim(&[0]).floor();
        let densities: Vec<f64> = cell.iter().map(|(_, density, _)| *density).collect();
        let distance = (&mean / constants(input, &densities)).floor().unsqueeze(&[1]);
        let places = pairs(input, &cell.iter().map(|(place, ..)| *place).collect::<Vec<_>>());
        let half = pairs(input, &cell.iter().map(|(.., half)| *half).collect::<Vec<_>>());
        let offset = (places + 0.5) * distance - mean * 0.5;
        let centres = self.prior.centres(input, &steps) + offset;
        let size = size(&self.image);
        let low = ((&centres - &half) / &size).clip(0.0, f64::INFINITY);
        let high = ((centres + half) / size).clip(f64::NEG_INFINITY, 1.0);
        let boxes = self.prior.restricted(concat(&[&low, &high], 3));
        let variances = repeated(&self.prior.variances, &boxes);
        [self.boxes, self.variances_out] = [boxes, variances].map(|x| match self.flatten_to_2d {
            true => x.flatten(0, 2),
            false => x,
        });
    }
}
autobwd::samples!(
    DensityPriorBox,
    [
        density_prior_box([1, 1, 3, 4], [1, 1, 9, 14], vec![2]),
        DensityPriorBox {
            fixed_sizes: vec![4.0, 9.0],
            fixed_ratios: vec![1.0, 2.0],
            flatten_to_2d: true,
            ..density_prior_box([1, 1, 3, 4], [1, 1, 9, 14], vec![3, 1])
        },
        DensityPriorBox {
            prior: PriorAttrs::new().clip(false).offset(0.25_f32).step_w(5.0_f32).step_h(8.0_f32),
            ..density_prior_box([1, 1, 3, 4], [1, 1, 9, 14], vec![2])
        },
        DensityPriorBox {
            prior: PriorAttrs::new().variances(vec![0.5, 0.25, 1.0, 2.0]),
            ..density_prior_box([1, 1, 3, 0], [1, 1, 9, 14], vec![2])
        },
        density_prior_box([1, 1, 3, 4], [1, 1, 9, 14], vec![0])
            .fails("attribute `densities`: a number from 1 to 64 for each of [4.0] is needed"),
        density_prior_box([1, 1, 3, 4], [1, 1, 9, 0], vec![2])
            .fails("`Image`: at least one row and column is needed"),
        DensityPriorBox { fixed_ratios: vec![], ..density_prior_box([1, 1, 3, 4], [1, 1, 9, 14], vec![2]) }
            .fails("attribute `fixed_ratios`: at least one positive number is needed, not []"),
        DensityPriorBox { fixed_sizes: vec![0.0], ..density_prior_box([1, 1, 3, 4], [1, 1, 9, 14], vec![2]) }
            .fails("attribute `fixed_sizes`: at least one positive number is needed, not [0.0]"),
    ]
);

fn density_prior_box(input: [usize; 4], image: [usize; 4], densities: Vec<i32>) -> DensityPriorBox<Draw> {
    DensityPriorBox {
        input: uniform(input),
        image: uniform(image),
        boxes: out(),
        variances_out: out(),
        fixed_sizes: vec![4.0],
        fixed_ratios: vec![1.0],
        densities,
        flatten_to_2d: false,
        prior: PriorAttrs::new(),
    }
}
