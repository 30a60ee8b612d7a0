//! The eager engine and its tape: define-by-run evaluation, and reverse-mode automatic differentiation.
//!
//! An [`eager`] builder evaluates expressions immediately; the same functions and layers also build programs. A *leaf*
//! is a value that accumulates a gradient, a *constant* one without gradient. Every other value is computed by an
//! operator from leaves, constants and other values; the tape records the operator with its inputs as the value's
//! history.
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
//! [`Expr::backward`](autobwd_core::Expr::backward) keeps a priority queue of values with their gradients. It starts
//! with the given value, whose gradient is 1, and repeatedly takes the value that was computed last. A leaf adds the
//! gradient to its accumulated one. For any other value, the *chain rule* of its operator gives the gradients of the
//! operator's inputs: constants are dropped, other values join the queue, and gradients of queued values are summed.
//! Every consumer of a value was computed after it, so every operator is visited once, when its gradient is complete.
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
//! The closure may inspect more than the text: [`Queue::iter`] gives every value with its gradient. Afterwards,
//! [`history`] has the operators, variables and values of the computation; it prints and draws.
//!
//! The chain rule of an operator is the backward pass of a program of that one operator. It is built from the gradient
//! rule on first use, and cached with its shapes.
//!
//! # Higher-order gradients
//!
//! [`grad`] returns gradients instead of accumulating them, of any values with respect to any others. With
//! `create_graph`, it records their computation, so that it can be differentiated again:
//!
//! ```
//! # use autobwd::Tensor;
//! # use autobwd_ops::Math;
//! use autobwd::tape::{GradOptions, grad};
//! # let tape = autobwd::eager();
//! let x = tape.leaf("x", Tensor::scalar(2.0)?);
//! let mut derivative = x.square() * &x;
//! for expected in [12.0, 12.0, 6.0] {
//!     let found = grad(&[&derivative], &[&x], &GradOptions { create_graph: true, ..GradOptions::default() })?;
//!     derivative = found[0].clone().expect("it depends on x");
//!     assert_eq!(derivative.item()?, expected);
//! }
//! # Ok::<(), autobwd::Error>(())
//! ```
//!
//! # User-defined functions
//!
//! Reusable code should be an operator. For anything else, [`apply`] calls a [`Function`]: its value and its gradient,
//! in Rust.
//!
//! # Overwriting
//!
//! Optimizers overwrite parameters. User code can also do so, with [`Expr::set`](autobwd_core::Expr::set) or any
//! operator that writes to an existing value. A value that a gradient still needs must not be overwritten:
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
//! # Tracing
//!
//! [`trace`] runs a function once and records it as a program that computes the same results, bit by bit.

mod api;
mod engine;
mod gradient;
mod history;
mod missing;
mod prepared;
mod queue;
mod rule;
mod trace;

pub use api::{GradOptions, apply, backward_with, eager, eager_with_ops, eager_with_threads, grad};
/// The trait of user-defined functions, and the result of [`Expr::hook`](autobwd_core::Expr::hook).
pub use autobwd_core::graph_builder::{Function, HookId};
pub use history::{History, history};
pub use missing::missing;
#[doc(hidden)]
pub use prepared::{prepare, run};
pub use queue::{Queue, QueueEntry};
pub use trace::{Trace, trace};
