//! Poisson distributed numbers.

use autobwd::{
    Buf, Cx, Error, ErrorKind, Infer, Kernel, Meta, Result, Var, ZeroGrad, check::*, op::with_float,
    register_op,
};
use rand::Rng;

use crate::{
    kernel_helpers::{KernelFloat, wide},
    random::{rng, unit},
};

/// Poisson distributed numbers with the given means.
#[register_op(grad = ZeroGrad, primitive)]
pub struct Poisson<V = Var> {
    /// Means, not negative, any shape.
    #[input(checked)]
    pub x: V,
    /// Same shape and dtype as `x`.
    #[output]
    pub out: V,
    /// Seed of the generator; not in the reference.
    #[attr(default = 0)]
    pub seed: i32,
}
impl Infer for Poisson<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for Poisson<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let mut rng = rng(self.seed);
        with_float!(self.x, T => {
            for (out, mean) in self.out.slice_mut::<T>()?.iter_mut().zip(self.x.slice::<T>()?) {
                let mean = wide(*mean);
                if !(mean.is_finite() && mean >= 0.0) {
                    let text = format!("`X`: finite numbers that are not negative are needed, not {mean}");
                    return Err(Error::new(ErrorKind::Data, text));
                }
                *out = T::of(poisson(&mut rng, mean));
            }
            Ok(())
        })
    }
}
autobwd::samples!(
    Poisson,
    [
        Poisson { x: given([2, 3], [0.25, 0.5, 3.0, 9.0, 12.0, 100.0]), out: out(), seed: 0 },
        Poisson { x: given([2], [0.0, 0.0]), out: out(), seed: 0 }
            .not_a_derivative("smaller means are rejected"),
        Poisson { x: between(0.5, 30.0, [20]), out: out(), seed: -7 },
        Poisson { x: positive([]), out: out(), seed: 1 },
        Poisson { x: positive([0, 2]), out: out(), seed: 1 },
        Poisson { x: given([2], [1.0, -0.5]), out: out(), seed: 1 }
            .fails("`X`: finite numbers that are not negative are needed, not -0.5"),
        Poisson { x: integers_below(2, [3]), out: out(), seed: 1 }
            .fails("`X`: floating point numbers are needed"),
    ]
);

/// From this mean on, rejection is faster than a product of uniform numbers.
const LARGE_MEAN: f64 = 10.0;

/// One Poisson distributed number: by a product of uniform numbers (Knuth, 1969), or for large means by transformed
/// rejection (Hörmann, 1993, algorithm PTRS).
fn poisson(rng: &mut impl Rng, mean: f64) -> f64 {
    if mean < LARGE_MEAN {
        let (limit, mut count, mut product) = (libm::exp(-mean), 0.0, unit(rng));
        while product > limit {
            product *= unit(rng);
            count += 1.0;
        }
        return count;
    }
    let b = 0.931 + 2.53 * mean.sqrt();
    let a = -0.059 + 0.02483 * b;
    let scale = 1.1239 + 1.1328 / (b - 3.4);
    let accepted = 0.9277 - 3.6224 / (b - 2.0);
    loop {
        let (u, v) = (unit(rng) - 0.5, unit(rng));
        let distance = 0.5 - u.abs();
        let count = libm::floor((2.0 * a / distance + b) * u + mean + 0.43);
        if distance >= 0.07 && v <= accepted {
            return count;
        }
        if count < 0.0 || (distance < 0.013 && v > distance) {
            continue;
        }
        let density = count * libm::log(mean) - mean - libm::lgamma(count + 1.0);
        if libm::log(v * scale / (a / (distance * distance) + b)) <= density {
            return count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poisson_numbers_have_their_mean_and_variance() {
        for expected in [0.5, 8.0, 12.0, 400.0] {
            let mut rng = rng(3);
            let n = 100_000;
            let numbers: Vec<f64> = (0..n).map(|_| poisson(&mut rng, expected)).collect();
            let mean = numbers.iter().sum::<f64>() / f64::from(n);
            let variance = numbers.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / f64::from(n);
            assert!((mean / expected - 1.0).abs() < 0.01, "{mean} of {expected}");
            assert!((variance / expected - 1.0).abs() < 0.02, "{variance} of {expected}");
        }
    }
}
