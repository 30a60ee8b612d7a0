//! Random choices: `randperm`, `multinomial`, `sampling_id` and `gumbel_softmax`. Equal seeds give equal results.

use autobwd::{
    Composed, Composition, DType, Dims, Expr, Infer, Meta, Result, Var, ZeroGrad, check::*,
    operators::shape_of_attr, register_op,
};

use crate::{
    Math,
    distributions::{check_bounds, exponential, unit_like},
    kernel_helpers::number_dtype,
    math::{DimExpr, all_sizes, filled, in_dtype, positions},
    random::{NoiseDistribution, noise},
};

/// The numbers `0..n` in random order.
#[register_op(grad = ZeroGrad, composed)]
pub struct Randperm<V = Var> {
    /// `[n]`, of the dtype of the attribute.
    #[output]
    pub out: V,
    /// The number of elements.
    #[attr(min = 1)]
    pub n: i32,
    /// Element type, int64 or int32.
    #[attr(default = DType::I64)]
    pub dtype: DType,
    /// Seed of the generator.
    #[attr(default = 0)]
    pub seed: i32,
}
impl Infer for Randperm<Meta> {
    fn infer(&mut self) -> Result<()> {
        number_dtype(self.dtype)?;
        self.out.set(self.dtype, shape_of_attr(&[self.n.into()])?);
        Ok(())
    }
}
impl Composition for Randperm<Expr> {
    fn compose(&mut self) {
        let shape = (None, &[][..], &[i64::from(self.n)][..]);
        let keys = noise(&self.out, shape, self.seed, NoiseDistribution::Uniform);
        self.out = in_dtype(&keys.sort(0, false).1, self.dtype);
    }
}
autobwd::samples!(
    Randperm,
    [
        Randperm { out: out(), n: 7, dtype: DType::I64, seed: 0 },
        Randperm { out: out(), n: 5, dtype: DType::I32, seed: 3 },
        Randperm { out: out(), n: 1, dtype: DType::I64, seed: 0 },
        Randperm { out: out(), n: 0, dtype: DType::I64, seed: 0 }.fails("attribute `n`"),
        Randperm { out: out(), n: 3, dtype: DType::F32, seed: 0 }
            .fails("attribute `dtype`: int64 or int32 is needed"),
    ]
);

/// Categories that are drawn with probabilities proportional to weights.
///
/// Without replacement, no category is drawn twice, and there must be `num_samples` weights that are not 0.
#[register_op(grad = ZeroGrad, composed)]
pub struct Multinomial<V = Var> {
    /// Weights of `k` categories, not negative: `[k]` or `[m, k]`.
    #[input]
    pub x: V,
    /// Categories, int64, `[num_samples]` or `[m, num_samples]`.
    #[output]
    pub out: V,
    /// The number of categories to draw; at most `k` without replacement.
    #[attr(default = 1, min = 1)]
    pub num_samples: i32,
    /// Whether a category may be drawn again.
    #[attr(default = false)]
    pub replacement: bool,
    /// Seed of the generator; not in the reference.
    #[attr(default = 0)]
    pub seed: i32,
}
impl Infer for Multinomial<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.x.require(matches!(self.x.rank(), 1 | 2), || "one or two dimensions are needed".into())?;
        let (last, count) = (self.x.rank() - 1, self.num_samples as usize);
        let least = if self.replacement { 1 } else { count };
        let categories = self.x.dims[last];
        self.x.require(categories.get().is_none_or(|k| k >= least), || {
            format!("at least {least} categories are needed")
        })?;
        self.out.set(DType::I64, self.x.dims.clone());
        self.out.dims[last] = count.into();
        Ok(())
    }
}
impl Composition for Multinomial<Expr> {
    fn compose(&mut self) {
        let weights = in_dtype(&self.x, DType::F64);
        if !self.replacement {
            // The first arrivals of processes with these rates.
            let arrivals = exponential(&unit_like(&weights, self.seed));
            self.out = (weights / arrivals).top_k(self.num_samples).1;
            return;
        }
        let mut dims: Vec<DimExpr> = all_sizes(&weights);
        dims.pop();
        dims.push(i64::from(self.num_samples).into());
        let zeros = filled(weights.builder(), DType::F64, "0", &dims);
        let places = unit_like(&zeros, self.seed) * weights.sum_keepdim(&[-1]);
        self.out = category_at(&weights, &places);
    }
}
autobwd::samples!(
    Multinomial,
    [
        multinomial(positive([2, 5]), 3, false),
        multinomial(positive([2, 5]), 7, true),
        multinomial(positive([4]), 4, false),
        Multinomial { seed: 5, ..multinomial(given([4], [0.0, 2.0, 1.0, 0.0]), 6, true) },
        multinomial(given([2, 3], [0.0, 2.0, 1.0, 3.0, 0.0, 1.0]), 2, false),
        multinomial(positive([0, 3]), 2, true),
        multinomial(positive([2, 3]), 4, false).fails("`X`: at least 4 categories are needed"),
        multinomial(positive([2, 0]), 4, true).fails("`X`: at least 1 categories are needed"),
        multinomial(positive([2, 3, 4]), 1, true).fails("`X`: one or two dimensions are needed"),
        multinomial(positive([3]), 0, true).fails("attribute `num_samples`"),
        multinomial(integers_below(9, [3]), 1, true).fails("`X`: floating point numbers are needed"),
    ]
);

fn multinomial(x: Draw, num_samples: i32, replacement: bool) -> Multinomial<Draw> {
    Multinomial { x, out: out(), num_samples, replacement, seed: 0 }
}

/// For each place on the line where the weights lie in a row, the weight that covers it: `[.., k]` and `[.., n]` give
/// int64 `[.., n]`. A place after the end is in the last weight.
fn category_at(weights: &Expr, places: &Expr) -> Expr {
    let ends = weights.cumsum(-1).unsqueeze(&[-2]);
    let passed = ends.less_equal(&places.unsqueeze(&[-1])).cast(DType::I64).sum(&[-1]);
    let last = (weights.dim(-1) - 1).number(weights.builder());
    passed.minimum(&last)
}

/// One category for each row, at a uniform place between `min` and `max` on the line of its weights.
#[register_op(grad = ZeroGrad, composed)]
pub struct SamplingId<V = Var> {
    /// Probabilities of at least one category, `[m, k]`.
    #[input]
    pub x: V,
    /// Categories, int64, `[m]`; the last one for places that the probabilities do not cover.
    #[output]
    pub out: V,
    /// The smallest place.
    #[attr(default = 0.0)]
    pub min: f32,
    /// The largest place.
    #[attr(default = 1.0)]
    pub max: f32,
    /// Seed of the generator.
    #[attr(default = 0)]
    pub seed: i32,
}
impl Infer for SamplingId<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        let [rows, categories] = self.x.unpack()?;
        self.x.require(categories != 0, || "at least one category is needed".into())?;
        check_bounds(self.min, self.max)?;
        self.out.set(DType::I64, [rows].into_iter().collect::<Dims>());
        Ok(())
    }
}
impl Composition for SamplingId<Expr> {
    fn compose(&mut self) {
        let weights = in_dtype(&self.x, DType::F64);
        let (min, max) = (f64::from(self.min), f64::from(self.max));
        let zeros = filled(weights.builder(), DType::F64, "0", &[weights.dim(0), 1.into()]);
        let places = unit_like(&zeros, self.seed) * (max - min) + min;
        self.out = category_at(&weights, &places).squeeze(&[-1]);
    }
}
autobwd::samples!(
    SamplingId,
    [
        SamplingId { x: probabilities([5, 3]), out: out(), min: 0.0, max: 1.0, seed: 0 },
        SamplingId { x: probabilities([5, 3]), out: out(), min: 0.5, max: 0.75, seed: 3 },
        SamplingId { x: probabilities([2, 3]), out: out(), min: 2.0, max: 3.0, seed: 0 },
        SamplingId { x: probabilities([0, 3]), out: out(), min: 0.0, max: 1.0, seed: 0 },
        SamplingId { x: probabilities([2, 0]), out: out(), min: 0.0, max: 1.0, seed: 0 }
            .fails("`X`: at least one category is needed"),
        SamplingId { x: probabilities([2, 3]), out: out(), min: 1.0, max: 0.0, seed: 0 }
            .fails("attribute `max`: a number not below `min` = 1 is needed, not 0"),
        SamplingId { x: probabilities([3]), out: out(), min: 0.0, max: 1.0, seed: 0 }
            .fails("`X`: 2 dimensions are needed"),
        SamplingId { x: integers_below(9, [2, 3]), out: out(), min: 0.0, max: 1.0, seed: 0 }
            .fails("`X`: floating point numbers are needed"),
    ]
);

/// Softmax of scores with Gumbel noise (Jang et al., 2017): `out = softmax((x + g) / temperature)`,
/// `g = -ln(-ln(u))` with `u` uniform.
///
/// With `hard`, the largest element becomes 1 and the others 0, and gradients are the gradients of the softmax.
#[register_op(grad = Composed, composed)]
pub struct GumbelSoftmax<V = Var> {
    /// Scores, at least one dimension.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
    /// Smaller numbers make the result more like one category.
    #[attr(default = 1.0, above = 0.0)]
    pub temperature: f32,
    /// Whether the result is one category.
    #[attr(default = false)]
    pub hard: bool,
    /// The axis of the softmax; negative counts from the end.
    #[attr(default = -1)]
    pub axis: i32,
    /// Seed of the generator; not in the reference.
    #[attr(default = 0)]
    pub seed: i32,
}
impl Infer for GumbelSoftmax<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        let axis = self.x.axis("axis", self.axis.into())?;
        let is_choice = !self.hard || self.x.dims[axis] != 0;
        self.x.require(is_choice, || "at least one element to choose from is needed".into())?;
        self.out.like(&self.x);
        Ok(())
    }
}
impl Composition for GumbelSoftmax<Expr> {
    fn compose(&mut self) {
        let (x, rank) = (&self.x, self.x.dims().len() as i32);
        // The smallest term keeps the logarithm finite.
        let gumbel = -(exponential(&unit_like(x, self.seed)) + f64::MIN_POSITIVE).log();
        let scores = (x + in_dtype(&gumbel, x.dtype())) / f64::from(self.temperature);
        let soft = scores.softmax(self.axis);
        if !self.hard {
            self.out = soft;
            return;
        }
        let axis = if self.axis < 0 { self.axis + rank } else { self.axis };
        let chosen = soft.argmax(axis.into()).unsqueeze(&[axis]);
        let after: Vec<i32> = (1..rank - axis).collect();
        let places = positions(x.builder(), &x.dim(axis));
        let places = if after.is_empty() { places } else { places.unsqueeze(&after) };
        let one_hot = chosen.equal(&places).cast(x.dtype());
        self.out = one_hot.detach() + (&soft - soft.detach());
    }
}
autobwd::samples!(
    GumbelSoftmax,
    [
        gumbel_softmax(uniform([2, 3]), 1.0, false, -1),
        gumbel_softmax(uniform([2, 3, 4]), 0.5, false, 1),
        GumbelSoftmax { seed: 3, ..gumbel_softmax(uniform([4, 3]), 1.0, true, -1) }.discontinuous(CHOICE),
        gumbel_softmax(uniform([3, 2, 4]), 2.0, true, 0).discontinuous(CHOICE),
        gumbel_softmax(uniform([0, 3]), 1.0, true, -1).discontinuous(CHOICE),
        gumbel_softmax(uniform([3, 0]), 1.0, true, -1)
            .fails("`X`: at least one element to choose from is needed"),
        gumbel_softmax(uniform([2, 3]), 0.0, false, -1).fails("attribute `temperature`"),
        gumbel_softmax(uniform([2, 3]), 1.0, false, 2).fails("attribute `axis` = 2"),
        gumbel_softmax(integers_below(9, [3]), 1.0, false, 0).fails("`X`: floating point numbers are needed"),
    ]
);

const CHOICE: &str = "it chooses the largest element";

fn gumbel_softmax(x: Draw, temperature: f32, hard: bool, axis: i32) -> GumbelSoftmax<Draw> {
    GumbelSoftmax { x, out: out(), temperature, hard, axis, seed: 0 }
}
