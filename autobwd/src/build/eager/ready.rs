//! An operator with everything known but its data, ready to be run again and again.

use std::{
    hash::{Hash, Hasher},
    sync::{Arc, Mutex, PoisonError},
};

use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;

use super::Reading;
use crate::{
    Attr, Cx, Error, ErrorKind, GradKind, Kernel, Meta, OpDesc, OpInfo, OpInfoMap, Result, Role, SlotDef,
    Var,
    cx::CHUNK,
    frame,
    lanes::{Formula, Regions},
    plan::{Extent, Graph, Group, ValueId, Wires, group},
    tensor::Memory,
};

/// An operator for inputs of certain dtypes and shapes.
pub(crate) struct Ready {
    pub(crate) info: &'static OpInfo,
    /// Variable k + 1 stands for the k-th argument.
    pub(crate) desc: OpDesc,
    pub(crate) inputs: SmallVec<[Meta; 2]>,
    pub(crate) outputs: SmallVec<[Meta; 1]>,
    /// Inputs of which the elements are read.
    pub(crate) reads: Subset,
    /// By argument: which of the inputs or of the outputs it is.
    args: SmallVec<[(Role, usize); 4]>,
    how: How,
    /// The chain rules that were needed so far, by what arrives and what is wanted.
    rules: Mutex<Vec<(Asked, Arc<Rule>)>>,
}

/// Some of an operator's inputs or outputs.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Subset(SmallVec<[u64; 1]>);

impl Subset {
    pub(crate) fn contains(&self, i: usize) -> bool {
        self.0.get(i / 64).is_some_and(|bits| bits & (1 << (i % 64)) != 0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
impl FromIterator<usize> for Subset {
    fn from_iter<I: IntoIterator<Item = usize>>(all: I) -> Subset {
        let mut bits = SmallVec::new();
        for i in all {
            if bits.len() <= i / 64 {
                bits.resize(i / 64 + 1, 0);
            }
            bits[i / 64] |= 1 << (i % 64);
        }
        Subset(bits)
    }
}

/// At which outputs derivatives arrive, and of which inputs they are wanted.
pub(crate) type Asked = (Subset, Subset);

/// How an operator computes.
enum How {
    /// One formula over a few elements, of operands of one shape: inputs and outputs by slot.
    Formula(Formula, SmallVec<[Option<usize>; 4]>, SmallVec<[Option<usize>; 4]>),
    /// As in a program of this one operator, so with its results: by its kernel, or by its formula or the one that it is
    /// composed of, in a region.
    Planned(Graph, Option<Extent>),
}

/// What the chain rule of an operator comes to: operators that compute the derivatives of its inputs.
///
/// Values are numbered: the operator's inputs, its outputs, the derivatives of these, then what the steps compute.
pub(crate) struct Rule {
    pub(crate) steps: Vec<RuleStep>,
    /// How many values there are.
    pub(crate) values: usize,
    /// Inputs with their derivatives.
    pub(crate) derivatives: Vec<(usize, usize)>,
    /// Inputs of which the elements are read.
    pub(crate) reads: Subset,
}

pub(crate) struct RuleStep {
    pub(crate) ready: Arc<Ready>,
    pub(crate) inputs: SmallVec<[usize; 4]>,
    pub(crate) outputs: SmallVec<[usize; 2]>,
}

impl Ready {
    /// # Errors
    /// Slots, attributes or inputs that do not fit, with the operator.
    pub(crate) fn new(ops: &OpInfoMap, desc: &OpDesc, inputs: &[Meta]) -> Result<Ready> {
        let info = ops.get(&desc.ty)?;
        if info.needs_program() {
            let text = "it has a sub-block or a list, which only a program can hold; eager functions use `if`, `for` and `Vec` themselves";
            return Err(Error::new(ErrorKind::Program, text));
        }
        info.check(desc)?;
        let mut args: SmallVec<[(Role, usize); 4]> = SmallVec::from_elem(
            (Role::Input, usize::MAX),
            desc.inputs.args().chain(desc.outputs.args()).map(Var::index).max().unwrap_or(0),
        );
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
        let mut outputs: SmallVec<[Meta; 1]> =
            SmallVec::from_elem(Meta::new(crate::DType::F32, []), counts[1]);
        info.infer(desc, &of, &mut |var, meta| outputs[args[var.index() - 1].1] = meta)?;
        if let Some(meta) = outputs.iter().find(|meta| meta.bytes().is_none()) {
            return Err(meta.wrong("a shape that is known and fits into memory is needed"));
        }
        let metas = args.iter().map(|(role, i)| match role {
            Role::Input => inputs[*i].clone(),
            Role::Output => outputs[*i].clone(),
        });
        let reads: Vec<bool> = args.iter().map(|(role, _)| *role == Role::Input).collect();
        let graph = Graph::of_one(desc, info, &metas.collect::<Vec<_>>(), &reads);
        Ok(Ready {
            info,
            how: how(ops, graph, &args)?,
            desc: desc.clone(),
            inputs: inputs.into(),
            outputs,
            reads: info.reads(desc).map(|v| args[v.index() - 1].1).collect(),
            args,
            rules: Mutex::default(),
        })
    }

    /// Computes the outputs.
    ///
    /// # Errors
    /// No memory; data that the operator cannot take.
    pub(crate) fn run(&self, cx: &Cx, inputs: &[Reading<'_>]) -> Result<SmallVec<[Memory; 1]>> {
        let mut outputs = SmallVec::new();
        for meta in &self.outputs {
            outputs.push(Memory::any(meta.bytes().unwrap_or(0))?);
        }
        match &self.how {
            How::Formula(formula, reads, writes) => {
                let reads = reads.iter().map(|at| at.map(|i| inputs[i].memory()));
                match (&writes[..], &mut outputs[..]) {
                    ([Some(0)], [out]) => formula.run(reads, std::iter::once(Some(out)))?,
                    (writes, outputs) => {
                        // Outputs are numbered by argument: slots may come in another order.
                        let mut by_slot: SmallVec<[Option<&mut Memory>; 4]> =
                            writes.iter().map(|_| None).collect();
                        for (i, memory) in outputs.iter_mut().enumerate() {
                            if let Some(slot) = writes.iter().position(|at| *at == Some(i)) {
                                by_slot[slot] = Some(memory);
                            }
                        }
                        formula.run(reads, by_slot.into_iter())?;
                    }
                }
            }
            How::Planned(graph, region) => {
                let mut place = |value: ValueId| {
                    let memory = match self.args[value] {
                        (Role::Input, i) => inputs[i].memory(),
                        (Role::Output, i) => &outputs[i],
                    };
                    memory.place(0, graph.values[value].meta.bytes().unwrap_or(0)).map(Some)
                };
                match region {
                    Some(extent) => {
                        let region = frame::region(graph, &graph.nodes, extent, cx.threads(), &mut place)?;
                        Regions::new(vec![region])?.run(cx)?;
                    }
                    None => frame::kernel(graph, &graph.nodes[0], &[], &mut place)?.run(cx)?,
                }
            }
        }
        Ok(outputs)
    }

    /// Which input or output a variable of `desc` stands for.
    pub(crate) fn arg(&self, stand_in: Var) -> (Role, usize) {
        self.args[stand_in.index() - 1]
    }

    /// Whether derivatives may pass: an operator that lets none through makes constants.
    pub(crate) fn passes_derivatives(&self) -> bool {
        !matches!(self.info.grad_kind(), GradKind::Zero)
            && self.outputs.iter().any(|meta| meta.dtype.is_float())
    }

    /// The chain rule for these outputs and inputs, made by `make` the first time.
    pub(crate) fn rule(&self, asked: &Asked, make: impl FnOnce() -> Result<Rule>) -> Result<Arc<Rule>> {
        let rules = || self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let known = rules().iter().find(|(key, _)| key == asked).map(|(_, rule)| rule.clone());
        if let Some(rule) = known {
            return Ok(rule);
        }
        let rule = Arc::new(make()?);
        rules().push((asked.clone(), rule.clone()));
        Ok(rule)
    }

    /// The operator in words, for messages.
    pub(crate) fn describe(&self, site: &'static std::panic::Location<'static>) -> String {
        let mut slots = vec![];
        for (slots_of, side) in
            [(&self.desc.inputs, &self.inputs[..]), (&self.desc.outputs, &self.outputs[..])]
        {
            for (slot, args) in slots_of.iter() {
                let metas = args.iter().filter(|v| **v != Var::EMPTY);
                let metas: Vec<_> = metas.map(|v| side[self.args[v.index() - 1].1].to_string()).collect();
                slots.push(format!("{slot} = {}", metas.join(", ")));
            }
        }
        let ty = self.desc.ty;
        format!("operator `{ty}` (run at {}:{}; {})", site.file(), site.line(), slots.join(", "))
    }

    fn fits<'a>(&self, desc: &OpDesc, inputs: impl Iterator<Item = &'a Meta>) -> bool {
        let same = |(a, b): (&Meta, &Meta)| a.dtype == b.dtype && a.dims == b.dims && a.rows == b.rows;
        self.desc == *desc && self.inputs.iter().zip(inputs).all(same)
    }
}

/// Formulas over a few elements are called as they are.
fn how(ops: &OpInfoMap, mut graph: Graph, args: &[(Role, usize)]) -> Result<How> {
    let groups = group(&mut graph, ops, false)?.0;
    let [Group { region, .. }] = &groups[..] else {
        return Err(Error::internal("an operator that does not run at once"));
    };
    let node = &graph.nodes[0];
    if let (Some(Extent { dtype, dims }), None, Some(entry)) = (region, &node.part, node.info.lanes())
        && dtype.is_float()
        && dims.iter().product::<usize>() <= CHUNK
        && let full = dims.iter().copied().collect()
        && graph.values.iter().all(|value| value.meta.dtype == *dtype && value.meta.dims == full)
    {
        let by_slot = |slots: &[SlotDef], wires: &Wires| {
            let at = |slot: &SlotDef| wires.iter().find(|(name, _)| *name == slot.name)?.1;
            slots.iter().map(|slot| at(slot).map(|value| args[value].1)).collect()
        };
        let formula = Formula::new(entry, &node.desc, *dtype, dims.iter().product())?;
        let schema = node.info.schema();
        let reads = by_slot(schema.inputs, &node.inputs);
        return Ok(How::Formula(formula, reads, by_slot(schema.outputs, &node.outputs)));
    }
    let region = groups.into_iter().next().and_then(|group| group.region);
    Ok(How::Planned(graph, region))
}

/// The operators that were run so far.
#[derive(Default)]
pub(super) struct Cache {
    by_hash: FxHashMap<u64, SmallVec<[Arc<Ready>; 1]>>,
}

impl Cache {
    /// How many are kept: functions of ever new shapes must not fill the memory.
    const MOST: usize = 1 << 13;

    pub(super) fn get<'a>(
        &mut self,
        desc: &OpDesc,
        inputs: impl Iterator<Item = &'a Meta> + Clone,
        make: impl FnOnce() -> Result<Ready>,
    ) -> Result<Arc<Ready>> {
        let mut hasher = FxHasher::default();
        desc.ty.as_ptr().hash(&mut hasher);
        desc.attrs.iter().for_each(|(_, attr)| hash(attr, &mut hasher));
        for meta in inputs.clone() {
            (meta.dtype.code(), &*meta.dims).hash(&mut hasher);
        }
        let hash = hasher.finish();
        let known = self.by_hash.get(&hash).and_then(|all| all.iter().find(|r| r.fits(desc, inputs.clone())));
        if let Some(ready) = known {
            return Ok(ready.clone());
        }
        let ready = Arc::new(make()?);
        if self.by_hash.len() >= Cache::MOST {
            self.by_hash.clear();
        }
        self.by_hash.entry(hash).or_default().push(ready.clone());
        Ok(ready)
    }
}

/// Attributes that differ mostly differ in these.
fn hash(attr: &Attr, hasher: &mut FxHasher) {
    match attr {
        Attr::Bool(x) => x.hash(hasher),
        Attr::I32(x) => x.hash(hasher),
        Attr::I64(x) => x.hash(hasher),
        Attr::F32(x) => x.to_bits().hash(hasher),
        Attr::F64(x) => x.to_bits().hash(hasher),
        Attr::Str(x) => x.hash(hasher),
        Attr::I32s(x) => x.hash(hasher),
        Attr::I64s(x) => x.hash(hasher),
        _ => {}
    }
}
