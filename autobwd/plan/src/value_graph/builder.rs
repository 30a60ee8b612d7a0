//! Builds the value graph of a block: feeds, operators in order, fetches.

use smallvec::SmallVec;

use super::{
    Graph, GraphValue, Instruction, ValueId, ValueSource,
    constants::{Constants, RunInstruction},
    request::PlanRequest,
    scratch_values,
    sub_block::DynamicTail,
    wires,
};
use autobwd_core::{
    __private::{did_you_mean, internals::*},
    Block, BlockId, Dim, Error, ErrorKind, Meta, OpDesc, OpInfo, OpInfoMap, Program, Result, Var, VarDesc,
    VarKind,
};

/// The value graph of a block under construction.
pub(crate) struct GraphBuilder<'a> {
    pub(crate) program: &'a Program,
    pub(super) block: &'a Block,
    pub(crate) ops: &'a OpInfoMap,
    pub(crate) request: &'a PlanRequest<'a>,
    /// By variable: whether it has a reader.
    pub(crate) has_reader: Vec<bool>,
    /// The current definition of a variable.
    pub(crate) current: Vec<Option<ValueId>>,
    pub(crate) graph: Graph,
    /// The operator before which the plan ends.
    pub(crate) tail: Option<DynamicTail>,
    /// Whether verification has checked slots and attributes.
    pub(super) checked: bool,
    /// Values computed for slots declared `constant`.
    pub(crate) constants: Constants,
    pub(crate) run: RunInstruction,
}

impl GraphBuilder<'_> {
    /// Whether a variable lives in the scope.
    pub(crate) fn is_in_scope(&self, var: Var) -> bool {
        self.block.vars.get(&var).is_some_and(|d| d.persistable)
    }

    pub(crate) fn define(&mut self, var: Var, mut meta: Meta, source: ValueSource) -> ValueId {
        let in_scope = self.is_in_scope(var);
        if let Some(before) = self.current[var.index()].map(|id| &self.graph.values[id].meta)
            && meta.array
        {
            let either = |(a, b): (&Dim, &Dim)| if a == b { *a } else { Dim::UNKNOWN };
            meta.dims = before.dims.iter().zip(&*meta.dims).map(either).collect();
        }
        self.graph.values.push(GraphValue { var, meta, source, in_scope, layout: None });
        let id = self.graph.values.len() - 1;
        self.current[var.index()] = Some(id);
        id
    }

    pub(crate) fn desc(&self, var: Var) -> Option<&VarDesc> {
        self.program.lookup(self.request.block, var)
    }

    /// Adds the values available at the start.
    pub(super) fn given(&mut self) {
        for given in self.request.initial {
            let id = self.define(given.var, given.meta.clone(), given.source);
            let value = &mut self.graph.values[id];
            (value.in_scope, value.layout) = (false, given.layout.clone());
            if given.source == ValueSource::Feed && !given.meta.array {
                self.graph.feeds.push(id);
            }
        }
    }

    pub(super) fn feeds(&mut self) -> Result<()> {
        let request = self.request;
        for (name, meta) in request.feeds {
            let var = self
                .program
                .expect_var(name)
                .map_err(|e| Error::new(ErrorKind::Feed, format!("cannot feed: {e}")))?;
            let refuse =
                |why: String| Err(Error::new(ErrorKind::Feed, format!("`{name}` cannot be fed: {why}")));
            match self.desc(var) {
                Some(desc) if desc.persistable => {
                    return refuse("it is persistable; set it in the scope".into());
                }
                Some(desc) if desc.kind != VarKind::Tensor => {
                    return refuse("it is not a dense tensor".into());
                }
                Some(desc) if desc.dtype != meta.dtype => {
                    return refuse(format!(
                        "the program declares {}, but the tensor is {}",
                        desc.dtype, meta.dtype
                    ));
                }
                Some(desc) if !desc.dims.agrees(&meta.dims) => {
                    return refuse(format!(
                        "the program declares shape {}, but the tensor has shape {}",
                        desc.dims, meta.dims
                    ));
                }
                _ if meta.bytes().is_none() => {
                    return refuse(format!("its shape {} is unknown or too large", meta.dims));
                }
                _ if self.current[var.index()].is_some() => return refuse("it is fed twice".into()),
                _ => {}
            }
            let id = self.define(var, meta.clone(), ValueSource::Feed);
            self.graph.feeds.push(id);
        }
        Ok(())
    }

    /// The current value of a variable.
    pub(crate) fn value(&mut self, var: Var) -> Result<ValueId> {
        self.value_used(var, "read")
    }

    /// The same; errors name its use.
    fn value_used(&mut self, var: Var, used: &str) -> Result<ValueId> {
        if let Some(id) = self.current[var.index()] {
            return Ok(id);
        }
        let name = self.program.name(var);
        match self.desc(var) {
            Some(desc) if desc.kind == VarKind::TensorArray => {
                let meta = desc.meta();
                Ok(self.define(var, meta, ValueSource::Empty))
            }
            Some(_) if self.request.block != BlockId::ROOT => {
                let text = format!(
                    "`{name}` is {used}, but neither written before nor an input of the operator that runs the block"
                );
                Err(Error::new(ErrorKind::NoValue, text))
            }
            Some(desc) if desc.persistable => {
                let meta = (self.request.scope)(name).ok_or_else(|| {
                    let hint = "run the start-up program, or load or set it";
                    Error::new(ErrorKind::NoValue, format!("`{name}` has no value in the scope; {hint}"))
                })?;
                let declared = desc.meta();
                if !declared.agrees(&meta) {
                    let text = format!("`{name}` is {declared}, but the scope holds {meta}");
                    return Err(Error::new(ErrorKind::Shape, text));
                }
                Ok(self.define(var, meta.with_constant(None), ValueSource::Scope))
            }
            Some(_) => {
                let text = format!("`{name}` is {used}, but neither fed nor written before; feed it");
                Err(Error::new(ErrorKind::Feed, text))
            }
            None => {
                let known = self.program.root().vars.keys().map(|v| self.program.name(*v));
                let hint = did_you_mean(name, known);
                Err(Error::new(ErrorKind::UnknownVar, format!("`{name}` is {used}, but not declared{hint}")))
            }
        }
    }

    pub(super) fn node(&mut self, index: usize, desc: &OpDesc, info: &'static OpInfo) -> Result<()> {
        if !self.checked {
            info.check(desc)?;
        }
        if let Some(call) = info.call(desc, self.program)? {
            call.faults(desc, self.program).into_iter().try_for_each(Err)?;
            return self.call(index, desc, info, &call);
        }
        let inputs = wires(info.schema().inputs, &desc.inputs, |var| self.value(var))?;
        self.constant_inputs(info, &inputs)?;
        if info.is_composed() {
            return self.compose(index, desc);
        }
        let mut metas: SmallVec<[(Var, Meta); 2]> = SmallVec::new();
        let of = |var: Var| match self.current[var.index()] {
            Some(id) => Ok(self.graph.values[id].meta.clone()),
            None => Err(Error::internal("an input without value")),
        };
        info.infer_checked(desc, &of, &mut |var, meta| match metas.iter_mut().find(|(v, _)| *v == var) {
            Some((_, known)) => *known = meta,
            None => metas.push((var, meta)),
        })?;
        let outputs = wires(info.schema().outputs, &desc.outputs, |var| {
            let Some(at) = metas.iter().position(|(v, _)| *v == var) else {
                let text = format!("`{}` is written to twice", self.program.name(var));
                return Err(Error::new(ErrorKind::Slot, text));
            };
            let (_, meta) = metas.remove(at);
            self.check_output(var, &meta)?;
            Ok(self.define(var, meta, ValueSource::Instruction(self.graph.instructions.len())))
        })?;
        let scratch = scratch_values(&mut self.graph.values, info, &inputs, &outputs);
        let is_decided = |id: &ValueId| self.graph.values[*id].meta.is_decided();
        let decided: Vec<ValueId> = outputs.iter().filter_map(|(_, id)| *id).filter(is_decided).collect();
        let node = Instruction { scratch, ..Instruction::new(index, desc, info, inputs, outputs) };
        self.graph.instructions.push(node);
        if !decided.is_empty() {
            self.tail = Some(self.decided_tail(index, decided)?);
        }
        Ok(())
    }

    pub(crate) fn check_output(&self, var: Var, meta: &Meta) -> Result<()> {
        let (name, slot) = (self.program.name(var), meta.slot());
        if let Some(desc) = self.desc(var)
            && !desc.persistable
            && meta.bytes().is_some()
            && desc.allows(meta)
        {
            return Ok(());
        }
        if meta.bytes().is_none() {
            let text = format!("`{slot}`: the shape {} of `{name}` is unknown or too large", meta.dims);
            return Err(Error::new(ErrorKind::Shape, text));
        }
        let Some(desc) = self.desc(var) else {
            // Between the operators of a composition.
            if var.index() >= self.program.name_count() {
                return Ok(());
            }
            let text = format!("`{slot}`: `{name}` is not declared");
            return Err(Error::new(ErrorKind::UnknownVar, text));
        };
        let mut declared = vec![];
        if !desc.allows(meta) {
            declared.push((desc.meta(), "is declared"));
        }
        if desc.persistable {
            if meta.rows.is_some() {
                let text = format!("`{slot}` is {meta}, but `{name}` is kept in the scope as a dense tensor");
                return Err(Error::new(ErrorKind::Shape, text));
            }
            declared.extend((self.request.scope)(name).map(|meta| (meta, "is in the scope")));
        }
        for (known, how) in declared {
            if !known.agrees(meta) {
                let text = format!("`{slot}` is {meta}, but `{name}` {how} as {known}");
                return Err(Error::new(ErrorKind::Shape, text));
            }
        }
        Ok(())
    }

    pub(super) fn fetches(&mut self) -> Result<()> {
        let request = self.request;
        for name in request.fetches {
            let var = self
                .program
                .expect_var(name)
                .map_err(|e| Error::new(ErrorKind::Fetch, format!("cannot fetch: {e}")))?;
            let id =
                self.value_used(var, "fetched").map_err(|e| Error::new(ErrorKind::Fetch, e.message()))?;
            if self.graph.values[id].meta.array {
                let text = format!("`{name}` is fetched, but it is a tensor array; fetch an element of it");
                return Err(Error::new(ErrorKind::Fetch, text));
            }
            self.graph.ends.push(id);
        }
        for var in request.ends {
            let id = self.value(*var)?;
            self.graph.ends.push(id);
        }
        // Keep a step's inputs alive to its end: carried outputs are copied into them.
        let inputs =
            self.request.initial.iter().zip(0..).filter(|(given, _)| given.source == ValueSource::Feed);
        let required =
            self.graph.ends.iter().copied().chain(inputs.map(|(_, id)| id + self.request.feeds.len()));
        let tensors = required.filter(|id| !self.graph.values[*id].meta.array);
        self.graph.fetches.extend(tensors.collect::<Vec<_>>());
        Ok(())
    }
}
