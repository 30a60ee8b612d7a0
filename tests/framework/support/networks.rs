//! Networks with data in the scope.

use autobwd::{Backward, Builder, DType, Executor, Expr, Result, Scope, Tensor, append_backward};
use autobwd_ops::Math;

/// A float64 network with some variables in the scope.
pub(crate) struct Net {
    pub(crate) net: Builder,
    pub(crate) scope: Scope,
}

impl Net {
    pub(crate) fn new() -> Net {
        Net { net: Builder::new(), scope: Scope::new() }
    }

    /// Unordered numbers between -1 and 1.
    pub(crate) fn data(&mut self, name: &str, dims: &[usize]) -> Result<Expr> {
        let numbers = (1..=dims.iter().product()).map(|i| (i as f64 * 1.37).sin()).collect();
        self.scope.set(name, Tensor::from_vec(dims, numbers)?);
        Ok(self.net.persistable(name, DType::F64, dims, Expr::clone))
    }

    /// Values after the start-up program and one run.
    pub(crate) fn run(&mut self, threads: usize, fetches: &[&Expr]) -> Result<Vec<Vec<f64>>> {
        let mut executor = Executor::with_threads(threads);
        executor.run(&self.net.startup().program()?, &mut self.scope, &[], &[])?;
        let names: Vec<_> = fetches.iter().map(|fetch| fetch.name()).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let values = executor.run(&self.net.program()?, &mut self.scope, &[], &names)?;
        Ok(values.iter().map(Tensor::to_f64s).collect())
    }

    /// Gradients of `loss` for all parameters, and those of the sum of their squares.
    pub(crate) fn gradients(&self, loss: &Expr) -> Result<Vec<Expr>> {
        let of = |loss: &Expr| -> Result<Vec<Expr>> {
            let name = loss.name();
            let found = self.net.edit(|program| append_backward(program, &name, &Backward::default()))?;
            Ok(found.pairs.iter().map(|(_, gradient)| self.net.existing(*gradient)).collect())
        };
        let mut gradients = of(loss)?;
        let mut squares = gradients[0].square().sum(&[]);
        for gradient in &gradients[1..] {
            squares = &squares + gradient.square().sum(&[]);
        }
        gradients.extend(of(&squares)?);
        Ok(gradients)
    }
}
