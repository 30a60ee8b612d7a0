//! Positions in attention: rotary embeddings and linear biases, composed of other operators.

use std::f64::consts::TAU;

use autobwd::{DType, Error, ErrorKind, Expr, Result};

use crate::{
    Math, concat,
    fill::constants,
    math::{failed, in_dtype, positions},
};

/// The angles of rotary position embeddings (Su et al., 2021): at position `p`, the elements `i` and `i + d/2` of a
/// head are rotated by `p · frequency[i]`.
///
/// ```
/// use autobwd::{Builder, DType};
/// use autobwd_ops::{Math, attention::{Rotary, RotaryScaling}};
///
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 512, 8, 64]);
/// let positions = net.input("positions", DType::I64, &[512]);
/// let scaling = RotaryScaling::Linear { factor: 4.0 };
/// let rotated = x.rotary_embedding_with(&positions, &Rotary { base: 10_000.0, scaling });
/// assert_eq!(rotated.dims().to_string(), "[-1, 512, 8, 64]");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Rotary {
    /// `θ`: unscaled frequencies are `θ^(-2i/d)`; 10,000 in the paper.
    pub base: f64,
    /// How frequencies are changed for sequences that are longer than those of training.
    pub scaling: RotaryScaling,
}

/// How the frequencies of rotary embeddings are changed for sequences that are longer than those of training, in the
/// forms of published models (`rope_type` of their configurations).
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RotaryScaling {
    /// Not at all (`default`).
    #[default]
    Unscaled,
    /// All are divided by a factor (`linear`; Chen et al., 2023).
    Linear {
        /// Length by length of training.
        factor: f64,
    },
    /// Another base for sequences beyond the trained length (`dynamic`): `θ · (factor · n / trained - factor + 1)^(d
    /// / (d - 2))` with the larger `n` of the lengths.
    Dynamic {
        /// The factor.
        factor: f64,
        /// The longest sequence of training.
        trained_length: usize,
        /// The length of the sequences.
        length: usize,
    },
    /// Low frequencies are divided, high ones are kept, and those between are interpolated (`llama3`; Grattafiori et
    /// al., 2024). The bounds are turns of an angle within the trained length.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Frequencies of fewer turns are low.
        low_turns: f64,
        /// Frequencies of more turns are high.
        high_turns: f64,
        /// The longest sequence of training.
        trained_length: usize,
    },
    /// As `Llama3`, with a ramp over the elements of a head, and a factor for the result (`yarn`; Peng et al., 2023).
    Yarn {
        /// The divisor of low frequencies.
        factor: f64,
        /// Where the ramp ends: turns within the trained length; 1 in the paper.
        low_turns: f64,
        /// Where the ramp starts; 32 in the paper.
        high_turns: f64,
        /// The longest sequence of training.
        trained_length: usize,
        /// Whether the ramp starts and ends at whole elements.
        truncated: bool,
        /// The factor of the result, `0.1 · ln(factor) + 1` in the paper.
        magnitude: f64,
    },
    /// Each frequency has a divisor of its own ("LongRoPE"; Ding et al., 2024).
    LongRope {
        /// The divisors, `d/2`.
        factors: Vec<f64>,
        /// The factor of the result.
        magnitude: f64,
    },
}

impl Rotary {
    /// The frequencies for heads of `depth` columns, `depth / 2`, in radians per position, and the factor of the
    /// result.
    ///
    /// # Errors
    /// An odd depth, a base or factors that are not positive, bounds in the wrong order, another number of divisors.
    pub fn frequencies(&self, depth: usize) -> Result<(Vec<f64>, f64)> {
        self.check(depth)?;
        let with_base = |base: f64| {
            (0..depth / 2)
                .map(move |i| libm::pow(base, -((2 * i) as f64) / depth as f64))
                .collect::<Vec<f64>>()
        };
        let unscaled = with_base(self.base);
        Ok(match &self.scaling {
            RotaryScaling::Unscaled => (unscaled, 1.0),
            RotaryScaling::Linear { factor } => (unscaled.iter().map(|x| x / factor).collect(), 1.0),
            RotaryScaling::Dynamic { factor, trained_length, length } => {
                let stretch = *length.max(trained_length) as f64 / *trained_length as f64;
                let exponent = depth as f64 / (depth as f64 - 2.0);
                (with_base(self.base * libm::pow(factor * stretch - (factor - 1.0), exponent)), 1.0)
            }
            RotaryScaling::Llama3 { factor, low_turns, high_turns, trained_length } => {
                let scaled = |frequency: &f64| {
                    let turns = *trained_length as f64 * frequency / TAU;
                    let kept = ((turns - low_turns) / (high_turns - low_turns)).clamp(0.0, 1.0);
                    (1.0 - kept) * frequency / factor + kept * frequency
                };
                (unscaled.iter().map(scaled).collect(), 1.0)
            }
            RotaryScaling::Yarn { factor, low_turns, high_turns, trained_length, truncated, magnitude } => {
                // The element whose angle makes so many turns.
                let element = |turns: f64| {
                    let logarithm = libm::log(*trained_length as f64 / (turns * TAU));
                    depth as f64 * logarithm / (2.0 * libm::log(self.base))
                };
                let (start, end) = (element(*high_turns), element(*low_turns));
                let (start, end) = if *truncated { (start.floor(), end.ceil()) } else { (start, end) };
                let (start, end) = (start.max(0.0), end.min(depth as f64 - 1.0));
                let end = if start == end { end + 0.001 } else { end };
                let scaled = |(i, frequency): (usize, &f64)| {
                    let divided = ((i as f64 - start) / (end - start)).clamp(0.0, 1.0);
                    frequency / factor * divided + frequency * (1.0 - divided)
                };
                (unscaled.iter().enumerate().map(scaled).collect(), *magnitude)
            }
            RotaryScaling::LongRope { factors, magnitude } => {
                (unscaled.iter().zip(factors).map(|(x, factor)| x / factor).collect(), *magnitude)
            }
        })
    }

    fn check(&self, depth: usize) -> Result<()> {
        let (positive, fits) = match &self.scaling {
            RotaryScaling::Unscaled => (vec![], true),
            RotaryScaling::Linear { factor } => (vec![*factor], true),
            RotaryScaling::Dynamic { factor, trained_length, .. } => {
                (vec![*factor], *trained_length > 0 && depth > 2)
            }
            RotaryScaling::Llama3 { factor, low_turns, high_turns, trained_length } => {
                (vec![*factor, *low_turns, *high_turns], *trained_length > 0 && low_turns < high_turns)
            }
            RotaryScaling::Yarn { factor, low_turns, high_turns, trained_length, magnitude, .. } => (
                vec![*factor, *low_turns, *high_turns, *magnitude],
                *trained_length > 0 && low_turns < high_turns && self.base != 1.0,
            ),
            RotaryScaling::LongRope { factors, magnitude } => {
                (factors.iter().chain([magnitude]).copied().collect(), factors.len() == depth / 2)
            }
        };
        let is_positive = |number: &f64| *number > 0.0 && number.is_finite();
        if fits && depth.is_multiple_of(2) && positive.iter().chain([&self.base]).all(is_positive) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Attr,
            format!("{self:?} makes no frequencies for heads of {depth} columns"),
        ))
    }
}

/// [`Math::rotary_embedding_with`].
#[track_caller]
pub(crate) fn rotary_embedding(x: &Expr, at: &Expr, rotary: &Rotary) -> Expr {
    let dims = x.dims();
    let depth = dims.last().and_then(|depth| depth.get());
    let fits = dims.len() == 4 && matches!(at.dims().len(), 1 | 2);
    let (Some(depth), true) = (depth, fits) else {
        let text = format!(
            "rotary embeddings need a shape [batch, length, heads, d] with a known `d`, and positions [length] or \
             [batch, length], not {x} and {at}"
        );
        return failed(&[x, at], text);
    };
    let (frequencies, magnitude) = match rotary.frequencies(depth) {
        Ok(found) => found,
        Err(e) => return failed(&[x, at], e.to_string()),
    };
    // 16 bits have no digits for long sequences.
    let dtype = if x.dtype().is_half() { DType::F32 } else { x.dtype() };
    let at = at.cast(dtype).unsqueeze(&[-1]);
    // [.., length, 1, d / 2], for all heads.
    let angles = (&at * constants(&at, &frequencies)).unsqueeze(&[-2]);
    let [cos, sin] = [angles.cos(), angles.sin()].map(|part| {
        let part = if magnitude == 1.0 { part } else { part * magnitude };
        in_dtype(&part, x.dtype())
    });
    let half = (depth / 2) as i32;
    let parts = x.split(&[half; 2], -1);
    let [first, second] = [0, 1].map(|part| parts[part].clone());
    concat(&[&(&first * &cos - &second * &sin), &(&second * &cos + &first * &sin)], -1)
}

/// The mask of attention with linear biases (ALiBi; Press et al., 2022), `[heads, 1, keys]` in the dtype of the keys,
/// `[batch, keys, ..]`: what is added to the scores of a key falls with its distance from the last key, at a rate of
/// its head. That is the paper's bias by the distance from the query, as weights do not change if all scores of a
/// query do.
///
/// Rates are `2^(-8(i + 1)/n)` for `n` heads, a power of two. For other numbers of heads, the remaining rates are every
/// second one for twice the next lower power, as in the authors' program.
///
/// ```
/// use autobwd::Tensor;
/// use autobwd_ops::{Math, attention::{AttentionAttrs, AttentionOptions, alibi_mask}};
///
/// let tape = autobwd::eager();
/// let x = tape.constant(Tensor::from_vec([1, 3, 2, 1], vec![1.0_f32; 6])?);
/// let mask = alibi_mask(&x, 2);
/// assert_eq!(mask.tensor()?.slice::<f32>()?, [-0.125, -0.0625, 0.0, -0.0078125, -0.00390625, 0.0]);
///
/// let attrs = AttentionAttrs { causal: true, ..AttentionAttrs::default() };
/// let options = AttentionOptions { mask: Some(mask), attrs, ..AttentionOptions::default() };
/// assert_eq!(x.attention_with(&x, &x, &options).dims().to_string(), "[1, 3, 2, 1]");
/// # Ok::<(), autobwd::Error>(())
/// ```
#[track_caller]
pub fn alibi_mask(keys: &Expr, heads: usize) -> Expr {
    if keys.dims().len() < 2 {
        return failed(&[keys], format!("linear biases need keys [batch, keys, ..], not {keys}"));
    }
    let power = 1 << heads.max(1).ilog2();
    let rates = |count: usize| (1..=count).map(move |i| libm::exp2(-8.0 * i as f64 / count as f64));
    let rates: Vec<f64> = rates(power).chain(rates(2 * power).step_by(2)).take(heads).collect();
    let length = keys.dim(1);
    let before_last = positions(keys.builder(), &length) - (&length - 1).number(keys.builder());
    let distances = in_dtype(&before_last, keys.dtype());
    constants(keys, &rates).unsqueeze(&[1, 2]) * distances
}
