//! The eager tape: values that remember how they were computed, and going back from them.
//!
//! An [`eager`] builder computes expressions at once; functions and layers that build programs need
//! not know. A *leaf* is a value whose derivative is wanted, a *constant* one that has none; every other value is computed
//! by an operator, from leaves, constants and others, which it remembers: its history.
//!
//! ```
//! use autobwd::Tensor;
//! use autobwd_ops::Math;
//!
//! let tape = autobwd::eager();
//! let x = tape.leaf("x", Tensor::scalar(2.0)?);
//! let y = tape.leaf("y", Tensor::scalar(3.0)?);
//! let z = &x * &y;
//! let h = z.log() + z.exp();
//! assert_eq!(h.item()?, 6.0_f64.ln() + 6.0_f64.exp());
//! h.backward()?;
//! assert_eq!(x.gradient()?.item()?, 3.0 * (1.0 / 6.0 + 6.0_f64.exp()));
//! # Ok::<(), autobwd::Error>(())
//! ```
//!
//! # The queue
//!
//! [`Expr::backward`](autobwd_core::Expr::backward) keeps a queue of values with their derivatives. It starts with the last value,
//! whose derivative is 1. As long as the queue is not empty, it takes the value that was computed last. If that is a leaf, it
//! adds its derivative to those that the leaf has got before. Otherwise, the *chain rule* of the operator that computed it
//! gives the derivatives of what the operator has read; constants are dropped, all others join the queue. What is there
//! already is added to: since everything that contributes to a value was computed after it, every operator is visited once,
//! when its derivative is complete.
//!
//! ```
//! # use autobwd::Tensor;
//! # use autobwd_ops::Math;
//! # let tape = autobwd::eager();
//! # let x = tape.leaf("x", Tensor::scalar(2.0)?);
//! # let y = tape.leaf("y", Tensor::scalar(4.0)?);
//! let z = &x * &y;
//! let h = z.sqrt() + z.square();
//! let mut steps = vec![];
//! autobwd::tape::backward_with(&h, None, &mut |queue| steps.push(queue.to_string()))?;
//! assert_eq!(steps[0], "elementwise_add: 1");
//! assert_eq!(steps[1], "square: 1, sqrt: 1"); // addition passes its derivative on
//! assert_eq!(steps[2], "sqrt: 1, elementwise_mul: 16"); // d square(z) = 2z
//! let root = 0.5 / 8.0_f64.sqrt();
//! assert_eq!(steps[3], format!("elementwise_mul: {}", 16.0 + root)); // both branches have arrived
//! assert_eq!(steps[4], format!("y: {}, x: {}", 2.0 * (16.0 + root), 4.0 * (16.0 + root)));
//! assert_eq!(steps[6], "");
//! # Ok::<(), autobwd::Error>(())
//! ```
//!
//! The closure may look at more than the text: [`Queue::iter`] gives every value with its derivative. Afterwards,
//! `Expr::history` has the operators, variables and values that a value was computed from; it
//! prints and draws.
//!
//! The chain rule of an operator is not written anywhere a second time: it is the backward part of a program of that one
//! operator, made from its gradient rule when it is needed first, and remembered with its shapes.
//!
//! # Derivatives of derivatives
//!
//! [`grad`] returns derivatives instead of adding them up, of any values with respect to any others. Asked to, it records
//! what it computes, so that it can be differentiated again:
//!
//! ```
//! # use autobwd::Tensor;
//! # use autobwd_ops::Math;
//! use autobwd::tape::{Grad, grad};
//! # let tape = autobwd::eager();
//! let x = tape.leaf("x", Tensor::scalar(2.0)?);
//! let mut derivative = x.square() * &x;
//! for expected in [12.0, 12.0, 6.0] {
//!     let found = grad(&[&derivative], &[&x], &Grad { create_graph: true, ..Grad::default() })?;
//!     derivative = found[0].clone().expect("it depends on x");
//!     assert_eq!(derivative.item()?, expected);
//! }
//! # Ok::<(), autobwd::Error>(())
//! ```
//!
//! # Functions of your own
//!
//! What is worth more than one use is an operator. For anything else, [`apply`] calls a [`Function`]: its value and its
//! gradient, in Rust.
//!
//! # Overwriting
//!
//! Optimizers overwrite parameters; so can you, with [`Expr::set`](autobwd_core::Expr::set) or any operator that is given a value to
//! write to. What a derivative still needs must not have been overwritten:
//!
//! ```
//! # use autobwd::Tensor;
//! # use autobwd_ops::Math;
//! # let tape = autobwd::eager();
//! let x = tape.leaf("x", Tensor::scalar(2.0)?);
//! let y = x.square();
//! x.set(Tensor::scalar(3.0)?)?;
//! let text = y.backward().unwrap_err().to_string();
//! assert!(text.contains("version 0 of `x` is needed, but it has been overwritten, the last time by `set` at "));
//! # Ok::<(), autobwd::Error>(())
//! ```
//!
//! # To a program
//!
//! [`trace`] runs a function once and writes down what it does: a program that computes the same, to the bit.

mod api;
mod derivative;
mod engine;
mod history;
mod missing;
mod queue;
mod ready;
mod rule;
mod trace;

pub use api::{Grad, apply, backward_with, eager, eager_with_ops, eager_with_threads, grad};
/// What custom functions implement, and what [`Expr::hook`](autobwd_core::Expr::hook) returns.
pub use autobwd_core::build::{Function, HookId};
pub use history::{History, history};
pub use missing::missing;
pub use queue::{Queue, QueueEntry};
#[doc(hidden)]
pub use ready::{prepare, run};
pub use trace::{Traced, trace};
