//! Many expressions in one program, with fixed numbers as inputs.

use autobwd::{
    Builder, DType, Executor, Expr, Result, Scope, Tensor,
    backward::{GradientOptions, gradients},
};
use autobwd_benches::workload::numbers;
use autobwd_ops::Math;

use crate::{hashes::by_threads, parts::BitResult};

/// Expressions whose values are compared, and their inputs.
pub(crate) struct Collection {
    net: Builder,
    scope: Scope,
    /// Names of results, and of their variables.
    results: Vec<(String, String)>,
    /// Expressions that are differentiated, and their inputs.
    targets: Vec<String>,
    inputs: Vec<(String, Expr)>,
}

impl Collection {
    pub(crate) fn new() -> Collection {
        let (results, targets, inputs) = Default::default();
        Collection { net: Builder::new(), scope: Scope::new(), results, targets, inputs }
    }

    /// An input with this value.
    pub(crate) fn input(&mut self, value: Tensor) -> Expr {
        let name = format!("v{}", self.scope.len());
        let input = self.net.parameter(&name, value.dtype(), value.dims(), Expr::clone);
        self.scope.set(&name, value);
        input
    }

    /// An input with numbers of its own.
    pub(crate) fn numbers(&mut self, dtype: DType, dims: &[usize]) -> Result<Expr> {
        let seed = self.scope.len() as u32 + 1;
        let value = tensor(dtype, dims, numbers(seed, dims.iter().product(), 1.0))?;
        Ok(self.input(value))
    }

    /// Compares the value of an expression.
    pub(crate) fn add(&mut self, name: String, value: &Expr) {
        self.results.push((name, value.name()));
    }

    /// Compares the value of an expression, and the gradients of its square with respect to its inputs.
    pub(crate) fn differentiate(&mut self, name: String, value: &Expr, inputs: &[&Expr]) {
        self.targets.push(value.square().name());
        let named = inputs.iter().enumerate().map(|(k, x)| (format!("{name} gradient {k}"), (*x).clone()));
        self.inputs.extend(named);
        self.add(name, value);
    }

    /// The results on each executor.
    pub(crate) fn compare(mut self, executors: &[Executor]) -> Result<Vec<BitResult>> {
        if !self.targets.is_empty() {
            let targets: Vec<&str> = self.targets.iter().map(String::as_str).collect();
            let names: Vec<String> = self.inputs.iter().map(|(_, input)| input.name()).collect();
            let inputs: Vec<&str> = names.iter().map(String::as_str).collect();
            let found = self.net.edit(|program| {
                let built = gradients(program, &targets, &inputs, &GradientOptions::default())?;
                let of = |input: &&str| {
                    let gradient = built.of(program.expect_var(input)?);
                    Ok(gradient.map(|var| program.name(var).to_string()).unwrap_or_default())
                };
                inputs.iter().map(of).collect::<Result<Vec<_>>>()
            })?;
            let results = self.inputs.iter().zip(found).map(|((result, _), name)| (result.clone(), name));
            self.results.extend(results);
        }
        let found = executors.iter().map(|executor| self.run(executor)).collect::<Result<Vec<_>>>()?;
        by_threads("", executors, &found)
    }

    /// The results by name.
    pub(crate) fn run(&self, executor: &Executor) -> Result<Vec<(String, Tensor)>> {
        let (program, mut scope) = (self.net.program()?, self.scope.clone());
        let fetches: Vec<&str> = self.results.iter().map(|(_, variable)| variable.as_str()).collect();
        let mut session = executor.prepare(&program, &mut scope, &[], &fetches)?;
        session.run(&mut scope)?;
        let names = self.results.iter().map(|(name, _)| name.clone());
        names.zip(&fetches).map(|(name, variable)| Ok((name, session.fetch(variable)?))).collect()
    }
}

/// A tensor of these numbers, rounded to 16 bits if it has such.
pub(crate) fn tensor(dtype: DType, dims: &[usize], elements: Vec<f32>) -> Result<Tensor> {
    Tensor::from_f64s(dtype, dims, &elements.into_iter().map(f64::from).collect::<Vec<_>>())
}
