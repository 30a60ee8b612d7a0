//! Random numbers of more distributions: `bernoulli`, `exponential`, `randint`,
//! `uniform_random_batch_size_like` and `truncated_gaussian_random`.
//!
//! Equal seeds give equal numbers; 0 is a seed like any other. The reference, which has no attribute `seed` in some of
//! these operators, has a global generator.

use std::f64::consts::SQRT_2;

use autobwd::{
    Arg, Composition, DType, Error, Expr, Infer, Meta, New, Result, Var, ZeroGrad,
    check::*,
    emit,
    operators::{given_shape, shape_of_attr},
    register_op,
};

use crate::{
    Math,
    fill::{FillAnyLike, FillConstantBatchSizeLike},
    kernel_helpers::number_dtype,
    math::{filled, in_dtype},
    random::{NoiseDistribution, NoiseLike, noise},
    special::Erfinv,
};

/// Uniform numbers in `[0, 1)`, float64, in the shape of a tensor.
pub(crate) fn unit_like(x: &Expr, seed: i32) -> Expr {
    let shape = FillAnyLike { x: x.into(), out: New, value: 0.0, dtype: Some(DType::F64) };
    let seed = filled(x.builder(), DType::I64, &seed.to_string(), &[1.into()]);
    let distribution = NoiseDistribution::Uniform;
    emit(NoiseLike { x: emit(shape).out.into(), seed: seed.into(), out: New, distribution }).out
}

/// Numbers that are 1 with the given probabilities, else 0.
#[register_op(grad = ZeroGrad, composed)]
pub struct Bernoulli<V = Var> {
    /// Probabilities, any shape.
    #[input]
    pub x: V,
    /// Same shape and dtype as `x`.
    #[output]
    pub out: V,
    /// Seed of the generator; not in the reference.
    #[attr(default = 0)]
    pub seed: i32,
}
impl Infer for Bernoulli<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.out.like(&self.x);
        Ok(())
    }
}
impl Composition for Bernoulli<Expr> {
    fn compose(&mut self) {
        let is_one = unit_like(&self.x, self.seed).less_than(&in_dtype(&self.x, DType::F64));
        self.out = is_one.cast(self.x.dtype());
    }
}
autobwd::samples!(
    Bernoulli,
    [
        Bernoulli { x: between(0.2, 0.8, [4, 5]), out: out(), seed: 0 },
        Bernoulli { x: given([4], [0.0, 1.0, -0.5, 1.5]), out: out(), seed: -7 },
        Bernoulli { x: positive([]), out: out(), seed: 1 },
        Bernoulli { x: positive([0, 2]), out: out(), seed: 1 },
        Bernoulli { x: integers_below(2, [3]), out: out(), seed: 1 }
            .fails("`X`: floating point numbers are needed"),
    ]
);

/// Exponentially distributed numbers with density `lambda * exp(-lambda * out)`.
#[register_op(grad = ZeroGrad, composed)]
pub struct Exponential<V = Var> {
    /// Any shape.
    #[input(shape_only)]
    pub x: V,
    /// Same shape and dtype as `x`.
    #[output]
    pub out: V,
    /// The rate.
    #[attr(default = 1.0, above = 0.0)]
    pub lambda: f32,
    /// Seed of the generator; not in the reference.
    #[attr(default = 0)]
    pub seed: i32,
}
impl Infer for Exponential<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.out.like(&self.x);
        Ok(())
    }
}
impl Composition for Exponential<Expr> {
    fn compose(&mut self) {
        let numbers = exponential(&unit_like(&self.x, self.seed)) / f64::from(self.lambda);
        self.out = in_dtype(&numbers, self.x.dtype());
    }
}
autobwd::samples!(
    Exponential,
    [
        Exponential { x: uniform([4, 5]), out: out(), lambda: 1.0, seed: 0 },
        Exponential { x: uniform([3]), out: out(), lambda: 0.25, seed: -7 },
        Exponential { x: uniform([]), out: out(), lambda: 2.0, seed: 1 },
        Exponential { x: uniform([0, 2]), out: out(), lambda: 1.0, seed: 1 },
        Exponential { x: uniform([3]), out: out(), lambda: 0.0, seed: 1 }.fails("attribute `lambda`"),
        Exponential { x: integers_below(2, [3]), out: out(), lambda: 1.0, seed: 1 }
            .fails("`X`: floating point numbers are needed"),
    ]
);

/// Exponentially distributed numbers with rate 1, from uniform numbers, by inversion.
pub(crate) fn exponential(unit: &Expr) -> Expr {
    -(-unit).log1p()
}

/// Integers that are equally likely: `low <= out < high`.
#[register_op(grad = ZeroGrad, composed)]
pub struct Randint<V = Var> {
    /// The shape, in place of attribute `shape`: int32 or int64, of one dimension.
    #[input(constant)]
    pub shape_tensor: Option<V>,
    /// The dimensions, in place of attribute `shape`: int32 or int64, one element each.
    #[input(constant)]
    pub shape_tensor_list: Vec<V>,
    /// Shape and dtype given by the attributes.
    #[output]
    pub out: V,
    /// Shape of the output.
    #[attr(default = [])]
    pub shape: Vec<i64>,
    /// The smallest integer.
    #[attr]
    pub low: i32,
    /// The bound of the integers, exclusive.
    #[attr]
    pub high: i32,
    /// Seed of the generator.
    #[attr(default = 0)]
    pub seed: i32,
    /// Element type, int64 or int32.
    #[attr(default = DType::I64)]
    pub dtype: DType,
}
impl Infer for Randint<Meta> {
    fn infer(&mut self) -> Result<()> {
        number_dtype(self.dtype)?;
        if self.high <= self.low {
            let text = format!("a number above `low` = {} is needed, not {}", self.low, self.high);
            return Err(Error::attr("high", text));
        }
        let tensor = self.shape_tensor.as_ref().filter(|_| self.shape_tensor_list.is_empty());
        let shape = given_shape(tensor, &self.shape_tensor_list, &self.shape)?;
        self.out.set(self.dtype, shape);
        Ok(())
    }
}
impl Composition for Randint<Expr> {
    fn compose(&mut self) {
        let shape = (self.shape_tensor.as_ref(), &self.shape_tensor_list[..], &self.shape[..]);
        let unit = noise(&self.out, shape, self.seed, NoiseDistribution::Uniform);
        let (low, high) = (f64::from(self.low), f64::from(self.high));
        self.out = ((unit * (high - low)).floor() + low).cast(self.dtype);
    }
}
autobwd::samples!(
    Randint,
    [
        randint(vec![2, 3], [-3, 5]),
        Randint { seed: 7, dtype: DType::I32, ..randint(vec![4], [i32::MIN, i32::MAX]) },
        randint(vec![], [2, 3]),
        randint(vec![0, 2], [0, 9]),
        Randint { shape_tensor: Some(integers(&[2, 3])), ..randint(vec![], [0, 9]) },
        Randint {
            shape_tensor: Some(integers(&[5])),
            shape_tensor_list: vec![integers(&[3]), integers(&[2]).of(DType::I32)],
            ..randint(vec![-1, 2], [0, 9])
        },
        Randint { shape_tensor: Some(integers(&[-2])), ..randint(vec![], [0, 9]) }
            .fails("attribute `shape`: -2 is not a dimension"),
        randint(vec![2], [3, 3]).fails("attribute `high`: a number above `low` = 3 is needed, not 3"),
        Randint { dtype: DType::F32, ..randint(vec![2], [0, 9]) }
            .fails("attribute `dtype`: int64 or int32 is needed"),
    ]
);

fn randint(shape: Vec<i64>, [low, high]: [i32; 2]) -> Randint<Draw> {
    let (seed, dtype) = (0, DType::I64);
    Randint { shape_tensor: None, shape_tensor_list: vec![], out: out(), shape, low, high, seed, dtype }
}

/// Uniformly distributed numbers with one dimension of another tensor: `min ≤ out ≤ max`.
#[register_op(grad = ZeroGrad, composed)]
pub struct UniformRandomBatchSizeLike<V = Var> {
    /// Any shape, any dtype.
    #[input(shape_only)]
    pub input: V,
    /// Shape and dtype of the attributes, with dimension `input_dim_idx` of `input` as dimension `output_dim_idx`.
    #[output]
    pub out: V,
    /// Dimensions.
    #[attr]
    pub shape: Vec<i32>,
    /// The dimension of `input`.
    #[attr(default = 0)]
    pub input_dim_idx: i32,
    /// The dimension of `out`.
    #[attr(default = 0)]
    pub output_dim_idx: i32,
    /// Lower bound.
    #[attr(default = -1.0)]
    pub min: f32,
    /// Upper bound.
    #[attr(default = 1.0)]
    pub max: f32,
    /// Seed of the generator.
    #[attr(default = 0)]
    pub seed: i32,
    /// Floating-point element type.
    #[attr(default = DType::F32)]
    pub dtype: DType,
}
impl<V> UniformRandomBatchSizeLike<V> {
    /// Zeros in the shape of the result.
    fn zeros<W>(&self, input: W, out: W, dtype: DType) -> FillConstantBatchSizeLike<W> {
        FillConstantBatchSizeLike {
            input,
            out,
            shape: self.shape.clone(),
            input_dim_idx: self.input_dim_idx,
            output_dim_idx: self.output_dim_idx,
            dtype,
            value: 0.0,
            str_value: String::new(),
        }
    }
}
impl Infer for UniformRandomBatchSizeLike<Meta> {
    fn infer(&mut self) -> Result<()> {
        check_bounds(self.min, self.max)?;
        let mut zeros = self.zeros(self.input.clone(), self.out.clone(), self.dtype);
        zeros.infer()?;
        self.out = zeros.out;
        self.out.float()
    }
}
impl Composition for UniformRandomBatchSizeLike<Expr> {
    fn compose(&mut self) {
        let zeros = emit(self.zeros(Arg::from(&self.input), New, DType::F64)).out;
        let (min, max) = (f64::from(self.min), f64::from(self.max));
        self.out = in_dtype(&(unit_like(&zeros, self.seed) * (max - min) + min), self.dtype);
    }
}
autobwd::samples!(
    UniformRandomBatchSizeLike,
    [
        uniform_like(uniform([4, 3]), vec![-1, 2], [-1.0, 1.0]),
        UniformRandomBatchSizeLike {
            input_dim_idx: 1,
            output_dim_idx: 1,
            seed: 5,
            dtype: DType::F64,
            ..uniform_like(integers_below(9, [4, 3]), vec![2, -1], [0.0, 5.0])
        },
        uniform_like(uniform([0, 3]), vec![-1, 2], [2.0, 2.0]),
        uniform_like(uniform([4]), vec![-1], [1.0, 0.0])
            .fails("attribute `max`: a number not below `min` = 1 is needed, not 0"),
        uniform_like(uniform([4]), vec![2, -1], [0.0, 1.0]).fails("attribute `shape`: -1 is not a dimension"),
        uniform_like(uniform([]), vec![2], [0.0, 1.0]).fails("attribute `input_dim_idx` = 0"),
        UniformRandomBatchSizeLike { output_dim_idx: 2, ..uniform_like(uniform([4]), vec![2], [0.0, 1.0]) }
            .fails("attribute `output_dim_idx`: a dimension of `shape` is needed"),
        UniformRandomBatchSizeLike { dtype: DType::I64, ..uniform_like(uniform([4]), vec![2], [0.0, 1.0]) }
            .fails("`Out`: floating point numbers are needed"),
    ]
);

fn uniform_like(input: Draw, shape: Vec<i32>, [min, max]: [f32; 2]) -> UniformRandomBatchSizeLike<Draw> {
    UniformRandomBatchSizeLike {
        input,
        out: out(),
        shape,
        input_dim_idx: 0,
        output_dim_idx: 0,
        min,
        max,
        seed: 0,
        dtype: DType::F32,
    }
}

/// Checks that attributes `min` and `max` are bounds of an interval.
pub(crate) fn check_bounds(min: f32, max: f32) -> Result<()> {
    match min.is_finite() && max.is_finite() && min <= max {
        true => Ok(()),
        false => Err(Error::attr("max", format!("a number not below `min` = {min} is needed, not {max}"))),
    }
}

/// `erf(√2)`: the probability of at most two standard deviations.
const WITHIN_TWO: f64 = 0.954_499_736_103_641_6;

/// Normally distributed numbers of at most two standard deviations: `out = mean + std * z`, `|z| <= 2`.
#[register_op(grad = ZeroGrad, composed)]
pub struct TruncatedGaussianRandom<V = Var> {
    /// Shape and dtype given by the attributes.
    #[output]
    pub out: V,
    /// Shape of the output.
    #[attr]
    pub shape: Vec<i32>,
    /// Mean of the distribution.
    #[attr(default = 0.0)]
    pub mean: f32,
    /// Standard deviation, before numbers are left out.
    #[attr(default = 1.0, min = 0.0)]
    pub std: f32,
    /// Seed of the generator.
    #[attr(default = 0)]
    pub seed: i32,
    /// Floating-point element type.
    #[attr(default = DType::F32)]
    pub dtype: DType,
}
impl<V> TruncatedGaussianRandom<V> {
    fn dims(&self) -> Vec<i64> {
        self.shape.iter().map(|n| i64::from(*n)).collect()
    }
}
impl Infer for TruncatedGaussianRandom<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.set(self.dtype, shape_of_attr(&self.dims())?);
        self.out.float()
    }
}
impl Composition for TruncatedGaussianRandom<Expr> {
    fn compose(&mut self) {
        let unit = noise(&self.out, (None, &[], &self.dims()), self.seed, NoiseDistribution::Uniform);
        // By inversion: the distribution function at `z` is `(1 + erf(z / √2)) / 2`.
        let place = (unit * 2.0 - 1.0) * WITHIN_TWO;
        let z = emit(Erfinv { x: place.into(), out: New }).out * SQRT_2;
        self.out = in_dtype(&(z * f64::from(self.std) + f64::from(self.mean)), self.dtype);
    }
}
autobwd::samples!(
    TruncatedGaussianRandom,
    [
        truncated_gaussian(vec![2, 3], [0.0, 1.0], DType::F32),
        TruncatedGaussianRandom { seed: 5, ..truncated_gaussian(vec![7], [2.0, 0.5], DType::F64) },
        truncated_gaussian(vec![], [1.0, 0.0], DType::F64),
        truncated_gaussian(vec![0], [0.0, 1.0], DType::F32),
        truncated_gaussian(vec![-2], [0.0, 1.0], DType::F32)
            .fails("attribute `shape`: -2 is not a dimension"),
        truncated_gaussian(vec![2], [0.0, -1.0], DType::F32).fails("attribute `std`"),
        truncated_gaussian(vec![2], [0.0, 1.0], DType::I64).fails("`Out`: floating point numbers are needed"),
    ]
);

fn truncated_gaussian(shape: Vec<i32>, [mean, std]: [f32; 2], dtype: DType) -> TruncatedGaussianRandom<Draw> {
    TruncatedGaussianRandom { out: out(), shape, mean, std, seed: 0, dtype }
}
