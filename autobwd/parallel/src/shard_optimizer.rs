//! Optimizer state in parts, one on each rank.

use rustc_hash::FxHashMap;

use autobwd_core::{
    __private::internals::*,
    Arg, Builder, Dims, Error, ErrorKind, Expr, New, OpDesc, OpInfoMap, Program, Result, VarDesc, VarKind,
    emit,
    operators::{Assign, Concat, FillConstant, Reshape2, Slice},
    verify::require_valid,
};

use crate::{
    CAllgather, CReducescatter,
    data_parallel::{nranks, sum_over_ranks},
    gradients::{ParameterGradient, divide, find},
    startup::start,
};

/// Parameters with fewer elements a rank are updated as a whole on every rank: their state costs less than a message.
const SMALLEST_SHARD: usize = 64;

/// A training step that keeps optimizer state in parts.
#[derive(Clone, Debug)]
pub struct ShardedOptimizer {
    /// The step.
    pub step: Program,
    original: Program,
    startup: Program,
    ranks: usize,
    shards: Vec<Shard>,
}

/// A value that is divided: every rank keeps a part.
#[derive(Clone, Debug)]
struct Shard {
    whole: String,
    part: String,
    /// Elements of a part.
    len: usize,
    /// Whether the whole value is also kept, as for a parameter.
    keeps_whole: bool,
}

/// As [`data_parallel`](crate::data_parallel), with the state of the optimizer divided among the ranks (ZeRO stage 1;
/// Rajbhandari et al., 2020): each rank updates its part of every parameter, and gathers the others.
///
/// Takes the startup program as well, since it makes the state. A gradient is summed in parts
/// ([`CReducescatter`]), the update applied to part `w@SHARD` with state such as `w.moment1@SHARD`, and `w` joined from
/// the parts ([`CAllgather`]). State is flat and padded to `ranks` parts of one length. Results are bit-identical
/// to [`data_parallel`](crate::data_parallel).
///
/// ```
/// use autobwd::{Builder, DType, parallel::shard_optimizer};
/// use autobwd_ops::{Math, nn::Linear, optim::{Adam, Optimizer}};
///
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 100]);
/// let loss = Linear::builder(&net, 100, 100).build().forward(&x).square().mean();
/// Adam::new(0.01).minimize(&loss)?.complete()?;
/// let sharded = shard_optimizer(&net.program()?, &net.startup().program()?, 4, 1 << 20)?;
/// let moment = sharded.step.find("linear_0.w.moment1@SHARD").map(|v| &sharded.step.root().vars.get(&v).unwrap().dims);
/// assert_eq!(moment.unwrap().to_string(), "[2500]");
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// # Errors
/// As [`data_parallel`](crate::data_parallel). A gradient that something else than the update reads (clipping by the
/// norm of all gradients needs them whole); an update that uses a parameter as a whole, as LAMB does.
pub fn shard_optimizer(
    program: &impl AsRef<Program>,
    startup: &impl AsRef<Program>,
    ranks: usize,
    bucket_bytes: usize,
) -> Result<ShardedOptimizer> {
    let (original, ops, nranks) = (program.as_ref(), OpInfoMap::linked()?, nranks(ranks)?);
    require_valid(ops, original)?;
    let mut step = original.clone();
    let elements = |gradient: &ParameterGradient| gradient.bytes / gradient.dtype.size();
    let large = |gradient: &ParameterGradient| {
        gradient.kind == VarKind::Tensor && elements(gradient) >= ranks * SMALLEST_SHARD
    };
    let (sharded, whole): (Vec<_>, Vec<_>) = find(&step)?.into_iter().partition(large);
    if let Some(gradient) = sharded.iter().find(|gradient| elements(gradient) > i32::MAX as usize - ranks) {
        let text = format!("`{}` has too many elements to be divided", step.name(gradient.parameter));
        return Err(Error::new(ErrorKind::Program, text));
    }
    divide(&mut step, ranks)?;

    let mut updates = vec![];
    for gradient in sharded {
        let update = take_update(ops, &mut step, &gradient)?;
        updates.push((elements(&gradient).div_ceil(ranks), gradient, update));
    }
    sum_over_ranks(&mut step, whole, nranks, bucket_bytes);
    let mut sharded = ShardedOptimizer {
        step: Program::new(),
        original: original.clone(),
        startup: startup.as_ref().clone(),
        ranks,
        shards: vec![],
    };
    let net = Builder::new();
    net.set_program(step);
    for (len, gradient, update) in updates {
        sharded.update(&net, nranks, len, &gradient, update)?;
    }
    let mut step = net.program()?.clone();
    for shard in sharded.shards.iter().filter(|shard| !shard.keeps_whole) {
        if let Some(var) = step.find(&shard.whole) {
            step.root_mut().vars.remove(&var);
        }
    }
    require_valid(ops, &step)?;
    Ok(ShardedOptimizer { step, ..sharded })
}

impl ShardedOptimizer {
    /// The program that starts the run on one rank, in place of the model's startup program: initialises everything,
    /// gives all ranks the values of rank 0, as [`startup`](crate::startup) does, and takes the parts of this rank.
    ///
    /// # Errors
    /// A rank that the step is not made for.
    pub fn startup(&self, rank: usize) -> Result<Program> {
        if rank >= self.ranks {
            let text = format!("the step is made for {} ranks, so there is no rank {rank}", self.ranks);
            return Err(Error::new(ErrorKind::Rank, text));
        }
        let mut program = self.startup.clone();
        let kept: Vec<_> = self.startup.root().vars.iter().filter(|(_, desc)| desc.persistable).collect();
        for (var, desc) in kept {
            let Some(value) = self.original.find(self.startup.name(*var)) else { continue };
            let ops = start(&self.original, value, desc, *var, rank)?;
            program.root_mut().ops.extend(ops);
        }
        let net = Builder::new();
        net.set_program(program);
        for shard in &self.shards {
            let (whole, len) = (net.expr(&shard.whole), shard.len);
            let meta = whole.check()?.meta();
            let [start, end] = [rank * len, (rank + 1) * len].map(|at| i32::try_from(at).unwrap_or(i32::MAX));
            let flat = padded(&whole, len * self.ranks);
            let bounds = Slice {
                axes: vec![0],
                starts: vec![start],
                ends: vec![end],
                ..Slice::of((&flat).into(), New)
            };
            let part = emit(bounds).out;
            let var = net.edit(|program| {
                let var = program.var(&shard.part);
                let desc = VarDesc { persistable: true, ..VarDesc::data(meta.dtype, Dims::from([len])) };
                program.root_mut().vars.insert(var, desc);
                if let Some(whole) = program.find(&shard.whole).filter(|_| !shard.keeps_whole)
                    && let Some(desc) = program.root_mut().vars.get_mut(&whole)
                {
                    desc.persistable = false;
                }
                Ok(var)
            })?;
            emit(Assign { x: (&part).into(), out: Arg::from(&net.existing(var)) }).out.check()?;
        }
        Ok(net.program()?.clone())
    }

    /// Appends the update of one parameter, in parts.
    fn update(
        &mut self,
        net: &Builder,
        nranks: i32,
        len: usize,
        gradient: &ParameterGradient,
        mut update: OpDesc,
    ) -> Result<()> {
        let parameter = net.existing(gradient.parameter);
        let dims = parameter.dims();
        let elements = dims.numel().get().unwrap_or(0);
        let flat = padded(&net.existing(gradient.gradient), len * self.ranks);
        let sum = CReducescatter { x: (&flat).into(), out: New, nranks, ring_id: 0, use_calc_stream: false };
        let sum = emit(sum).out;
        let sum = sum.check()?.clone();
        let parts = net.edit(|program| {
            let sum = program.expect_var(&sum.name())?;
            let mut parts = FxHashMap::from_iter([(gradient.gradient, sum)]);
            for var in update.inputs.args().collect::<Vec<_>>() {
                let Some(desc) = program.root().vars.get(&var).cloned() else { continue };
                if desc.dims != dims || parts.contains_key(&var) {
                    continue;
                }
                let whole = program.name(var).to_string();
                if !desc.persistable {
                    let text = format!("`{}` reads `{whole}`, which the step computes for all elements; optimizer state cannot be divided among ranks", update.ty);
                    return Err(Error::new(ErrorKind::Program, text));
                }
                let part = format!("{whole}@SHARD");
                let own = program.var(&part);
                let desc = VarDesc { dims: Dims::from([len]), parameter: false, gradient_of: None, ..desc };
                program.root_mut().vars.insert(own, VarDesc { stop_gradient: true, ..desc });
                parts.insert(var, own);
                self.shards.push(Shard { whole, part, len, keeps_whole: var == gradient.parameter });
            }
            for var in update.inputs.args_mut().chain(update.outputs.args_mut()) {
                *var = parts.get(var).copied().unwrap_or(*var);
            }
            program.root_mut().ops.push(update);
            Ok(parts)
        })?;
        let part = parts.get(&gradient.parameter).copied();
        let part =
            net.existing(part.ok_or_else(|| Error::internal("an update that does not read its parameter"))?);
        let all =
            emit(CAllgather { x: (&part).into(), out: New, nranks, ring_id: 0, use_calc_stream: false }).out;
        let end = i32::try_from(elements).unwrap_or(i32::MAX);
        let bounds =
            Slice { axes: vec![0], starts: vec![0], ends: vec![end], ..Slice::of((&all).into(), New) };
        let joined = emit(bounds).out;
        let joined = emit(Reshape2::of((&joined).into(), New, New, shape(&dims))).out;
        emit(Assign { x: (&joined).into(), out: Arg::from(&parameter) }).out.check().map(drop)
    }
}

fn shape(dims: &Dims) -> Vec<i32> {
    dims.iter().map(|dim| i32::try_from(dim.wire()).unwrap_or(-1)).collect()
}

/// A value as one dimension of `len` elements, with zeros at the end.
fn padded(x: &Expr, len: usize) -> Expr {
    let elements = x.dims().numel().get().unwrap_or(0);
    let flat = emit(Reshape2::of(x.into(), New, New, vec![-1])).out;
    if elements == len {
        return flat;
    }
    let (dtype, shape) = (x.dtype(), vec![(len - elements) as i64]);
    let zeros = x.builder().emit(FillConstant { shape, dtype, ..FillConstant::of(New) }).out;
    emit(Concat { x: vec![(&flat).into(), (&zeros).into()], axis_tensor: None, out: New, axis: 0 }).out
}

/// Takes the update of a parameter out of the step.
fn take_update(infos: &OpInfoMap, step: &mut Program, gradient: &ParameterGradient) -> Result<OpDesc> {
    let reads = |op: &OpDesc| op.reads().any(|v| v == gradient.gradient);
    let ops = &step.root().ops;
    let mut readers = (gradient.last + 1..ops.len()).filter(|i| reads(&ops[*i]));
    let (first, second) = (readers.next(), readers.next());
    let update = first.filter(|i| second.is_none() && ops[*i].writes().any(|v| v == gradient.parameter));
    let refuse = |op: &OpDesc, why: &str| {
        let (ty, gradient) = (&op.ty, step.name(gradient.gradient));
        let text =
            format!("`{gradient}` is read by `{ty}`, {why}: optimizer state cannot be divided among ranks");
        Err(Error::new(ErrorKind::Program, text))
    };
    match (update, first) {
        (Some(update), _) if infos.get(&ops[update].ty)?.is_elementwise_update() => {
            Ok(step.root_mut().ops.remove(update))
        }
        (Some(update), _) => refuse(&ops[update], "which is not declared elementwise"),
        (None, Some(reader)) => refuse(&ops[reader], "not by one update of its parameter alone"),
        (None, None) => {
            let text = format!("no update reads `{}`", step.name(gradient.gradient));
            Err(Error::new(ErrorKind::Program, text))
        }
    }
}
