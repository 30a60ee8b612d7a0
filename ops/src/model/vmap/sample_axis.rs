//! The program for all samples while it is written.

use std::collections::{HashMap, HashSet};

use autobwd::{
    __private::{FormulaSpace, broadcast_axis},
    Attr, DType, Error, ErrorKind, Meta, OpDesc, OpInfoMap, Program, Result, VarDesc,
    op::OpInfo,
    operators::{FillConstant, Reshape2, Slice, Stack},
    program::{Var, VarKind},
    tensor::Dim,
};

use super::VectorizedProgram;
use crate::shape::{ExpandV2, Transpose2};

/// Writes the program for all samples: values of one sample become `[samples, ..]`, unless they are the same for all.
pub(super) struct SampleAxis<'a> {
    pub(super) ops: &'a OpInfoMap,
    /// The program for one sample.
    pub(super) single: &'a Program,
    /// The number of samples.
    pub(super) count: usize,
    program: Program,
    /// Variables of one sample that something reads.
    wanted: HashSet<Var>,
    /// By the variable of one sample, the variable of all samples.
    all: HashMap<Var, Var>,
}

impl<'a> SampleAxis<'a> {
    pub(super) fn new(
        single: &'a Program,
        ops: &'a OpInfoMap,
        (count, sampled): (usize, &HashSet<Var>),
        fetched: &[Var],
    ) -> Result<SampleAxis<'a>> {
        let wanted =
            single.root().ops.iter().flat_map(OpDesc::reads).chain(fetched.iter().copied()).collect();
        let mut program = single.clone();
        program.root_mut().ops.clear();
        let mut work = SampleAxis { ops, single, count, program, wanted, all: HashMap::new() };
        for var in sampled {
            // Feeds that no fetch needs are not declared.
            if single.root().vars.contains_key(var) {
                let dims = work.in_front(&work.dims(*var)?);
                if let Some(desc) = work.program.root_mut().vars.get_mut(var) {
                    desc.dims = dims.into_iter().map(Dim::from).collect();
                }
                work.all.insert(*var, *var);
            }
        }
        Ok(work)
    }

    /// The program, with these fetches.
    pub(super) fn finish(mut self, ops: &OpInfoMap, fetched: &[Var]) -> Result<VectorizedProgram> {
        let root = self.program.root();
        let used: HashSet<Var> = root.ops.iter().flat_map(|op| op.reads().chain(op.writes())).collect();
        let unused = |var: &Var| !used.contains(var) && !fetched.contains(var);
        let unused: Vec<Var> = root.vars.keys().copied().filter(unused).collect();
        for var in unused {
            self.program.root_mut().vars.remove(&var);
        }
        ops.verify(&self.program)?;
        let fetches = fetched.iter().map(|var| self.program.name(*var).to_string()).collect();
        Ok(VectorizedProgram { program: self.program, fetches })
    }

    /// Whether a value of one sample depends on the sample.
    pub(super) fn is_sampled(&self, var: Var) -> bool {
        self.all.contains_key(&var)
    }

    /// Whether the program keeps a value between runs.
    pub(super) fn is_kept_value(&self, var: Var) -> bool {
        self.single.root().vars.get(&var).is_some_and(|desc| desc.persistable)
    }

    /// Whether a value is a tensor array or row-sparse.
    pub(super) fn is_not_dense(&self, var: Var) -> bool {
        self.single
            .root()
            .vars
            .get(&var)
            .is_some_and(|desc| matches!(desc.kind, VarKind::TensorArray | VarKind::SelectedRows))
    }

    /// The dimensions of a value of one sample.
    pub(super) fn dims(&self, var: Var) -> Result<Vec<usize>> {
        let unknown = || {
            let text = format!("the dimensions of `{}` are unknown", self.single.name(var));
            Error::new(ErrorKind::Shape, text)
        };
        let desc = self.single.root().vars.get(&var).ok_or_else(unknown)?;
        desc.dims.iter().map(|dim| dim.get()).collect::<Option<_>>().ok_or_else(unknown)
    }

    fn in_front(&self, dims: &[usize]) -> Vec<usize> {
        [&[self.count], dims].concat()
    }

    /// Copies an operator that depends on no sample.
    pub(super) fn keep(&mut self, op: &OpDesc) -> Result<()> {
        // It may overwrite a value that depended on a sample.
        op.writes().for_each(|var| _ = self.all.remove(&var));
        self.program.root_mut().ops.push(op.clone());
        Ok(())
    }

    /// Appends an operator, whose outputs are declared by its shape rule.
    pub(super) fn push(&mut self, op: impl Into<OpDesc>) -> Result<()> {
        let op = op.into();
        let mut metas: Vec<(Var, Meta)> = vec![];
        let root = self.program.root();
        let of = |var: Var| {
            let known = root.vars.get(&var).map(VarDesc::meta);
            known.ok_or_else(|| Error::new(ErrorKind::UnknownVar, "an output without elements is read"))
        };
        self.ops.get(&op.ty)?.infer(&op, &of, &mut |var, meta| metas.push((var, meta)))?;
        let root = self.program.root_mut();
        root.vars.extend(metas.into_iter().map(|(var, meta)| (var, VarDesc::of(meta))));
        root.ops.push(op);
        Ok(())
    }

    /// A new variable.
    pub(super) fn fresh(&mut self) -> Var {
        self.program.fresh("samples")
    }

    /// Zeros like `x` in dimensions without elements, which reshaping and broadcasting read as dimensions to be kept.
    fn empty(&mut self, x: Var, dims: &[usize]) -> Result<Var> {
        let (out, shape) = (self.fresh(), dims.iter().map(|dim| *dim as i64).collect());
        let dtype = self.program.root().vars.get(&x).map_or(DType::F32, |desc| desc.dtype);
        self.push(FillConstant { shape, dtype, ..FillConstant::of(out) })?;
        Ok(out)
    }

    /// Reshapes a value of all samples.
    pub(super) fn reshape(&mut self, x: Var, dims: &[usize]) -> Result<Var> {
        if dims.contains(&0) {
            return self.empty(x, dims);
        }
        let (out, x_shape, shape) = (self.fresh(), self.fresh(), attr_of(dims)?);
        self.push(Reshape2::of(x, out, x_shape, shape))?;
        Ok(out)
    }

    /// Broadcasts a value of all samples.
    pub(super) fn expand(&mut self, x: Var, dims: &[usize]) -> Result<Var> {
        if dims.contains(&0) {
            return self.empty(x, dims);
        }
        let (out, shape) = (self.fresh(), attr_of(dims)?);
        self.push(ExpandV2 { x, shape_input: None, expand_shapes_tensor: vec![], out, shape })?;
        Ok(out)
    }

    /// Permutes the axes of a value of all samples.
    pub(super) fn transpose(&mut self, x: Var, axes: &[usize]) -> Result<Var> {
        let (out, x_shape, axis) = (self.fresh(), self.fresh(), attr_of(axes)?);
        self.push(Transpose2 { x, out, x_shape, axis })?;
        Ok(out)
    }

    /// A value with other dimensions of a sample, and an axis of samples, of size 1 if all samples share the value.
    pub(super) fn reshaped(&mut self, var: Var, dims: &[usize]) -> Result<Var> {
        match self.all.get(&var) {
            Some(all) => self.reshape(*all, &self.in_front(dims)),
            None => self.reshape(var, &[&[1], dims].concat()),
        }
    }

    /// A value with an axis of samples: the value of each sample, or as many copies of a value that is the same for all.
    pub(super) fn sampled(&mut self, var: Var) -> Result<Var> {
        self.sampled_as(var, &self.dims(var)?)
    }

    /// The same with other dimensions of a sample.
    pub(super) fn sampled_as(&mut self, var: Var, dims: &[usize]) -> Result<Var> {
        match self.all.get(&var) {
            Some(all) if self.dims(var)? == dims => Ok(*all),
            Some(_) => self.reshaped(var, dims),
            None => {
                let one = self.reshaped(var, dims)?;
                self.expand(one, &self.in_front(dims))
            }
        }
    }

    /// The variable of all samples, for a value that differs between samples, or else the variable itself.
    pub(super) fn value(&self, var: Var) -> Var {
        self.all.get(&var).copied().unwrap_or(var)
    }

    /// Sets the value of all samples: `value` has the elements of `[samples, ..]`, perhaps in other dimensions.
    pub(super) fn set(&mut self, var: Var, value: Var) -> Result<()> {
        if !self.wanted.contains(&var) {
            return Ok(());
        }
        let dims: Vec<Dim> = self.in_front(&self.dims(var)?).into_iter().map(Dim::from).collect();
        let fits = self.program.root().vars.get(&value).is_some_and(|desc| *desc.dims == *dims);
        let value = if fits { value } else { self.reshape(value, &self.in_front(&self.dims(var)?))? };
        self.all.insert(var, value);
        Ok(())
    }

    /// An operator with other inputs, and new outputs. Returns the operator, and pairs of an output of `op` and the new
    /// output in its place.
    pub(super) fn rewired(
        &mut self,
        op: &OpDesc,
        mut input: impl FnMut(&mut Self, Var) -> Result<Var>,
    ) -> Result<(OpDesc, Vec<(Var, Var)>)> {
        let (mut desc, mut outputs) = (op.clone(), vec![]);
        for var in desc.inputs.args_mut().filter(|var| **var != Var::EMPTY) {
            *var = input(self, *var)?;
        }
        for var in desc.outputs.args_mut().filter(|var| **var != Var::EMPTY) {
            let own = self.fresh();
            outputs.push((*var, own));
            *var = own;
        }
        Ok((desc, outputs))
    }

    /// Appends an operator with other inputs, whose outputs are the values of all samples.
    pub(super) fn push_rewired(
        &mut self,
        op: &OpDesc,
        input: impl FnMut(&mut Self, Var) -> Result<Var>,
    ) -> Result<()> {
        let (desc, outputs) = self.rewired(op, input)?;
        self.push(desc)?;
        outputs.into_iter().try_for_each(|(var, own)| self.set(var, own))
    }

    /// An operator with a formula: its operands get the full rank, after the axis of samples.
    pub(super) fn pointwise(&mut self, info: &OpInfo, op: &OpDesc) -> Result<()> {
        let (schema, vars) = (info.schema(), &self.single.root().vars);
        let operands = op.inputs.args().chain(op.outputs.args());
        let types: Vec<Meta> = operands.filter_map(|var| vars.get(&var)).map(VarDesc::meta).collect();
        let space = FormulaSpace::of(schema, op, &types)?;
        // A gradient does not broadcast: it has the dimensions of its operand.
        let has_axis = broadcast_axis(schema, op).is_some();
        let broadcasts = has_axis && schema.outputs.iter().all(|output| output.like.is_none());
        let mut op = op.clone();
        if has_axis {
            op.attrs.set("axis", Attr::I32(-1));
        }
        self.push_rewired(&op, |work, var| {
            let dims = space.align(&work.dims(var)?, 1)?;
            if broadcasts { work.reshaped(var, &dims) } else { work.sampled_as(var, &dims) }
        })
    }

    /// The value of one sample.
    fn of_sample(&mut self, all: Var, sample: usize) -> Result<Var> {
        let out = self.fresh();
        let (axes, starts, ends) = (vec![0], attr_of(&[sample])?, attr_of(&[sample + 1])?);
        self.push(Slice { axes, starts, ends, decrease_axis: vec![0], ..Slice::of(all, out) })?;
        Ok(out)
    }

    /// An operator for each sample by itself.
    pub(super) fn each_sample(&mut self, op: &OpDesc) -> Result<()> {
        let mut found: Vec<(Var, Vec<Var>)> = vec![];
        for sample in 0..self.count {
            let (desc, outputs) = self.rewired(op, |work, var| match work.all.get(&var).copied() {
                None => Ok(var),
                Some(all) => work.of_sample(all, sample),
            })?;
            self.push(desc)?;
            found.resize_with(outputs.len(), || (Var::EMPTY, vec![]));
            for ((var, own), (of, parts)) in outputs.into_iter().zip(&mut found) {
                *of = var;
                parts.push(own);
            }
        }
        found.retain(|(var, _)| self.wanted.contains(var));
        for (var, parts) in found {
            let out = self.fresh();
            self.push(Stack { x: parts, y: out, axis: 0 })?;
            self.set(var, out)?;
        }
        Ok(())
    }
}

/// Sizes or axes as an attribute.
pub(super) fn attr_of(sizes: &[usize]) -> Result<Vec<i32>> {
    let too_large =
        |_| Error::new(ErrorKind::Shape, format!("an array with dimensions {sizes:?} is too large"));
    sizes.iter().map(|size| i32::try_from(*size)).collect::<Result<_, _>>().map_err(too_large)
}
