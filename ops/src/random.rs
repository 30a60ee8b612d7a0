//! Random numbers that depend on the seed only: the same in each run and on every machine.

use std::iter;

pub use autobwd::operators::Seed;
use autobwd::{
    Arg, Buf, Composition, Cx, DType, Dims, Error, Expr, Infer, Kernel, Meta, New, Result, Var, ZeroGrad,
    check::*, emit, op::with_float, operators::given_shape, register_op,
};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::{
    fill::FillConstant,
    kernel_helpers::KernelFloat,
    math::{filled, in_dtype},
};

/// Uniformly distributed numbers: `min ≤ out ≤ max`.
///
/// Equal seeds give equal numbers; 0 is a seed like any other.
#[register_op(grad = ZeroGrad, infallible)]
pub struct UniformRandom<V = Var> {
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
    /// Floating-point element type.
    #[attr(default = DType::F32)]
    pub dtype: DType,
    /// Lower bound.
    #[attr(default = -1.0)]
    pub min: f64,
    /// Upper bound.
    #[attr(default = 1.0)]
    pub max: f64,
    /// Seed of the generator.
    #[attr(default = 0)]
    pub seed: i32,
}
impl<V> UniformRandom<V> {
    /// The default distribution over a scalar, for a struct with some fields given:
    /// `UniformRandom { shape, ..UniformRandom::of(New) }`.
    pub fn of(out: V) -> UniformRandom<V> {
        UniformRandom {
            shape_tensor: None,
            shape_tensor_list: vec![],
            out,
            shape: vec![],
            dtype: DType::F32,
            min: -1.0,
            max: 1.0,
            seed: 0,
        }
    }
}
impl Infer for UniformRandom<Meta> {
    fn infer(&mut self) -> Result<()> {
        let (min, max) = (self.min, self.max);
        if !(min.is_finite() && max.is_finite() && min <= max) {
            return Err(Error::attr("max", format!("a number not below `min` = {min} is needed, not {max}")));
        }
        let shape = shape_of(self.shape_tensor.as_ref(), &self.shape_tensor_list, &self.shape)?;
        self.out.set(self.dtype, shape);
        self.out.float()
    }
}
impl Kernel for UniformRandom<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let (min, max) = (self.min, self.max);
        let mut rng = rng(self.seed);
        fill(&mut self.out, iter::repeat_with(|| min + (max - min) * unit(&mut rng)))
    }
}
impl Composition for UniformRandom<Expr> {
    fn compose(&mut self) {
        let shape = (self.shape_tensor.as_ref(), &self.shape_tensor_list[..], &self.shape[..]);
        let numbers = noise(&self.out, shape, self.seed, NoiseDistribution::Uniform);
        self.out = in_dtype(&(numbers * (self.max - self.min) + self.min), self.dtype);
    }
}
autobwd::samples!(
    UniformRandom,
    [
        UniformRandom {
            shape: vec![2, 3],
            dtype: DType::F32,
            min: -1.0,
            max: 1.0,
            seed: 0,
            ..UniformRandom::of(out())
        },
        UniformRandom {
            shape: vec![],
            dtype: DType::F64,
            min: 0.0,
            max: 5.0,
            seed: -7,
            ..UniformRandom::of(out())
        },
        UniformRandom {
            shape: vec![0],
            dtype: DType::F32,
            min: 2.0,
            max: 2.0,
            seed: 1,
            ..UniformRandom::of(out())
        },
        UniformRandom { shape_tensor: Some(integers(&[2, 3])), ..UniformRandom::of(out()) },
        UniformRandom {
            shape_tensor: Some(integers(&[5])),
            shape_tensor_list: vec![integers(&[3]), integers(&[2]).of(DType::I32)],
            shape: vec![-1, 2],
            ..UniformRandom::of(out())
        },
        UniformRandom { shape_tensor: Some(integers(&[-2])), ..UniformRandom::of(out()) }
            .fails("attribute `shape`: -2 is not a dimension"),
        UniformRandom {
            shape: vec![2],
            dtype: DType::I64,
            min: 0.0,
            max: 1.0,
            seed: 0,
            ..UniformRandom::of(out())
        }
        .fails("`Out`: floating point numbers are needed"),
        UniformRandom {
            shape: vec![2],
            dtype: DType::F32,
            min: 1.0,
            max: 0.0,
            seed: 0,
            ..UniformRandom::of(out())
        }
        .fails("attribute `max`: a number not below `min` = 1"),
    ]
);

/// Normally distributed numbers: `out = mean + std · z`.
///
/// Equal seeds give equal numbers; 0 is a seed like any other.
#[register_op(grad = ZeroGrad, infallible)]
pub struct GaussianRandom<V = Var> {
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
    /// Floating-point element type.
    #[attr(default = DType::F32)]
    pub dtype: DType,
    /// Mean of the distribution.
    #[attr(default = 0.0)]
    pub mean: f64,
    /// Standard deviation.
    #[attr(default = 1.0, min = 0.0)]
    pub std: f64,
    /// Seed of the generator.
    #[attr(default = 0)]
    pub seed: i32,
}
impl<V> GaussianRandom<V> {
    /// The default distribution over a scalar, for a struct with some fields given:
    /// `GaussianRandom { shape, ..GaussianRandom::of(New) }`.
    pub fn of(out: V) -> GaussianRandom<V> {
        GaussianRandom {
            shape_tensor: None,
            shape_tensor_list: vec![],
            out,
            shape: vec![],
            dtype: DType::F32,
            mean: 0.0,
            std: 1.0,
            seed: 0,
        }
    }
}
impl Infer for GaussianRandom<Meta> {
    fn infer(&mut self) -> Result<()> {
        let shape = shape_of(self.shape_tensor.as_ref(), &self.shape_tensor_list, &self.shape)?;
        self.out.set(self.dtype, shape);
        self.out.float()
    }
}
impl Kernel for GaussianRandom<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let (mean, std) = (self.mean, self.std);
        let mut rng = rng(self.seed);
        fill(&mut self.out, iter::repeat_with(|| mean + std * normal(&mut rng)))
    }
}
impl Composition for GaussianRandom<Expr> {
    fn compose(&mut self) {
        let shape = (self.shape_tensor.as_ref(), &self.shape_tensor_list[..], &self.shape[..]);
        let numbers = noise(&self.out, shape, self.seed, NoiseDistribution::Normal);
        self.out = in_dtype(&(numbers * self.std + self.mean), self.dtype);
    }
}
autobwd::samples!(
    GaussianRandom,
    [
        GaussianRandom {
            shape: vec![2, 3],
            dtype: DType::F32,
            mean: 0.0,
            std: 1.0,
            seed: 0,
            ..GaussianRandom::of(out())
        },
        GaussianRandom {
            shape: vec![],
            dtype: DType::F64,
            mean: 3.0,
            std: 0.5,
            seed: -7,
            ..GaussianRandom::of(out())
        },
        GaussianRandom {
            shape: vec![0],
            dtype: DType::F32,
            mean: 0.0,
            std: 0.0,
            seed: 1,
            ..GaussianRandom::of(out())
        },
        GaussianRandom { shape_tensor: Some(integers(&[2, 3])), ..GaussianRandom::of(out()) },
        GaussianRandom {
            shape_tensor: Some(integers(&[5])),
            shape_tensor_list: vec![integers(&[3]), integers(&[2]).of(DType::I32)],
            shape: vec![-1, 2],
            ..GaussianRandom::of(out())
        },
        GaussianRandom { shape_tensor: Some(integers(&[-2])), ..GaussianRandom::of(out()) }
            .fails("attribute `shape`: -2 is not a dimension"),
        GaussianRandom {
            shape: vec![2],
            dtype: DType::I64,
            mean: 0.0,
            std: 1.0,
            seed: 0,
            ..GaussianRandom::of(out())
        }
        .fails("`Out`: floating point numbers are needed"),
    ]
);

autobwd::op::attr_enum! {
    /// The distribution of noise.
    pub enum NoiseDistribution {
        /// Standard normal.
        Normal = "normal",
        /// Uniform in [0, 1).
        Uniform = "uniform",
    }
}

/// Random numbers in the shape of a tensor.
///
/// Equal seeds give equal numbers; for new ones at each run, feed or count `seed`.
#[register_op(grad = ZeroGrad, infallible, primitive)]
pub struct NoiseLike<V = Var> {
    /// Floating point numbers of any shape.
    #[input(shape_only)]
    pub x: V,
    /// Seed of the generator: one int32 or int64 number.
    #[input]
    pub seed: V,
    /// Same shape and dtype as `x`.
    #[output]
    pub out: V,
    /// The distribution.
    #[attr(default = NoiseDistribution::Normal)]
    pub distribution: NoiseDistribution,
}
impl Infer for NoiseLike<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.out.like(&self.x);
        let is_integer = matches!(self.seed.dtype, DType::I32 | DType::I64);
        match is_integer && self.seed.dims.numel().agrees(1.into()) {
            true => Ok(()),
            false => Err(self.seed.wrong("one number, int64 or int32, is needed")),
        }
    }
}
impl Kernel for NoiseLike<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let mut rng = match self.seed.dtype() {
            DType::I32 => rng(self.seed.slice::<i32>()?[0]),
            _ => rng(self.seed.slice::<i64>()?[0]),
        };
        match self.distribution {
            NoiseDistribution::Normal => fill(&mut self.out, iter::repeat_with(|| normal(&mut rng))),
            NoiseDistribution::Uniform => fill(&mut self.out, iter::repeat_with(|| unit(&mut rng))),
        }
    }
}
autobwd::samples!(
    NoiseLike,
    [
        NoiseLike {
            x: uniform([2, 3]),
            seed: integers_below(9, [1]),
            out: out(),
            distribution: NoiseDistribution::Normal
        },
        NoiseLike {
            x: uniform([4]),
            seed: integers_below(9, []).of(DType::I32),
            out: out(),
            distribution: NoiseDistribution::Uniform
        },
        NoiseLike {
            x: uniform([0, 2]),
            seed: integers_below(9, [1]),
            out: out(),
            distribution: NoiseDistribution::Normal
        },
        NoiseLike {
            x: uniform([2]),
            seed: integers_below(9, [2]),
            out: out(),
            distribution: NoiseDistribution::Normal
        }
        .fails("one number, int64 or int32, is needed"),
        NoiseLike {
            x: integers_below(9, [2]),
            seed: integers_below(9, [1]),
            out: out(),
            distribution: NoiseDistribution::Normal
        }
        .fails("`X`: floating point numbers are needed"),
    ]
);

/// Random numbers of double precision in a composition, in the shape that a tensor, a list of tensors or an attribute
/// gives; `out` is the output that is to be set.
pub(crate) fn noise(
    out: &Expr,
    (tensor, list, shape): (Option<&Expr>, &[Expr], &[i64]),
    seed: i32,
    distribution: NoiseDistribution,
) -> Expr {
    let like = FillConstant {
        shape_tensor: tensor.filter(|_| list.is_empty()).map(Arg::from),
        shape_tensor_list: list.iter().map(Arg::from).collect(),
        shape: shape.to_vec(),
        dtype: DType::F64,
        ..FillConstant::of(New)
    };
    let like = out.builder().emit(like).out;
    let seed = filled(out.builder(), DType::I64, &seed.to_string(), &[1.into()]);
    emit(NoiseLike { x: like.into(), seed: seed.into(), out: New, distribution }).out
}

/// The shape that a list of tensors gives, or else a tensor, or else an attribute.
fn shape_of(tensor: Option<&Meta>, list: &[Meta], shape: &[i64]) -> Result<Dims> {
    given_shape(tensor.filter(|_| list.is_empty()), list, shape)
}

/// The seed of a separate random stream: a hash of a seed and a name, the same on every machine (FNV-1a over the name,
/// finished by SplitMix64 as of Steele, Lea and Flood, 2014).
pub(crate) fn stream(seed: i32, name: &str) -> u64 {
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let start = 0xcbf2_9ce4_8422_2325 ^ u64::from(seed as u32) << 32;
    let mut x = name.bytes().fold(start, fnv).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

pub(crate) fn rng(seed: impl Into<i64>) -> Pcg64Mcg {
    Pcg64Mcg::seed_from_u64(seed.into() as u64)
}

fn fill(out: &mut Buf<'_>, numbers: impl Iterator<Item = f64>) -> Result<()> {
    with_float!(out, T => out.slice_mut()?.iter_mut().zip(numbers).for_each(|(out, x)| *out = T::of(x)));
    Ok(())
}

/// Uniform in [0, 1): the upper 53 bits.
pub(crate) fn unit(rng: &mut impl Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// Standard normal, by Leva's ratio of uniforms (ACM TOMS 18, 1992): the number is computed by arithmetic only. The
/// logarithm, whose last bit differs between machines, is needed for one number in a hundred, and only for a
/// comparison.
fn normal(rng: &mut impl Rng) -> f64 {
    loop {
        // Not 0, since it is a divisor.
        let u = 1.0 - unit(rng);
        let v = 1.7156 * (unit(rng) - 0.5);
        let (x, y) = (u - 0.449871, v.abs() + 0.386595);
        let q = x * x + y * (0.19600 * y - 0.25472 * x);
        if q < 0.27597 || (q <= 0.27846 && v * v <= -4.0 * u * u * libm::log(u)) {
            return v / u;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_numbers_have_the_moments_of_the_distribution() {
        let mut rng = rng(3);
        let n = 200_000;
        let numbers: Vec<f64> = iter::repeat_with(|| normal(&mut rng)).take(n).collect();
        let moment = |k: i32| numbers.iter().map(|x| x.powi(k)).sum::<f64>() / n as f64;
        assert!(moment(1).abs() < 0.01, "{}", moment(1));
        assert!((moment(2) - 1.0).abs() < 0.02, "{}", moment(2));
        assert!(moment(3).abs() < 0.05, "{}", moment(3));
        assert!((moment(4) - 3.0).abs() < 0.1, "{}", moment(4));
        let beyond = numbers.iter().filter(|x| x.abs() > 3.0).count() as f64 / n as f64;
        assert!((beyond - 0.0027).abs() < 0.0005, "{beyond}");
    }
}
