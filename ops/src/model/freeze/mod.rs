//! Programs whose parameters are constants: what only depends on them is computed once.
//!
//! Passes, in call order: [`constants`] computes values of parameters alone; [`branches`] adds filters of parallel
//! convolutions; [`convolutions`] finds convolutions with the normalisation, the scale, the bias, the residual and the
//! function after them; [`blocks`] rewrites them, and what is between them, for images with
//! [channels in blocks](crate::channel_blocks).

mod blocks;
mod branches;
mod constants;
mod convolutions;
mod filters;
mod linear;

use std::collections::HashMap;

use autobwd::{
    Error, ErrorKind, OpInfoMap, Program, Result, Scope, Tensor, VarDesc, program::Var, tensor::Dim,
};

use super::{Model, infer_shapes};
use crate::norm::BatchNormOp;

impl Model {
    /// Prepares a model that is only run: its parameters become constants.
    ///
    /// What depends on parameters alone is computed once. Batch normalisations, scales and additions become part of the
    /// convolution before them, and so do a residual and a function after it, and the scales of channels before it that
    /// squeeze and excitation computes. Convolutions of the same images whose results are added become one. Filters are packed for the convolution, and
    /// images keep their [channels in blocks](crate::channel_blocks) from one convolution to the next.
    ///
    /// The bits of results change by this step, once: they are the same for every number of threads and every set of
    /// instructions. Convolutions by Winograd's algorithm have two to three times the rounding error of sums of products.
    ///
    /// Values that the frozen program does not read are gone from the scope, and variables within the program may be. The
    /// model can still be saved, but its parameters have other names and shapes than before.
    ///
    /// ```
    /// use autobwd::{Builder, DType, Executor, Scope, Tensor};
    /// use autobwd_ops::{Math, Model, nn::{BatchNorm, Conv2d}};
    /// let net = Builder::new();
    /// let x = net.input("x", DType::F32, &[-1, 3, -1, -1]);
    /// let y = Conv2d::builder(&net, 3, 20, 3).padding(1).build().forward(&x);
    /// let y = BatchNorm::builder(&net, 20).build().forward(&y).relu();
    /// let (mut executor, mut scope) = (Executor::new(), Scope::new());
    /// executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    /// let mut model = Model::for_inference(&*net.program()?, &scope, &[&y.name()])?;
    /// let x = Tensor::from_vec([1, 3, 2, 2], (0..12).map(|i| i as f32).collect())?;
    /// let before = model.run(&mut executor, &[&x])?;
    ///
    /// model.freeze()?;
    /// // A convolution, and a conversion of its result.
    /// assert_eq!(model.program.root().ops.len(), 2);
    /// let after = model.run(&mut executor, &[&x])?;
    /// let pairs = before[0].slice::<f32>()?.iter().zip(after[0].slice::<f32>()?);
    /// assert!(pairs.into_iter().all(|(before, after)| (before - after).abs() < 1e-4));
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// # Errors
    /// An operator that writes a value of the scope, as updates of optimizers do: [`Model::for_inference`] removes them;
    /// inputs and outputs that are not declared. Then the model is unchanged.
    pub fn freeze(&mut self) -> Result<()> {
        if let Some((index, var)) = first_write(&self.program) {
            let (ty, name) = (&self.program.root().ops[index].ty, self.program.name(var));
            let text = format!(
                "a frozen program changes no value, but operator {index}, `{ty}`, writes `{name}`: `Model::for_inference` removes updates"
            );
            return Err(Error::new(ErrorKind::Program, text));
        }
        let mut frozen = Frozen { program: self.program.clone(), values: HashMap::new(), scope: &self.scope };
        let vars = |names: &[String]| -> Result<Vec<Var>> {
            names.iter().map(|name| self.program.expect_var(name)).collect()
        };
        let (fed, fetched) = (vars(&self.feeds)?, vars(&self.fetches)?);
        discard_statistics(&mut frozen.program);
        name_dims(&mut frozen.program, &self.feeds)?;
        constants::fold(&mut frozen, &fetched)?;
        infer_shapes(&mut frozen.program, OpInfoMap::linked()?);
        branches::merge(&mut frozen, &fetched)?;
        linear::pack(&mut frozen, &fetched)?;
        blocks::rewrite(&mut frozen, &fed, &fetched)?;
        let Frozen { mut program, mut values, .. } = frozen;
        infer_shapes(&mut program, OpInfoMap::linked()?);
        let mut scope = Scope::new();
        for (var, _) in program.root().vars.iter().filter(|(_, desc)| desc.persistable) {
            let name = program.name(*var);
            if let Some(value) = values.remove(var).or_else(|| self.scope.find(name).cloned()) {
                scope.set(name, value);
            }
        }
        (self.program, self.scope) = (program, scope);
        Ok(())
    }

    /// Whether a run changes a value of the scope, as updates of optimizers do: then the model cannot be frozen
    /// ([`Model::freeze`]).
    pub fn changes_values(&self) -> bool {
        first_write(&self.program).is_some()
    }
}

/// A program that is being frozen.
struct Frozen<'a> {
    program: Program,
    /// New constants.
    values: HashMap<Var, Tensor>,
    /// The parameters.
    scope: &'a Scope,
}

impl Frozen<'_> {
    /// A constant of the program.
    fn value(&self, var: Var) -> Option<&Tensor> {
        let kept = self.program.root().vars.get(&var).is_some_and(|desc| desc.persistable);
        let own = || self.scope.find(self.program.name(var)).filter(|_| kept);
        self.values.get(&var).or_else(own)
    }

    /// As [`value`](Frozen::value).
    ///
    /// # Errors
    /// It is none.
    fn expect(&self, var: Var) -> Result<&Tensor> {
        self.values.get(&var).map_or_else(|| self.scope.get(self.program.name(var)), Ok)
    }

    /// Adds a constant.
    fn constant(&mut self, name: &str, value: Tensor) -> Var {
        let var = self.program.fresh(name);
        self.declare_constant(var, value);
        var
    }

    /// Makes a constant of a variable.
    fn declare_constant(&mut self, var: Var, value: Tensor) {
        let meta = value.meta();
        let desc = VarDesc { persistable: true, ..VarDesc::new(meta.dtype, meta.dims) };
        self.program.root_mut().vars.insert(var, desc);
        self.values.insert(var, value);
    }
}

/// Redirects statistics that batch normalisation writes back unchanged to variables that nothing reads.
fn discard_statistics(program: &mut Program) {
    for index in 0..program.root().ops.len() {
        let Some(norm) = program.root().ops[index].as_op::<BatchNormOp>() else { continue };
        for (slot, var) in [("MeanOut", norm.mean_out), ("VarianceOut", norm.variance_out)] {
            let Some(desc) = program.root().vars.get(&var).filter(|desc| desc.persistable).cloned() else {
                continue;
            };
            let unread = program.fresh(&format!("{}@UNREAD", program.name(var)));
            program.root_mut().vars.insert(unread, VarDesc { persistable: false, ..desc });
            program.root_mut().ops[index].outputs.set(slot, [unread]);
        }
    }
}

/// Names the unknown dimensions of inputs, so that equal sizes are known to be equal.
fn name_dims(program: &mut Program, feeds: &[String]) -> Result<()> {
    for feed in feeds {
        let var = program.expect_var(feed)?;
        let Some(desc) = program.root_mut().vars.get_mut(&var) else { continue };
        for (axis, dim) in desc.dims.iter_mut().enumerate() {
            if dim.get().is_none() && !dim.is_named() {
                *dim = Dim::named(&format!("{feed}.{axis}"));
            }
        }
    }
    Ok(())
}

/// The first operator that changes a value of the scope, and that value. Batch normalisation in inference mode may name its
/// statistics as its results, since it does not change them.
fn first_write(program: &Program) -> Option<(usize, Var)> {
    let is_kept = |var: &Var| program.root().vars.get(var).is_some_and(|desc| desc.persistable);
    program.root().ops.iter().enumerate().find_map(|(index, op)| {
        let unchanged = op.as_op::<BatchNormOp>().filter(|norm| norm.is_test && !norm.trainable_statistics);
        let unchanged = unchanged.map_or([Var::EMPTY; 2], |norm| [norm.mean_out, norm.variance_out]);
        let written = op.writes().filter(is_kept).find(|var| !unchanged.contains(var));
        written.map(|var| (index, var))
    })
}
