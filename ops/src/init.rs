//! Initialisers of parameters: operators appended to the start-up program.

use autobwd::{Arg, DType, Expr, Meta};

use crate::{
    fill::FillConstant,
    random::{GaussianRandom, UniformRandom, stream},
};

/// Initial value of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Init {
    /// Constant.
    Constant(f64),
    /// Uniform between two bounds.
    Uniform(f64, f64),
    /// Normal with a mean and a standard deviation.
    Normal(f64, f64),
    /// Uniform within ±√(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010).
    XavierUniform,
    /// Normal with variance 2 / (fan_in + fan_out) (Glorot and Bengio, 2010).
    XavierNormal,
    /// Uniform within ±√(6 / fan_in), for ReLU (He et al., 2015).
    KaimingUniform,
    /// Normal with variance 2 / fan_in, for ReLU (He et al., 2015).
    KaimingNormal,
}

/// `(fan_in, fan_out)`: for a matrix `[in, out]` its dimensions, for a filter `[out, in, ..]` these times its spatial
/// size.
fn fans(meta: &Meta) -> (f64, f64) {
    let dims: Vec<f64> = meta.dims.iter().map(|d| d.get().unwrap_or(1) as f64).collect();
    match dims.as_slice() {
        [] => (1.0, 1.0),
        [n] => (*n, *n),
        [fan_in, fan_out] => (*fan_in, *fan_out),
        [outputs, inputs, positions @ ..] => {
            let positions: f64 = positions.iter().product();
            (inputs * positions, outputs * positions)
        }
    }
}

impl Init {
    /// Appends the operator that initialises `parameter`, a variable of a start-up program. Random values depend on
    /// `seed` and the parameter's name only: parameters with one seed differ, and the same program has the same values
    /// on every machine, in programs and in eager mode. Returns the initialised parameter; fails if bounds or standard
    /// deviations are out of order.
    #[track_caller]
    pub fn emit(self, parameter: &Expr, seed: i32) -> Expr {
        // An attribute has 32 bits.
        self.fill(parameter, stream(seed, &parameter.name()) as i32)
    }

    /// The same with attribute `seed`.
    #[track_caller]
    fn fill(self, parameter: &Expr, seed: i32) -> Expr {
        let meta = parameter.meta();
        let (fan_in, fan_out) = fans(&meta);
        // Single-precision samples have single-precision bounds.
        let exact = |x: f64| if meta.dtype.arithmetic() == DType::F32 { f64::from(x as f32) } else { x };
        let uniform = |limit: f64| Init::Uniform(-limit, limit);
        let normal = |variance: f64| Init::Normal(0.0, variance.sqrt());
        let shape: Vec<i64> = meta.dims.iter().map(|d| d.wire()).collect();
        let (out, dtype, startup) = (Arg::from(parameter), meta.dtype, parameter.builder());
        match self {
            Init::Constant(value) => {
                let (value, number) = (value as f32, exact(value));
                let str_value = if f64::from(value) == number { String::new() } else { number.to_string() };
                startup.emit(FillConstant { shape, dtype, value, str_value, ..FillConstant::of(out) }).out
            }
            Init::Uniform(min, max) => {
                let (min, max) = (exact(min), exact(max));
                startup.emit(UniformRandom { shape, dtype, min, max, seed, ..UniformRandom::of(out) }).out
            }
            Init::Normal(mean, std) => {
                let (mean, std) = (exact(mean), exact(std));
                startup.emit(GaussianRandom { shape, dtype, mean, std, seed, ..GaussianRandom::of(out) }).out
            }
            Init::XavierUniform => uniform((6.0 / (fan_in + fan_out)).sqrt()).fill(parameter, seed),
            Init::XavierNormal => normal(2.0 / (fan_in + fan_out)).fill(parameter, seed),
            Init::KaimingUniform => uniform((6.0 / fan_in).sqrt()).fill(parameter, seed),
            Init::KaimingNormal => normal(2.0 / fan_in).fill(parameter, seed),
        }
    }
}
