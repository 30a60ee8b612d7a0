//! Prepared operators: compiled for fixed attributes, dtypes and shapes, to run repeatedly.
//!
//! An operator is prepared once for its attributes, its input shapes and the elements of its constants, and looked up
//! by these as a numeric key (`OpKey`), without building a description. On small tensors, an operator with a formula
//! runs as one call of its block function, even if it also has a kernel. Every other operator runs as a program of one
//! operator. The choice depends on shapes alone, so results are bit-identical to the results of any program.

use std::sync::{Arc, OnceLock};

use autobwd_core::{
    __private::{FormulaCall, FusedKernels, Memory, PreparedOp, internals::*},
    Cx, DType, Dims, Error, ErrorKind, GradKind, Kernel, Meta, OpDesc, OpInfoMap, Program, Result, Role,
    Tensor, Var, VarDesc,
    runtime::CHUNK,
};
use autobwd_plan::{
    FusionGroup, Graph, InitialValue, Instruction, IterationSpace, Plan, PlanRequest, ValueId, ValueSource,
    extent, group, kernel_binding,
};
use smallvec::SmallVec;

/// The engine's data of a prepared operator.
struct EagerPlan {
    /// `None` if its formula is called directly.
    plan: Option<OpPlan>,
    rules: ChainRules,
}

/// The plan of a program of this one operator, so that results equal a program's: its kernel, its formula or decomposition
/// in a fused kernel, or the operators of its composition.
struct OpPlan {
    graph: Graph,
    groups: Vec<FusionGroup>,
    /// By value: the input or output that it is; `None` for scratch memory and values within a composition.
    args: Vec<Option<(Role, usize)>>,
    /// By value: the last group that reads it.
    last_reads: Vec<usize>,
}

/// The chain rule of an operator: operators that compute the gradients of its inputs.
pub(crate) struct ChainRule {
    /// By output: whether it has a gradient.
    pub(crate) arrived: Vec<bool>,
    /// By input: whether its gradient is wanted.
    pub(crate) wanted: Vec<bool>,
    pub(crate) steps: Vec<RuleStep>,
    /// Inputs with their gradients.
    pub(crate) derivatives: Vec<(usize, RuleSource)>,
    /// Whether each of these belongs to one input only, and all steps compute whole tensors.
    pub(crate) apart: bool,
    /// By input: whether its elements are read.
    pub(crate) reads: Vec<bool>,
}

/// A list of the chain rules so far: the first, and the others.
#[derive(Default)]
struct ChainRules(OnceLock<Box<(ChainRule, ChainRules)>>);

pub(crate) struct RuleStep {
    pub(crate) ready: Arc<PreparedOp>,
    pub(crate) inputs: Vec<RuleSource>,
}

/// The source of a value in a chain rule.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RuleSource {
    /// An input of the operator.
    Input(usize),
    /// An output of the operator.
    Output(usize),
    /// The gradient of an output.
    Arrived(usize),
    /// The result of a step, by index.
    Made(usize),
}

/// Prepares an operator.
///
/// # Errors
/// Slots, attributes or inputs that do not fit, with the operator.
pub fn prepare(ops: &OpInfoMap, desc: &OpDesc, inputs: &[Meta]) -> Result<PreparedOp> {
    let info = ops.get(&desc.ty)?;
    if info.needs_program() {
        let text = "the operator has a sub-block or a tensor array, which only a program can contain; in eager \
                    mode, use `if`, `for` and `Vec`";
        return Err(Error::new(ErrorKind::Program, text));
    }
    info.check(desc)?;
    let last = desc.inputs.args().chain(desc.outputs.args()).map(Var::index).max();
    let mut args = vec![(Role::Input, usize::MAX); last.unwrap_or(0)];
    desc.outputs.args().filter(|v| *v != Var::EMPTY).for_each(|v| args[v.index() - 1].0 = Role::Output);
    let mut counts = [0; 2];
    for (role, at) in &mut args {
        *at = counts[*role as usize];
        counts[*role as usize] += 1;
    }
    if counts[0] != inputs.len() {
        return Err(Error::new(
            ErrorKind::Slot,
            format!("{} inputs are given, {counts:?} described", inputs.len()),
        ));
    }
    let of = |var: Var| Ok(inputs[args[var.index() - 1].1].clone());
    let mut outputs = vec![Meta::new(DType::F32, []); counts[1]];
    info.infer_checked(desc, &of, &mut |var, meta| outputs[args[var.index() - 1].1] = meta)?;
    let size = |meta: &Meta| {
        meta.bytes().ok_or_else(|| meta.wrong("a shape that is known and fits into memory is needed"))
    };
    let sizes = outputs.iter().map(size).collect::<Result<_>>()?;
    let metas = args.iter().map(|(role, i)| match role {
        Role::Input => inputs[*i].clone(),
        Role::Output => outputs[*i].clone(),
    });
    let metas: Vec<Meta> = metas.collect();
    let mut reads = vec![false; inputs.len()];
    info.reads(desc).for_each(|v| reads[args[v.index() - 1].1] = true);
    let passes_derivatives =
        !matches!(info.grad_kind(), GradKind::Zero) && outputs.iter().any(|meta| meta.dtype.is_float());
    let (formula, plan) = if info.is_composed() {
        (None, Some(OpPlan::composed(ops, desc, &args, &metas)?))
    } else {
        let given: Vec<bool> = args.iter().map(|(role, _)| *role == Role::Input).collect();
        let graph = Graph::of_one(desc, info, &metas, &given)?;
        match formula(&graph, &args)? {
            Some(formula) => (Some(formula), None),
            None => (None, Some(OpPlan::of(ops, graph, args.iter().copied().map(Some).collect())?)),
        }
    };
    Ok(PreparedOp {
        info,
        prepared: Box::new(EagerPlan { plan, rules: ChainRules::default() }),
        formula,
        desc: desc.clone(),
        inputs: inputs.into(),
        outputs,
        reads,
        passes_derivatives,
        sizes,
        args,
    })
}

/// The operator with the output shapes that its run decided. The memory of these outputs is then laid out as a tensor.
///
/// # Errors
/// No memory.
pub(crate) fn decided(ready: &PreparedOp, outputs: &mut [Memory]) -> Result<PreparedOp> {
    let mut metas = ready.outputs.clone();
    for (memory, meta) in outputs.iter_mut().zip(&mut metas).filter(|(_, meta)| meta.is_decided()) {
        let tensor = Tensor::copy_of(memory, 0, meta)?;
        *meta = tensor.meta().in_slot(meta.slot());
        *memory = tensor.into_memory()?;
    }
    Ok(PreparedOp {
        info: ready.info,
        prepared: Box::new(EagerPlan { plan: None, rules: ChainRules::default() }),
        formula: None,
        desc: ready.desc.clone(),
        inputs: ready.inputs.clone(),
        reads: ready.reads.clone(),
        passes_derivatives: ready.passes_derivatives,
        sizes: metas.iter().map(|meta| meta.bytes().unwrap_or(0)).collect(),
        args: ready.args.clone(),
        outputs: metas,
    })
}

/// The engine's data of the operator.
#[inline]
fn prepared(ready: &PreparedOp) -> Result<&EagerPlan> {
    ready.prepared.downcast_ref().ok_or_else(|| Error::internal("an operator of another engine"))
}

/// Computes the outputs, into memory of the required [size](PreparedOp::sizes).
///
/// # Errors
/// No memory; data that the operator rejects.
#[inline]
pub fn run<'m>(
    ready: &PreparedOp,
    cx: &Cx,
    input: impl Fn(usize) -> Result<&'m Memory>,
    outputs: impl Iterator<Item = &'m mut Memory>,
) -> Result<()> {
    if let Some(formula) = &ready.formula {
        return formula.run(input, outputs);
    }
    let mut inputs = SmallVec::<[&Memory; 4]>::new();
    for i in 0..ready.inputs.len() {
        inputs.push(input(i)?);
    }
    let outputs = outputs.collect::<SmallVec<[_; 2]>>();
    run_planned(ready, cx, &|arg| match arg {
        (Role::Input, i) => inputs[i],
        (Role::Output, i) => &*outputs[i],
    })
}

/// As [`run`], for two inputs and one output that overwrites the first input.
///
/// # Errors
/// The errors of `run`; other numbers of inputs and outputs.
pub(crate) fn run_over(ready: &PreparedOp, cx: &Cx, first: &mut Memory, second: &Memory) -> Result<()> {
    match &ready.formula {
        Some(formula) => formula.run_over(first, second),
        None => run_planned(ready, cx, &|arg| match arg {
            (Role::Input, 1) => second,
            _ => &*first,
        }),
    }
}

fn run_planned<'m>(ready: &PreparedOp, cx: &Cx, memory: &dyn Fn((Role, usize)) -> &'m Memory) -> Result<()> {
    let Some(OpPlan { graph, groups, args, last_reads }) = &prepared(ready)?.plan else {
        return Err(Error::internal("an operator without plan or formula"));
    };
    let bytes = |value: ValueId| graph.values[value].meta.bytes().unwrap_or(0);
    let mut own: SmallVec<[(ValueId, Memory); 1]> = SmallVec::new();
    for (position, group) in groups.iter().enumerate() {
        let nodes = &graph.instructions[group.nodes.clone()];
        for value in nodes.iter().flat_map(|node| node.writes().chain(node.scratch.iter().copied())) {
            if args[value].is_none() {
                own.push((value, Memory::any(bytes(value))?));
            }
        }
        let mut place = |value: ValueId| {
            let memory = match args[value] {
                Some(arg) => memory(arg),
                None => {
                    own.iter().find_map(|(id, memory)| (*id == value).then_some(memory)).ok_or_else(lost)?
                }
            };
            // SAFETY: the kernel runs before this function returns, and is dropped by then; the caller borrows the
            // memory of inputs and owns the memory of outputs; other memory is freed after the last group that reads it.
            #[allow(unsafe_code)]
            unsafe { memory.place(0, bytes(value)) }.map(Some)
        };
        match &group.space {
            Some(extent) => {
                let kernel = kernel_binding::fused_kernel(graph, nodes, extent, cx.threads(), &mut place)?;
                FusedKernels::new(vec![kernel])?.run(cx)?;
            }
            None => kernel_binding::kernel(graph, &nodes[0], &[], &mut place)?.run(cx)?,
        }
        own.retain(|(value, _)| last_reads[*value] > position);
    }
    Ok(())
}

#[cold]
fn lost() -> Error {
    Error::internal("a value without memory")
}

/// The first chain rule that fits, or else the result of `make`.
///
/// # Errors
/// The errors of `make`.
#[inline]
pub(crate) fn rule(
    ready: &PreparedOp,
    fits: impl Fn(&ChainRule) -> bool,
    make: impl Fn() -> Result<ChainRule>,
) -> Result<&ChainRule> {
    let mut rules = &prepared(ready)?.rules;
    loop {
        match rules.0.get() {
            Some(known) if fits(&known.0) => return Ok(&known.0),
            Some(known) => rules = &known.1,
            None => {
                let made = Box::new((make()?, ChainRules::default()));
                // Another thread may have added another rule first.
                rules.0.get_or_init(|| made);
            }
        }
    }
}

impl OpPlan {
    /// `args` has the arguments of the operator, as the first values.
    fn of(ops: &OpInfoMap, mut graph: Graph, mut args: Vec<Option<(Role, usize)>>) -> Result<OpPlan> {
        let groups = group(&mut graph, ops, false)?.0;
        args.resize(graph.values.len(), None);
        let mut last_reads = vec![0; graph.values.len()];
        for (position, group) in groups.iter().enumerate() {
            let nodes = &graph.instructions[group.nodes.clone()];
            nodes.iter().flat_map(Instruction::reads).for_each(|value| last_reads[value] = position);
        }
        Ok(OpPlan { graph, groups, args, last_reads })
    }

    /// The plan of an operator that runs by its composition.
    fn composed(ops: &OpInfoMap, desc: &OpDesc, args: &[(Role, usize)], metas: &[Meta]) -> Result<OpPlan> {
        let mut program = Program::new();
        let vars: Vec<Var> = metas.iter().map(|_| program.fresh("v")).collect();
        program
            .root_mut()
            .vars
            .extend(vars.iter().zip(metas).map(|(var, meta)| (*var, VarDesc::of(meta.clone()))));
        let mut desc = desc.clone();
        for arg in desc.inputs.args_mut().chain(desc.outputs.args_mut()).filter(|var| **var != Var::EMPTY) {
            *arg = vars[arg.index() - 1];
        }
        program.root_mut().ops.push(desc);
        let of = |role: Role| (0..args.len()).filter(move |k| args[*k].0 == role);
        let initial = |k: usize| InitialValue {
            var: vars[k],
            meta: metas[k].clone(),
            source: ValueSource::Feed,
            layout: None,
        };
        let initial: Vec<InitialValue> = of(Role::Input).map(initial).collect();
        let ends: Vec<Var> = of(Role::Output).map(|k| vars[k]).collect();
        let request =
            PlanRequest { initial: &initial, ends: &ends, ..PlanRequest::graph_only(&[], &|_| None, &[]) };
        // The error is about the user's operator instead of the internal program.
        let plan = Plan::new(&program, ops, &request).map_err(|e| Error::new(e.kind(), e.message()))?;
        let graph = plan.graph;
        let mut values = vec![None; graph.values.len()];
        // The values given at the start come first.
        for (value, k) in of(Role::Input).enumerate() {
            values[value] = Some(args[k]);
        }
        for (value, k) in graph.ends.clone().into_iter().zip(of(Role::Output)) {
            values[value] = Some(args[k]);
        }
        OpPlan::of(ops, graph, values)
    }
}

fn formula(graph: &Graph, args: &[(Role, usize)]) -> Result<Option<FormulaCall>> {
    let node = &graph.instructions[0];
    let (Some(IterationSpace { dtype, dims }), Some(entry)) = (extent(graph, node), node.info.lanes()) else {
        return Ok(None);
    };
    let (schema, numel, full) = (node.info.schema(), dims.iter().product(), Dims::from(&dims[..]));
    let alike = graph.values.iter().all(|value| value.meta.dtype == dtype && value.meta.dims == full);
    let slots = schema.inputs.len() + schema.outputs.len();
    if !dtype.is_float() || !alike || numel > CHUNK || slots > FormulaCall::MOST_SLOTS {
        return Ok(None);
    }
    let arg = |value: ValueId| args[value].1;
    let reads: Vec<_> = (0..schema.inputs.len()).map(|slot| node.input(slot).map(arg)).collect();
    let written: Vec<_> = (0..schema.outputs.len()).map(|slot| node.output(slot).map(arg)).collect();
    FormulaCall::new(entry, &node.desc, dtype, numel, &reads, &written).map(Some)
}
