//! The summary of a program: one row an operator, and totals.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use autobwd::{
    BlockId, Error, ErrorKind, Meta, OpDesc, OpInfoMap, Program, Result, Var, VarDesc, op::Cost,
    program::Origin, tensor::Dim,
};
use serde::Serialize;

use crate::terminal::{grouped, table};

#[derive(Serialize)]
pub(super) struct ProgramSummary<'a> {
    schema: &'static str,
    /// The named inputs and outputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    signature: Option<String>,
    operators: Vec<Row<'a>>,
    not_linked: BTreeSet<&'a str>,
    totals: Totals,
}

#[derive(Serialize)]
struct Row<'a> {
    block: usize,
    index: usize,
    name: &'a str,
    /// The path of its module.
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<&'a str>,
    backward: bool,
    outputs: Vec<OutputSummary<'a>>,
    /// The elements of parameters that it is the first to read.
    parameters: u64,
    flops: Option<u64>,
    bytes: Option<u64>,
}

#[derive(Serialize)]
struct OutputSummary<'a> {
    name: &'a str,
    r#type: Option<String>,
}

#[derive(Default, Serialize)]
struct Totals {
    blocks: usize,
    operators: usize,
    backward_operators: usize,
    parameters: u64,
    parameter_bytes: u64,
    /// Parameters and other values that the scope keeps.
    persistable_bytes: u64,
    flops: u64,
    bytes: u64,
    /// Operators whose flops and bytes are not in the sums.
    unknown: usize,
}

impl<'a> ProgramSummary<'a> {
    /// The summary for inputs of these dtypes and shapes; others are as declared.
    pub(super) fn of(program: &'a Program, shapes: &[(Var, Meta)]) -> ProgramSummary<'a> {
        let mut walk = Walk {
            program,
            metas: shapes.iter().cloned().collect(),
            sizes: HashMap::new(),
            counted: HashSet::new(),
        };
        for (var, meta) in shapes {
            let declared = program.root().vars.get(var).into_iter().flat_map(|desc| desc.dims.iter());
            let named = declared.zip(meta.dims.iter()).filter_map(|(dim, size)| Some((dim.name()?, *size)));
            walk.sizes.extend(named);
        }
        let mut summary = ProgramSummary {
            schema: "autobwd.show/1",
            signature: Some(program).filter(|p| !p.signature().is_empty()).map(Program::describe_signature),
            operators: vec![],
            not_linked: BTreeSet::new(),
            totals: Totals { blocks: program.blocks().len(), ..Totals::default() },
        };
        let ops = OpInfoMap::linked().ok();
        for (b, block) in program.blocks().iter().enumerate() {
            for (i, op) in block.ops.iter().enumerate() {
                if ops.is_none_or(|ops| ops.get(&op.ty).is_err()) {
                    summary.not_linked.insert(op.ty.as_str());
                }
                let row = walk.row(ops, BlockId::new(b), i, op);
                summary.totals.add(&row);
                summary.operators.push(row);
            }
        }
        let persistable = program.root().vars.values().filter(|desc| desc.persistable);
        persistable.for_each(|desc| summary.totals.add_persistable(desc));
        summary
    }

    pub(super) fn to_text(&self) -> String {
        let unknown = |number: Option<u64>| number.map_or("?".into(), grouped);
        let rows: Vec<[String; 6]> = self
            .operators
            .iter()
            .map(|row| {
                let place = if row.block == 0 {
                    row.index.to_string()
                } else {
                    format!("{}.{}", row.block, row.index)
                };
                let output = |output: &OutputSummary<'_>| match &output.r#type {
                    Some(ty) => format!("{}: {ty}", output.name),
                    None => output.name.into(),
                };
                let outputs: Vec<String> = row.outputs.iter().map(output).collect();
                let parameters = if row.parameters == 0 { String::new() } else { grouped(row.parameters) };
                [
                    place,
                    row.name.into(),
                    outputs.join(", "),
                    parameters,
                    unknown(row.flops),
                    unknown(row.bytes),
                ]
            })
            .collect();
        table([" #", "operator", "outputs", " parameters", " FLOPs", " bytes"], &rows) + &self.totals()
    }

    /// A line for each module to a depth, with the sums of its operators, below the module that it is a part of.
    pub(super) fn to_modules(&self, depth: usize) -> String {
        let mut modules: Vec<(Vec<&str>, Totals)> = vec![(vec![], Totals::default())];
        for row in &self.operators {
            let path: Vec<&str> = row.module.map_or(vec![], |module| module.split('/').take(depth).collect());
            for level in 0..=path.len() {
                let path = &path[..level];
                let at = modules.iter().position(|(other, _)| other == path).unwrap_or_else(|| {
                    // After the others of the module around it.
                    let around = |(other, _): &(Vec<&str>, Totals)| other.starts_with(&path[..level - 1]);
                    let at = modules.iter().rposition(around).map_or(modules.len(), |last| last + 1);
                    modules.insert(at, (path.to_vec(), Totals::default()));
                    at
                });
                let totals = &mut modules[at].1;
                totals.add(row);
                totals.parameters = totals.parameters.saturating_add(row.parameters);
            }
        }
        let line = |(path, totals): &(Vec<&str>, Totals)| {
            let name = path.last().map_or("all".into(), |name| "  ".repeat(path.len()) + name);
            let work = |sum: u64| if totals.unknown > 0 { "?".into() } else { grouped(sum) };
            let parameters = match totals.parameters {
                0 => String::new(),
                parameters => grouped(parameters),
            };
            [name, totals.operators.to_string(), parameters, work(totals.flops), work(totals.bytes)]
        };
        let rows: Vec<[String; 5]> = modules.iter().map(line).collect();
        table(["module", " operators", " parameters", " FLOPs", " bytes"], &rows) + &self.totals()
    }

    /// The lines below a table.
    fn totals(&self) -> String {
        let mut text = String::new();
        let Totals { blocks, operators, backward_operators, parameters, parameter_bytes, .. } = self.totals;
        let Totals { persistable_bytes, flops, bytes, unknown, .. } = self.totals;
        let blocks = if blocks == 1 { String::new() } else { format!(" in {blocks} blocks") };
        let mut line = |name: &str, value: String| text += &format!("{name:<13}{value}\n");
        if let Some(signature) = &self.signature {
            line("signature", signature.clone());
        }
        line("operators", format!("{operators}{blocks}, {backward_operators} of the backward pass"));
        line("parameters", format!("{} ({} bytes)", grouped(parameters), grouped(parameter_bytes)));
        line("persistable", format!("{} bytes", grouped(persistable_bytes)));
        line("work", format!("{} FLOPs, {} bytes read and written", grouped(flops), grouped(bytes)));
        if unknown > 0 {
            line("unknown", format!("the work of {unknown} operators; --shape gives the shapes of inputs"));
        }
        if !self.not_linked.is_empty() {
            let names: Vec<&str> = self.not_linked.iter().copied().collect();
            line("not linked", names.join(", "));
        }
        text
    }
}

impl Totals {
    fn add(&mut self, row: &Row<'_>) {
        self.operators += 1;
        self.backward_operators += usize::from(row.backward);
        match (row.flops, row.bytes) {
            (Some(flops), Some(bytes)) => {
                self.flops = self.flops.saturating_add(flops);
                self.bytes = self.bytes.saturating_add(bytes);
            }
            _ => self.unknown += 1,
        }
    }

    fn add_persistable(&mut self, desc: &VarDesc) {
        let bytes = desc.meta().bytes().unwrap_or(0) as u64;
        self.persistable_bytes = self.persistable_bytes.saturating_add(bytes);
        if desc.parameter {
            self.parameters = self.parameters.saturating_add(elements(desc));
            self.parameter_bytes = self.parameter_bytes.saturating_add(bytes);
        }
    }
}

fn elements(desc: &VarDesc) -> u64 {
    desc.dims.numel().get().unwrap_or(0) as u64
}

/// A walk over the operators in order, in which shapes become known.
struct Walk<'a> {
    program: &'a Program,
    /// By variable: dtype and shape, if they are known better than declared.
    metas: HashMap<Var, Meta>,
    /// By name of a dimension: what given shapes say.
    sizes: HashMap<Arc<str>, Dim>,
    /// Parameters that some row counts.
    counted: HashSet<Var>,
}

impl<'a> Walk<'a> {
    fn row(&mut self, ops: Option<&OpInfoMap>, block: BlockId, index: usize, op: &'a OpDesc) -> Row<'a> {
        let cost = ops.and_then(|ops| self.cost(ops, block, op).ok());
        let mut parameters = 0_u64;
        for var in op.reads() {
            let desc = self.program.root().vars.get(&var).filter(|desc| desc.parameter);
            if let Some(desc) = desc.filter(|_| self.counted.insert(var)) {
                parameters = parameters.saturating_add(elements(desc));
            }
        }
        let outputs = op.writes().map(|var| OutputSummary {
            name: self.program.name(var),
            r#type: self.meta(block, var).map(|meta| meta.to_string()),
        });
        Row {
            block: block.index(),
            index,
            name: op.ty.as_str(),
            module: op.module(),
            backward: op.origin != Origin::Model,
            outputs: outputs.collect(),
            parameters,
            flops: cost.map(|cost| cost.flops),
            bytes: cost.map(|cost| cost.bytes),
        }
    }

    fn meta(&self, block: BlockId, var: Var) -> Option<Meta> {
        self.metas.get(&var).cloned().or_else(|| self.declared(block, var))
    }

    /// The type that the program declares, with the given sizes for names.
    fn declared(&self, block: BlockId, var: Var) -> Option<Meta> {
        let mut meta = self.program.lookup(block, var)?.meta();
        let size = |name: &str| self.sizes.get(name).copied();
        meta.dims.iter_mut().for_each(|dim| *dim = dim.at(&size));
        Some(meta)
    }

    /// Infers the shapes of the outputs; returns the cost of running it if all shapes are known. The cost of a block is
    /// that of its own operators.
    fn cost(&mut self, ops: &OpInfoMap, block: BlockId, op: &OpDesc) -> Result<Cost> {
        let unknown = || Error::new(ErrorKind::Shape, "a shape is unknown");
        let (info, mut found, mut is_open) = (ops.get(&op.ty)?, vec![], false);
        let of = |var| self.meta(block, var).ok_or_else(unknown);
        info.infer(op, &of, &mut |var, mut meta: Meta| {
            // The rule does not know it, even if the program does; the shape may depend on data alone.
            is_open |= meta.bytes().is_none();
            if let Some(declared) = self.declared(block, var).filter(|declared| declared.agrees(&meta)) {
                meta.dims =
                    meta.dims.iter().zip(&*declared.dims).map(|(dim, declared)| dim.or(*declared)).collect();
            }
            found.push((var, meta));
        })?;
        let is_known = |var| self.meta(block, var).is_some_and(|meta| meta.bytes().is_some());
        let cost = match !is_open && op.reads().all(is_known) {
            true if op.attrs.blocks().next().is_some() => Ok(Cost::default()),
            true => info.cost(op, &of),
            false => Err(unknown()),
        };
        self.metas.extend(found);
        cost
    }
}
