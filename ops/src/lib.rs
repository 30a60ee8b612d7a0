//! The operator library of autobwd: operators, layers, initialisers and optimizers.
//!
//! There is one file for each family, with each gradient directly below its operator. All code uses the public
//! interface of the framework, so any crate can do the same.
//!
//! Control flow is in [`control::while_loop`], [`control::cond`], [`control::static_rnn`] and [`control::scan`].
//!
//! A crate that only loads programs must name this crate, or the linker drops it: `use autobwd_ops as _;`.
//!
//! # Operators
//!
//! Slots marked `?` are optional; slots marked `*` hold any number of variables.
//!
#![doc = include_str!("../OPERATORS.md")]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "results are compared with the system's"))]

pub mod activation;
pub mod array;
pub mod attention;
pub mod bessel;
pub mod binary_cross_entropy;
pub mod bitwise;
pub mod channel_blocks;
pub mod channels;
pub mod closeness;
pub mod compare;
pub mod control;
pub mod conv;
pub mod cross;
pub mod cumprod;
pub mod cumsum;
pub mod cvm;
pub mod detection;
pub mod diagonal;
pub mod distributions;
pub mod dropout;
pub mod einsum;
pub mod elementwise;
pub mod embedding;
pub mod extremes;
pub mod fake_quantization;
pub mod fill;
pub mod float_class;
pub mod floor_division;
pub mod fourier;
pub mod gamma;
pub mod gather;
pub mod image;
pub mod increment;
pub mod index;
pub mod index_numbers;
pub mod indexed_writes;
mod init;
pub mod interpolate;
mod kernel_helpers;
pub mod linalg;
pub mod logarithm;
pub mod logic;
pub mod loss;
pub mod lstm;
pub mod masked_fill;
pub mod masked_softmax;
mod math;
pub mod matmul;
pub mod message_passing;
pub mod metrics;
pub mod min_max_pow;
pub mod mixed_precision;
pub mod model;
pub mod next_number;
pub mod nn;
pub mod nonzero;
pub mod norm;
pub mod optim;
pub mod order_statistics;
mod padded_images;
pub mod poisson;
pub mod pool;
pub mod position_encoding;
pub mod put;
pub mod quantization;
pub mod random;
pub mod ranges;
pub mod rearrange;
pub mod reduce;
pub mod rnn;
pub mod rounding;
pub mod running_extremes;
pub mod sampling;
pub mod scatter;
pub mod search;
pub mod segments;
pub mod select;
pub mod set_value;
pub mod shape;
pub mod signal;
mod simd_loops;
pub mod softmax;
pub mod sort;
pub mod special;
pub mod sum;
mod tap_rows;
mod tap_sums;
pub mod top_k;
pub mod trigonometry;
mod unary;
pub mod unique;
mod units;
pub mod update;
pub mod windows;
mod winograd;

pub use einsum::einsum;
pub use init::Init;
pub use math::{DimExpr, Math, all_sizes, concat, filled, positions, product, sizes, stack, widest};
pub use model::Model;
