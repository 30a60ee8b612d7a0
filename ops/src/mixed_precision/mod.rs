//! Mixed precision: a model computes in 16 bits where that is fast, and in float32 where it needs the digits.
//!
//! [`mixed_precision`] is a pass over programs that inserts casts, by lists of operators ([`PrecisionLists`]).
//! Optimizers apply it before they append the backward pass
//! ([`Optimizer::mixed_precision`](crate::optim::Optimizer::mixed_precision)).

mod analysis;
mod lists;
mod master_weights;
mod rewrite;

use autobwd::{DType, Error, ErrorKind, OpInfoMap, Program, Result, program::Origin};

pub use lists::PrecisionLists;
pub use master_weights::lower_master_weights;
pub(crate) use rewrite::new_var;

/// The program in mixed precision: operators compute in `dtype`, float16 or bfloat16, or in float32, and casts connect
/// them.
///
/// By default, products, convolutions and attention compute in 16 bits. Arithmetic, activations, pooling, dropout and
/// operators that move data compute in 16 bits if an input has 16 bits and no input comes from an operator that computes
/// in float32; so does batch normalisation, whose scale, bias and statistics stay float32. All others compute in float32:
/// losses, reductions, other norms, softmax, exponentials, powers, tables of embeddings. `lists` changes that by the names
/// of operators. An operator whose shape rule needs float32 computes in float32.
///
/// Parameters stay float32: they are the master weights, and their gradients and the optimizer's state are float32. A
/// parameter is cast once a run, however many operators read its copy `w.cast_bf16`, also if they are in the body of a
/// loop. A variable keeps its name and its dtype if an operator reads it in float32, if none reads it (a loss, or another
/// result), if it is kept or carried by a loop, or if it is in the program's signature; all others that operators
/// compute in 16 bits become 16-bit variables.
///
/// The pass comes before the backward pass, whose gradients of casts are casts. Passes for recomputation, accumulation
/// and several ranks come after it. Float16 has a small range: gradients vanish unless the loss is
/// [scaled](crate::optim::LossScaling).
///
/// ```
/// use autobwd::{Builder, DType};
/// use autobwd_ops::{Init, Math, mixed_precision::{PrecisionLists, mixed_precision}};
///
/// let net = Builder::new();
/// let w = net.parameter("w", DType::F32, &[4, 3], |w| Init::Constant(0.5).emit(w, 0));
/// net.input("x", DType::F32, &[-1, 4]).matmul(&w).relu().mean();
/// let program = mixed_precision(&*net.program()?, DType::BF16, &PrecisionLists::default())?;
/// let text = program.to_string();
/// for operator in [
///     "x.cast_bf16 = cast(X=x, in_dtype=5, out_dtype=22)",
///     "w.cast_bf16 = cast(X=w, in_dtype=5, out_dtype=22)",
///     "matmul_v2_0 = matmul_v2(X=x.cast_bf16, Y=w.cast_bf16, trans_x=false, trans_y=false)",
///     "relu_0.cast_bf16 = relu(X=matmul_v2_0)",
///     "relu_0 = cast(X=relu_0.cast_bf16, in_dtype=22, out_dtype=5)",
///     "mean_0 = mean(X=relu_0)",
/// ] {
///     assert!(text.contains(operator));
/// }
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// A program that is already in this mixed precision does not change.
///
/// # Errors
/// An invalid program; one with a backward pass; another dtype; a list with an unknown operator, one that runs a block,
/// or one that is in two lists; a listed operator that does not take 16 bits; an unknown variable.
pub fn mixed_precision(
    program: &impl AsRef<Program>,
    dtype: DType,
    lists: &PrecisionLists,
) -> Result<Program> {
    let (program, ops) = (program.as_ref(), OpInfoMap::linked()?);
    if !dtype.is_half() {
        let text = format!("mixed precision is in float16 or bfloat16, not in {dtype}");
        return Err(Error::new(ErrorKind::DType, text));
    }
    ops.verify(program)?;
    if program.root().ops.iter().any(|op| op.origin != Origin::Model) {
        let text = "the program has a backward pass already: mixed precision comes before it";
        return Err(Error::new(ErrorKind::Program, text));
    }
    let decisions = analysis::decide(ops, program, dtype, lists)?;
    let mut mixed = program.clone();
    rewrite::rewrite(&mut mixed, dtype, &decisions);
    ops.verify(&mixed)?;
    Ok(mixed)
}
