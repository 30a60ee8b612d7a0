//! Master weights: float32 copies of 16-bit parameters, which are updated in their place.

use autobwd::{DType, Expr, Result, VarDesc, emit, operators::Cast};

use super::Optimizer;
use crate::Math;

/// An optimizer that updates a float32 copy of each 16-bit parameter, and rounds the parameter from it; made by
/// [`Optimizer::master_weights`]. Other parameters are updated themselves.
///
/// ```
/// # use autobwd::{Builder, DType, Executor, Scope};
/// # use autobwd_ops::{Init, Math};
/// use autobwd_ops::optim::{Optimizer, Sgd};
/// let net = Builder::new();
/// let w = net.parameter("w", DType::BF16, &[1], |w| Init::Constant(1.0).emit(w, 0));
/// Sgd { rate: 0.001 }.master_weights().minimize(&w.sum(&[]))?.complete()?;
/// let (mut executor, mut scope) = (Executor::new(), Scope::new());
/// executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
/// for _ in 0..8 {
///     executor.run(&net.program()?, &mut scope, &[], &[])?;
/// }
/// // By itself, 1 - 0.001 is 1 in bfloat16.
/// assert!((scope.get("w.master")?.item()? - 0.992).abs() < 1e-6);
/// assert_eq!(scope.get("w")?.item()?, 0.9921875);
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// The copy, `w.master`, starts as the parameter: where a file has the parameter, the startup program reads it from the
/// scope.
#[derive(Clone, Debug)]
pub struct MasterWeights<O> {
    /// The optimizer.
    pub optimizer: O,
}

impl<O: Optimizer> Optimizer for MasterWeights<O> {
    fn inner(&self) -> Option<&dyn Optimizer> {
        Some(&self.optimizer)
    }

    fn learning_rate(&self) -> f32 {
        self.optimizer.learning_rate()
    }

    fn update_dtype(&self, parameter: &Expr) -> DType {
        self.optimizer.update_dtype(parameter).arithmetic()
    }

    #[track_caller]
    fn update(&self, parameter: &Expr, gradient: &Expr, learning_rate: &Expr) -> Result<()> {
        let dtype = parameter.dtype();
        if !dtype.is_half() {
            return self.optimizer.update(parameter, gradient, learning_rate);
        }
        let master = master(parameter)?;
        self.optimizer.update(&master, &gradient.cast(master.dtype()), learning_rate)?;
        let (in_dtype, out_dtype) = (master.dtype(), dtype);
        emit(Cast { x: (&master).into(), out: parameter.into(), in_dtype, out_dtype }).out.check().map(drop)
    }
}

/// The float32 copy of a parameter.
fn master(parameter: &Expr) -> Result<Expr> {
    let (net, meta) = (parameter.builder(), parameter.meta());
    let (name, own) = (net.scoped(&format!("{}.master", parameter.name())), parameter.name());
    if net.is_eager() {
        let known = net.expr(&name);
        if known.check().is_ok() {
            return Ok(known);
        }
    }
    let dims = meta.dims.known().unwrap_or_default();
    let (in_dtype, out_dtype) = (meta.dtype, meta.dtype.arithmetic());
    if !net.is_eager() {
        // A parameter whose values come from a file has no initialiser.
        net.startup().edit(|program| {
            let var = program.var(&own);
            if !program.root().vars.contains_key(&var) {
                program.root_mut().vars.insert(var, VarDesc::parameter(meta.dtype, meta.dims.clone()));
            }
            Ok(())
        })?;
    }
    let copied = |copy: &Expr| {
        let x = if net.is_eager() { parameter.clone() } else { copy.builder().expr(&own) };
        emit(Cast { x: (&x).into(), out: copy.into(), in_dtype, out_dtype }).out
    };
    net.persistable(&name, out_dtype, &dims, copied).check().cloned()
}
