//! From names to values: every write makes a new one, of known dtype and shape.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::parts::Part;
use crate::{
    BlockId, Error, ErrorKind, Meta, OpDesc, OpInfo, OpInfoMap, Program, Result, SlotDef, Slots, Var,
    VarDesc, VarKind, error::did_you_mean,
};

/// What is to be run: shapes of what is fed and kept, what is fetched, and how.
pub(crate) struct Request<'a> {
    pub(crate) feeds: &'a [(&'a str, Meta)],
    pub(crate) kept: &'a dyn Fn(&str) -> Option<Meta>,
    pub(crate) fetches: &'a [&'a str],
    /// Nothing is fused or in place: whatever an operator reads or writes can be looked at once it has run.
    pub(crate) apart: bool,
}

/// Index of a value.
pub(crate) type ValueId = usize;

/// Who gives a value its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// It is fed.
    Feed,
    /// It is what the scope holds when the run starts.
    Kept,
    /// An operator writes it.
    Node(usize),
}

/// One definition of a variable.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub(crate) var: Var,
    pub(crate) meta: Meta,
    pub(crate) source: Source,
    /// Whether the variable lives in the scope.
    pub(crate) kept: bool,
}

/// Values in the slots of an operator, flat, with the slot each sits in; `None` for `@EMPTY@`.
pub(crate) type Wires = SmallVec<[(&'static str, Option<ValueId>); 6]>;

/// One operator to be run.
pub(crate) struct Node {
    /// Position in the block, for messages.
    pub(crate) index: usize,
    pub(crate) desc: OpDesc,
    pub(crate) info: &'static OpInfo,
    pub(crate) inputs: Wires,
    pub(crate) outputs: Wires,
    /// What runs in its place, when it is one of the elementwise operators that `desc` is composed of.
    pub(crate) part: Option<Box<Part>>,
}

impl Node {
    /// The operator that runs: slots are named as it says.
    pub(crate) fn runs(&self) -> (&'static OpInfo, &OpDesc) {
        self.part.as_ref().map_or((self.info, &self.desc), |part| (part.info, &part.desc))
    }

    /// Inputs whose elements it reads.
    pub(crate) fn reads(&self) -> impl Iterator<Item = ValueId> + '_ {
        let schema = self.runs().0.schema();
        let shape_only = move |slot: &str| schema.input(slot).is_some_and(|s| s.shape_only);
        self.inputs.iter().filter(move |(slot, _)| !shape_only(slot)).filter_map(|(_, v)| *v)
    }

    pub(crate) fn writes(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.outputs.iter().filter_map(|(_, v)| *v)
    }
}

/// A straight line of operators over values.
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    pub(crate) values: Vec<Value>,
    pub(crate) feeds: Vec<ValueId>,
    pub(crate) fetches: Vec<ValueId>,
}

/// Which operators the fetches and the values kept in the scope need.
pub(crate) fn needed(program: &Program, request: &Request<'_>) -> Vec<bool> {
    let block = program.root();
    let mut wanted = vec![false; program.name_count()];
    request.fetches.iter().filter_map(|name| program.find(name)).for_each(|v| wanted[v.index()] = true);
    let mut needed = vec![false; block.ops.len()];
    for (op, needed) in block.ops.iter().zip(&mut needed).rev() {
        let kept = |v: Var| block.vars.get(&v).is_some_and(|d| d.persistable);
        *needed = op.writes().any(|v| wanted[v.index()] || kept(v));
        if *needed {
            op.writes().for_each(|v| wanted[v.index()] = false);
            op.reads().for_each(|v| wanted[v.index()] = true);
        }
    }
    needed
}

impl Graph {
    /// An operator by itself; variable k + 1 stands for value k. `inputs` says which of them it reads.
    pub(crate) fn of_one(desc: &OpDesc, info: &'static OpInfo, metas: &[Meta], inputs: &[bool]) -> Graph {
        let value = |(k, (meta, input)): (usize, (&Meta, &bool))| {
            let source = if *input { Source::Feed } else { Source::Node(0) };
            Value { var: Var::stand_in(k + 1), meta: meta.clone(), source, kept: false }
        };
        let wires = |schema: &[SlotDef], slots: &Slots| -> Wires {
            let wire = |slot: &'static str, var: &Var| (slot, var.index().checked_sub(1));
            schema.iter().flat_map(|s| slots.get(s.name).iter().map(|v| wire(s.name, v))).collect()
        };
        let schema = info.schema();
        let (reads, writes) = (wires(schema.inputs, &desc.inputs), wires(schema.outputs, &desc.outputs));
        let fetches = (0..metas.len()).filter(|k| !inputs[*k]).collect();
        let node = Node { index: 0, desc: desc.clone(), info, inputs: reads, outputs: writes, part: None };
        let values = metas.iter().zip(inputs).enumerate().map(value).collect();
        Graph { nodes: vec![node], values, feeds: vec![], fetches }
    }

    /// Another definition of the same variable.
    pub(super) fn again(&mut self, value: ValueId) -> ValueId {
        self.values.push(self.values[value].clone());
        self.values.len() - 1
    }

    pub(super) fn is_whole_tensor(&self, value: ValueId) -> bool {
        self.values[value].meta.rows.is_none()
    }

    pub(crate) fn build(
        program: &Program,
        ops: &OpInfoMap,
        request: &Request<'_>,
        needed: &[bool],
    ) -> Result<Graph> {
        let mut build = Build {
            program,
            request,
            current: vec![None; program.name_count()],
            graph: Graph { nodes: vec![], values: vec![], feeds: vec![], fetches: vec![] },
        };
        build.feeds()?;
        for (index, desc) in program.root().ops.iter().enumerate().filter(|(i, _)| needed[*i]) {
            let at = |e: Error| e.at_op(|| program.describe_op(BlockId::ROOT, index, desc));
            build.node(index, desc, ops.get(&desc.ty).map_err(at)?).map_err(at)?;
        }
        build.fetches()?;
        Ok(build.graph)
    }
}

struct Build<'a> {
    program: &'a Program,
    request: &'a Request<'a>,
    /// The definition that a name means at this point.
    current: Vec<Option<ValueId>>,
    graph: Graph,
}

impl Build<'_> {
    fn define(&mut self, var: Var, meta: Meta, source: Source) -> ValueId {
        let kept = self.desc(var).is_some_and(|d| d.persistable);
        self.graph.values.push(Value { var, meta, source, kept });
        let id = self.graph.values.len() - 1;
        self.current[var.index()] = Some(id);
        id
    }

    fn desc(&self, var: Var) -> Option<&VarDesc> {
        self.program.root().vars.get(&var)
    }

    fn feeds(&mut self) -> Result<()> {
        let request = self.request;
        for (name, meta) in request.feeds {
            let var = self
                .program
                .expect_var(name)
                .map_err(|e| Error::new(ErrorKind::Feed, format!("fed, but {e}")))?;
            let refuse =
                |why: String| Err(Error::new(ErrorKind::Feed, format!("`{name}` cannot be fed: {why}")));
            match self.desc(var) {
                Some(desc) if desc.persistable => {
                    return refuse("it is kept in the scope; set it there".into());
                }
                Some(desc) if desc.kind != VarKind::Tensor => return refuse("it is no whole tensor".into()),
                Some(desc) if desc.dtype != meta.dtype => {
                    return refuse(format!("the program says {}, the tensor is {}", desc.dtype, meta.dtype));
                }
                Some(desc) if !desc.dims.agrees(&meta.dims) => {
                    return refuse(format!(
                        "the program says shape {}, the tensor has {}",
                        desc.dims, meta.dims
                    ));
                }
                _ if self.current[var.index()].is_some() => return refuse("it is fed twice".into()),
                _ => {}
            }
            let id = self.define(var, meta.clone(), Source::Feed);
            self.graph.feeds.push(id);
        }
        Ok(())
    }

    /// The value that a variable has at this point.
    fn value(&mut self, var: Var) -> Result<ValueId> {
        if let Some(id) = self.current[var.index()] {
            return Ok(id);
        }
        let name = self.program.name(var);
        match self.desc(var) {
            Some(desc) if desc.persistable => {
                let meta = (self.request.kept)(name).ok_or_else(|| {
                    let hint = "run the start-up program, or load or set it";
                    Error::new(ErrorKind::NoValue, format!("`{name}` has no value in the scope; {hint}"))
                })?;
                let declared = desc.meta();
                if !declared.agrees(&meta) {
                    let text = format!("`{name}` is {declared}, but the scope holds {meta}");
                    return Err(Error::new(ErrorKind::Shape, text));
                }
                Ok(self.define(var, meta, Source::Kept))
            }
            Some(_) => {
                let text = format!("`{name}` is read, but neither fed nor written before");
                Err(Error::new(ErrorKind::Feed, text))
            }
            None => {
                let known = self.program.root().vars.keys().map(|v| self.program.name(*v));
                let hint = did_you_mean(name, known);
                Err(Error::new(
                    ErrorKind::UnknownVar,
                    format!("`{name}` is read, but declared nowhere{hint}"),
                ))
            }
        }
    }

    fn node(&mut self, index: usize, desc: &OpDesc, info: &'static OpInfo) -> Result<()> {
        info.check(desc)?;
        let mut inputs = Wires::new();
        for slot in info.schema().inputs {
            for var in desc.inputs.get(slot.name) {
                let value = if *var == Var::EMPTY { None } else { Some(self.value(*var)?) };
                inputs.push((slot.name, value));
            }
        }
        let mut metas: HashMap<Var, Meta> = HashMap::new();
        let of = |var: Var| match self.current[var.index()] {
            Some(id) => Ok(self.graph.values[id].meta.clone()),
            None => Err(Error::internal("an input without value")),
        };
        info.infer(desc, &of, &mut |var, meta| {
            metas.insert(var, meta);
        })?;
        let mut outputs = Wires::new();
        for slot in info.schema().outputs {
            for var in desc.outputs.get(slot.name) {
                if *var == Var::EMPTY {
                    outputs.push((slot.name, None));
                    continue;
                }
                let Some(meta) = metas.remove(var) else {
                    let text = format!("`{}` is written to twice", self.program.name(*var));
                    return Err(Error::new(ErrorKind::Slot, text));
                };
                self.check_output(*var, &meta)?;
                let id = self.define(*var, meta, Source::Node(self.graph.nodes.len()));
                outputs.push((slot.name, Some(id)));
            }
        }
        self.graph.nodes.push(Node { index, desc: desc.clone(), info, inputs, outputs, part: None });
        Ok(())
    }

    fn check_output(&self, var: Var, meta: &Meta) -> Result<()> {
        let (name, slot) = (self.program.name(var), meta.slot());
        if meta.bytes().is_none() {
            let text = format!("`{slot}`: the shape {} of `{name}` is unknown or too large", meta.dims);
            return Err(Error::new(ErrorKind::Shape, text));
        }
        let Some(desc) = self.desc(var) else {
            let text = format!("`{slot}`: `{name}` is declared nowhere");
            return Err(Error::new(ErrorKind::UnknownVar, text));
        };
        let mut declared = vec![(desc.meta(), "is declared")];
        if desc.persistable {
            if meta.rows.is_some() {
                let text =
                    format!("`{slot}` is {meta}, but `{name}` is kept in the scope, as a whole tensor");
                return Err(Error::new(ErrorKind::Shape, text));
            }
            declared.extend((self.request.kept)(name).map(|meta| (meta, "stands in the scope")));
        }
        for (known, how) in declared {
            if !known.agrees(meta) {
                let text = format!("`{slot}` is {meta}, but `{name}` {how} as {known}");
                return Err(Error::new(ErrorKind::Shape, text));
            }
        }
        Ok(())
    }

    fn fetches(&mut self) -> Result<()> {
        let request = self.request;
        for name in request.fetches {
            let var = self
                .program
                .expect_var(name)
                .map_err(|e| Error::new(ErrorKind::Fetch, format!("fetched, but {e}")))?;
            let id = self
                .value(var)
                .map_err(|e| Error::new(ErrorKind::Fetch, format!("`{name}` is fetched, but {e}")))?;
            self.graph.fetches.push(id);
        }
        Ok(())
    }
}
