//! Samples of operators: their structs with a random distribution in each slot. `autobwd-check` runs them.

use rand::{Rng, RngExt, SeedableRng, seq::SliceRandom};
use rand_pcg::Pcg64Mcg;

use crate::{Builder, DType, Describe, Expr, Op, OpDesc, Result, Role, Shape, Tensor, Var};

/// The distribution of an input of a sample, or a placeholder for an output.
#[derive(Clone, Debug)]
pub struct Draw {
    dims: Shape,
    dtype: Option<DType>,
    domain: Domain,
}

#[derive(Clone, Debug)]
enum Domain {
    Output,
    Between(f64, f64),
    /// At a distance between 0.5 and 1.5 from that point.
    AwayFrom(f64),
    Distinct,
    Probabilities,
    IntegersBelow(i64),
    Given(Vec<f64>),
}

fn draw<const N: usize>(dims: [usize; N], domain: Domain) -> Draw {
    Draw { dims: dims.as_slice().into(), dtype: None, domain }
}

/// An output slot of a sample.
pub fn out() -> Draw {
    draw([], Domain::Output)
}

/// Numbers between −1 and 1.
pub fn uniform<const N: usize>(dims: [usize; N]) -> Draw {
    between(-1.0, 1.0, dims)
}

/// Numbers between two bounds.
pub fn between<const N: usize>(low: f64, high: f64, dims: [usize; N]) -> Draw {
    draw(dims, Domain::Between(low, high))
}

/// Numbers on both sides of a point where the operator has a kink, at some distance.
pub fn away_from<const N: usize>(kink: f64, dims: [usize; N]) -> Draw {
    draw(dims, Domain::AwayFrom(kink))
}

/// Numbers between 0.5 and 2.
pub fn positive<const N: usize>(dims: [usize; N]) -> Draw {
    between(0.5, 2.0, dims)
}

/// Well-separated numbers, for operators that select the largest.
pub fn distinct<const N: usize>(dims: [usize; N]) -> Draw {
    draw(dims, Domain::Distinct)
}

/// Positive numbers that add up to 1 along the last axis.
pub fn probabilities<const N: usize>(dims: [usize; N]) -> Draw {
    draw(dims, Domain::Probabilities)
}

/// Integers from 0 up to a bound, exclusive; int64 unless [`Draw::of`] sets another dtype.
pub fn integers_below<const N: usize>(bound: i64, dims: [usize; N]) -> Draw {
    Draw { dtype: Some(DType::I64), ..draw(dims, Domain::IntegersBelow(bound)) }
}

/// The given numbers.
pub fn given<const N: usize>(dims: [usize; N], elements: impl IntoIterator<Item = f64>) -> Draw {
    draw(dims, Domain::Given(elements.into_iter().collect()))
}

/// The given integers as a tensor of one dimension; int64 unless [`Draw::of`] sets another dtype.
pub fn integers(elements: &[i64]) -> Draw {
    let of_f64 = |x: &i64| *x as f64;
    Draw {
        dtype: Some(DType::I64),
        ..draw([elements.len()], Domain::Given(elements.iter().map(of_f64).collect()))
    }
}

impl Draw {
    /// Sets a dtype in place of the floating point dtype of the check.
    #[must_use]
    pub fn of(self, dtype: DType) -> Draw {
        Draw { dtype: Some(dtype), ..self }
    }

    pub(crate) fn dims(&self) -> &[usize] {
        &self.dims
    }

    pub(crate) fn is_output(&self) -> bool {
        matches!(self.domain, Domain::Output)
    }

    /// The same with dimensions `from` replaced by `to`; `None` if there are no elements to fill it with.
    fn resized(&self, from: usize, to: usize) -> Option<Draw> {
        let dims: Shape = self.dims.iter().map(|n| if *n == from { to } else { *n }).collect();
        let domain = match &self.domain {
            Domain::Given(elements) => {
                let count = dims.iter().product();
                let again = elements.iter().copied().cycle().take(count).collect::<Vec<_>>();
                Domain::Given(Some(again).filter(|again| again.len() == count)?)
            }
            other => other.clone(),
        };
        Some(Draw { dims, domain, ..self.clone() })
    }

    /// Whether it has the floating point dtype of the check.
    pub(crate) fn is_of_float(&self) -> bool {
        self.dtype.is_none() && !self.is_output()
    }

    /// Whether its numbers may have any sign, without changing their meaning.
    pub(crate) fn is_of_any_sign(&self) -> bool {
        !matches!(self.domain, Domain::Output | Domain::Probabilities | Domain::IntegersBelow(_))
    }

    /// Whether both have the same kind of distribution.
    pub(crate) fn same_domain(&self, other: &Draw) -> bool {
        std::mem::discriminant(&self.domain) == std::mem::discriminant(&other.domain)
    }

    /// The dtype, if floating point numbers have dtype `float`.
    pub(crate) fn dtype(&self, float: DType) -> DType {
        self.dtype.unwrap_or(float)
    }

    /// The elements, as `f64`.
    fn elements(&self, rng: &mut impl Rng) -> Vec<f64> {
        let n: usize = self.dims.iter().product();
        let within = |low: f64, high: f64, rng: &mut _| low + (high - low) * RngExt::random::<f64>(rng);
        match &self.domain {
            Domain::Output => vec![],
            Domain::Between(low, high) => (0..n).map(|_| within(*low, *high, rng)).collect(),
            Domain::AwayFrom(kink) => {
                (0..n).map(|_| kink + within(0.5, 1.5, rng) * if rng.random() { 1.0 } else { -1.0 }).collect()
            }
            Domain::Distinct => {
                let mut all: Vec<f64> = (0..n).map(|i| (i as f64 - n as f64 / 2.0) * 0.37 + 0.1).collect();
                all.shuffle(rng);
                all
            }
            Domain::Probabilities => {
                let mut all: Vec<f64> = (0..n).map(|_| within(0.5, 1.5, rng)).collect();
                let last = self.dims.last().copied().unwrap_or(1).max(1);
                for row in all.chunks_mut(last) {
                    let sum: f64 = row.iter().sum();
                    row.iter_mut().for_each(|x| *x /= sum);
                }
                all
            }
            Domain::IntegersBelow(bound) => (0..n).map(|_| rng.random_range(0..*bound) as f64).collect(),
            Domain::Given(elements) => elements.clone(),
        }
    }

    /// The tensor for a check in dtype `float`.
    pub(crate) fn tensor(&self, float: DType, rng: &mut impl Rng) -> Result<Tensor> {
        Tensor::from_f64s(self.dtype(float), &self.dims, &self.elements(rng))
    }
}

/// A random number generator with the same numbers on every machine.
pub fn rng(seed: u64) -> Pcg64Mcg {
    Pcg64Mcg::seed_from_u64(seed)
}

/// Appends a small program to a builder, and returns its results.
pub type MakeProgram = fn(&Builder, &[Expr]) -> Result<Vec<Expr>>;

/// One case of an operator: distributions of its inputs, its attributes, and the expected outcome.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Variable k + 1 stands for `draws[k]`. For a sample that is a program, only the operator's type is set.
    pub desc: OpDesc,
    /// What its variables are drawn from.
    pub draws: Vec<Draw>,
    /// The small program that contains the operator, for a sample that is one.
    pub program: Option<MakeProgram>,
    /// The bound of differences, and the reason.
    pub tolerance: Option<(f64, &'static str)>,
    /// The message with which it must fail.
    pub error: Option<&'static str>,
    /// Why its gradient is not a derivative.
    pub smooth: Option<&'static str>,
    /// Why its outputs jump.
    pub discontinuous: Option<&'static str>,
    /// Why its shape rule is not tried with unknown dimensions.
    pub known_dims: Option<&'static str>,
}

impl<D: Describe<Draw>> From<D> for Sample {
    fn from(row: D) -> Sample {
        let mut draws = vec![];
        let desc = row.describe(&mut |role, _, draw| {
            // The draw of an output only marks the slot as filled.
            let draw = if role == Role::Output { out() } else { draw };
            draws.push(draw);
            Ok(Var::stand_in(draws.len()))
        });
        // Cannot fail: the closure always returns `Ok`.
        Sample::new(desc.unwrap_or_else(|_| OpDesc::new(<D::Op as Op>::SCHEMA.name)), draws, None)
    }
}

/// Expectations for a sample row; by default, the operator works and has a gradient.
pub trait SampleRow: Into<Sample> {
    /// It must fail with a message that contains `message`.
    fn fails(self, message: &'static str) -> Sample {
        Sample { error: Some(message), ..self.into() }
    }

    /// Another bound for |built − numeric| / (1 + max |numeric|) than 1e-7, and the reason.
    fn tolerance(self, bound: f64, reason: &'static str) -> Sample {
        Sample { tolerance: Some((bound, reason)), ..self.into() }
    }

    /// Its gradient is not a derivative (a straight-through estimator, say), and the reason: values are checked,
    /// gradients are not compared with differences.
    fn not_a_derivative(self, reason: &'static str) -> Sample {
        Sample { smooth: Some(reason), ..self.into() }
    }

    /// Its outputs jump at these numbers, and the reason: it has no derivative there, and `f32`, which rounds the
    /// numbers, may be on the other side of the jump, so that results in `f32` are not compared with those in `f64`.
    fn discontinuous(self, reason: &'static str) -> Sample {
        Sample { discontinuous: Some(reason), ..self.not_a_derivative(reason) }
    }

    /// Its shape rule has to guess where dimensions are unknown, and the reason: the results for unknown and known
    /// dimensions are not compared.
    fn known_dims(self, reason: &'static str) -> Sample {
        Sample { known_dims: Some(reason), ..self.into() }
    }
}
impl<R: Into<Sample>> SampleRow for R {}

impl Sample {
    /// A row of an operator that [needs a program](crate::OpInfo::needs_program) around it: one that runs a sub-block,
    /// or reads or writes arrays. `make` appends a small program that contains the operator to a builder, which may be
    /// eager. It receives the drawn inputs and returns the results.
    ///
    /// ```standalone_crate
    /// use autobwd::{Expr, OpInfoMap, check::{Sample, check_sample, positive, uniform}};
    /// use autobwd_ops::{Math, control::{While, while_loop}};
    ///
    /// let sample = Sample::of_program::<While>([positive([2]), uniform([2])], |_, x| {
    ///     let limit = x[0].sum(&[]) * 0.0 + 9.0;
    ///     let grow = |y: &[Expr]| vec![&y[0] * 1.5 + x[1].exp()];
    ///     Ok(while_loop(&[x[0].clone()], |x| x[0].sum(&[]).less_than(&limit), grow))
    /// });
    /// assert_eq!(check_sample(&sample)?.elements, 4);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    pub fn of_program<O: Op>(inputs: impl IntoIterator<Item = Draw>, make: MakeProgram) -> Sample {
        let (desc, draws) = (OpDesc::new(O::SCHEMA.name), inputs.into_iter().collect());
        Sample::new(desc, draws, Some(make))
    }

    fn new(desc: OpDesc, draws: Vec<Draw>, program: Option<MakeProgram>) -> Sample {
        Sample {
            desc,
            draws,
            program,
            tolerance: None,
            error: None,
            smooth: None,
            discontinuous: None,
            known_dims: None,
        }
    }

    /// The same with all dimensions `from` replaced by `to`, if possible.
    pub(crate) fn resized(&self, from: usize, to: usize) -> Option<Sample> {
        let draws = self.draws.iter().map(|draw| draw.resized(from, to)).collect::<Option<_>>()?;
        Some(Sample { draws, ..self.clone() })
    }

    /// The operator type.
    pub fn op(&self) -> &'static str {
        self.desc.ty.as_str()
    }
}

/// The samples of one operator, as collected at link time.
#[derive(Debug)]
pub struct OpSamples {
    /// Operator type.
    pub op: &'static str,
    /// The package that declares them.
    pub krate: &'static str,
    /// The module that declares them.
    pub module: &'static str,
    /// Creates the rows.
    pub rows: fn() -> Vec<Sample>,
}
inventory::collect!(OpSamples);

/// All samples linked into this binary, sorted by operator.
pub fn samples() -> Vec<Sample> {
    samples_where(|_| true)
}

/// The samples of the selected sets, sorted by operator.
pub fn samples_where(of: impl Fn(&OpSamples) -> bool) -> Vec<Sample> {
    let mut all: Vec<_> = inventory::iter::<OpSamples>.into_iter().filter(|s| of(s)).collect();
    all.sort_by_key(|s| s.op);
    all.into_iter().flat_map(|s| (s.rows)()).collect()
}

/// Declares an operator's samples: rows are the operator's struct with [`Draw`]s in its slots.
///
/// ```standalone_crate
/// use autobwd::check::{away_from, out, samples};
/// use autobwd_ops::activation::Relu;
///
/// // A crate may add samples to the operators of another.
/// autobwd::samples!(Relu, [Relu { x: away_from(0.0, [2, 3]), out: out() }]);
/// assert!(samples().iter().filter(|sample| sample.op() == "relu").count() > 1);
/// ```
///
/// Samples are part of builds with debug assertions, such as builds of tests, and of others with the feature `samples`.
#[macro_export]
macro_rules! samples {
    ($op:ty, [$($row:expr),* $(,)?]) => {
        const _: () = {
            #[allow(dead_code, reason = "builds without samples check that they compile")]
            fn rows() -> ::std::vec::Vec<$crate::sample::Sample> {
                ::std::vec![$($crate::sample::Sample::from($row)),*]
            }
            $crate::__submit_samples! {
                $crate::sample::OpSamples {
                    op: <$op as $crate::Op>::SCHEMA.name,
                    krate: ::core::env!("CARGO_PKG_NAME"),
                    module: ::core::module_path!(),
                    rows,
                }
            }
        };
    };
}

/// Links samples, depending on the features of this crate; a `cfg` in `samples!` would use the features of the
/// calling crate.
#[cfg(any(debug_assertions, feature = "samples"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __submit_samples {
    ($samples:expr) => {
        $crate::__private::inventory::submit! { $samples }
    };
}
/// Links no samples.
#[cfg(not(any(debug_assertions, feature = "samples")))]
#[doc(hidden)]
#[macro_export]
macro_rules! __submit_samples {
    ($samples:expr) => {};
}
