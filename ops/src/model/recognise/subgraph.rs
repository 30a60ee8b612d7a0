//! Operators that compute one value from a few others.

use std::collections::{BTreeSet, HashMap, HashSet};

use autobwd::{
    Dims, Meta, OpDesc, Program, Tensor, VarDesc,
    program::{Attr, Var},
};

use super::{declared, samples};
use crate::shape::Transpose2;

/// The operators of subgraphs, all of them analytic where they are defined.
const MEMBERS: [&str; 21] = [
    "cast",
    "elementwise_add",
    "elementwise_div",
    "elementwise_mul",
    "elementwise_pow",
    "elementwise_sub",
    "erf",
    "exp",
    "log",
    "log1p",
    "pow",
    "reciprocal",
    "reduce_mean",
    "rsqrt",
    "scale",
    "sigmoid",
    "silu",
    "softplus",
    "sqrt",
    "square",
    "tanh",
];

/// One of these is in every known function that is written out.
const MARKS: [&str; 5] = ["erf", "exp", "reduce_mean", "sigmoid", "tanh"];

/// The most operators of a subgraph, constants not counted.
const LONGEST: usize = 16;

/// Where variables of the main block are written and read.
pub(in crate::model) struct Uses {
    /// The only operator that writes a variable.
    writers: HashMap<Var, usize>,
    /// The operators that read a variable.
    readers: HashMap<Var, Vec<usize>>,
    /// Variables that others know by name.
    shared: HashSet<Var>,
    /// Variables whose values change during a run.
    changing: HashSet<Var>,
    /// Variables that hold one number, which no input changes.
    constants: HashSet<Var>,
}

impl Uses {
    pub(in crate::model) fn of(program: &Program, is_kept: impl Fn(Var) -> bool) -> Uses {
        let mut uses = Uses {
            writers: HashMap::new(),
            readers: HashMap::new(),
            shared: HashSet::new(),
            changing: HashSet::new(),
            constants: HashSet::new(),
        };
        for block in &program.blocks()[1..] {
            uses.shared.extend(block.ops.iter().flat_map(|op| op.reads().chain(op.writes())));
            uses.changing.extend(block.ops.iter().flat_map(OpDesc::writes));
        }
        for (i, op) in program.root().ops.iter().enumerate() {
            if op.attrs.blocks().next().is_some() {
                uses.shared.extend(op.reads().chain(op.writes()));
            }
            op.reads().for_each(|var| uses.readers.entry(var).or_default().push(i));
            for var in op.writes() {
                let is_kept_between_runs = program.root().vars.get(&var).is_some_and(|desc| desc.persistable);
                if uses.writers.insert(var, i).is_some() || is_kept_between_runs {
                    uses.changing.insert(var);
                }
                if uses.changing.contains(&var) || is_kept(var) {
                    uses.shared.insert(var);
                }
            }
        }
        for op in &program.root().ops {
            let is_number = |var: Var| {
                program.root().vars.get(&var).is_some_and(|desc| {
                    desc.dims.numel().get() == Some(1) && !desc.persistable && !uses.shared.contains(&var)
                })
            };
            let makes = ["assign_value", "fill_constant", "cast"].contains(&&*op.ty);
            if makes && op.writes().all(is_number) && op.reads().all(|var| uses.constants.contains(&var)) {
                uses.constants.extend(op.writes());
            }
        }
        uses
    }

    /// Whether a variable has one value during a run.
    pub(in crate::model) fn is_fixed(&self, var: Var) -> bool {
        !self.changing.contains(&var)
    }

    /// Whether a variable holds one number, which no input changes.
    pub(super) fn is_constant(&self, var: Var) -> bool {
        self.constants.contains(&var)
    }

    /// Whether a variable is the number 0.
    pub(super) fn is_zero(&self, program: &Program, var: Var) -> bool {
        let Some((_, op)) = self.writer(program, var).filter(|_| self.is_constant(var)) else { return false };
        let is = |name, zero: Attr| op.attrs.get(name) == Some(&zero);
        match &*op.ty {
            "assign_value" => {
                is("fp32_values", Attr::F32s(vec![0.0])) || is("fp64_values", Attr::F64s(vec![0.0]))
            }
            ty => {
                ty == "fill_constant"
                    && is("value", Attr::F32(0.0))
                    && is("str_value", Attr::Str(String::new()))
            }
        }
    }

    /// The only operator that writes a variable.
    pub(super) fn writer<'p>(&self, program: &'p Program, var: Var) -> Option<(usize, &'p OpDesc)> {
        let i = *self.writers.get(&var)?;
        let desc = program.root().vars.get(&var)?;
        (!desc.persistable).then(|| (i, &program.root().ops[i]))
    }

    /// The transposition that writes a variable, through which gradients pass: its place, its input and its order.
    pub(super) fn transposition<'p>(
        &self,
        program: &'p Program,
        var: Var,
    ) -> Option<(usize, Var, &'p [i32])> {
        let (i, op) = self.writer(program, var).filter(|(_, op)| op.is::<Transpose2>())?;
        let is_end = program.root().vars.get(&var).is_none_or(|desc| desc.stop_gradient);
        let (Some(Attr::I32s(order)), [x]) = (op.attrs.get("axis").filter(|_| !is_end), op.inputs.get("X"))
        else {
            return None;
        };
        Some((i, *x, order))
    }

    /// Whether others know a variable by name.
    pub(in crate::model) fn is_shared(&self, var: Var) -> bool {
        self.shared.contains(&var)
    }

    /// The only operator that reads a variable, if it reads it once and others do not know the variable by name.
    pub(in crate::model) fn only_reader(&self, var: Var) -> Option<usize> {
        match self.readers.get(&var)?[..] {
            [reader] => Some(reader).filter(|_| !self.is_shared(var) && self.is_fixed(var)),
            _ => None,
        }
    }

    /// The only operator that writes a variable.
    pub(in crate::model) fn written_at(&self, var: Var) -> Option<usize> {
        self.writers.get(&var).copied()
    }

    /// Whether only these operators read a variable.
    pub(in crate::model) fn is_read_by(&self, var: Var, readers: impl Fn(usize) -> bool) -> bool {
        !self.shared.contains(&var)
            && self.readers.get(&var).is_none_or(|all| all.iter().all(|i| readers(*i)))
    }

    /// The operators that compute nothing but what the operator `end` makes of it, if they may be a known function.
    pub(super) fn subgraph(&self, program: &Program, end: usize, taken: &HashSet<usize>) -> Option<Subgraph> {
        let ops = &program.root().ops;
        let output = self.output(program, end, taken)?;
        let (mut members, mut open) = (BTreeSet::from([end]), BTreeSet::new());
        let produced = |i: usize| ops[i].reads().filter_map(|var| self.writers.get(&var).copied());
        open.extend(produced(end).filter(|i| *i < end));
        // A value is only used here if all its readers are, which come after it.
        while let Some(i) = open.pop_last()
            && members.len() < LONGEST
        {
            let Some(var) = self.output(program, i, taken) else { continue };
            let is_inner = self.is_read_by(var, |reader| members.contains(&reader));
            if is_inner && !self.constants.contains(&var) {
                members.insert(i);
                open.extend(produced(i).filter(|producer| *producer < i));
            }
        }
        let is_marked = members.len() > 1 && members.iter().any(|i| MARKS.contains(&&*ops[*i].ty));
        is_marked.then(|| Subgraph {
            ops: members.into_iter().collect(),
            inputs: vec![],
            output,
            bypassed: vec![],
        })
    }

    /// The only variable that an operator of a subgraph writes.
    fn output(&self, program: &Program, i: usize, taken: &HashSet<usize>) -> Option<Var> {
        let op = &program.root().ops[i];
        let mut outputs = op.writes();
        let (var, None) = (outputs.next()?, outputs.next()) else { return None };
        let desc = declared(program, var)?;
        let is_member = MEMBERS.contains(&&*op.ty) && !taken.contains(&i) && !desc.stop_gradient;
        (is_member && !desc.persistable && self.writers.get(&var) == Some(&i)).then_some(var)
    }
}

/// Operators that compute `output` from `inputs`.
pub(super) struct Subgraph {
    /// In ascending order.
    pub(super) ops: Vec<usize>,
    pub(super) inputs: Vec<Var>,
    pub(super) output: Var,
    /// Operators before it whose results it does not need any more.
    pub(super) bypassed: Vec<usize>,
}

impl Subgraph {
    /// The subgraphs within this one that have the same output, each with another tensor as its input, the largest first.
    pub(super) fn parts(&self, program: &Program, uses: &Uses) -> Vec<Subgraph> {
        let read = self.ops.iter().flat_map(|i| program.root().ops[*i].reads());
        let mut tensors: Vec<Var> = read.filter(|var| !uses.constants.contains(var)).collect();
        tensors.sort_by_key(|var| uses.writers.get(var).map_or(0, |i| i + 1));
        tensors.dedup();
        let parts = tensors.into_iter().filter_map(|tensor| self.part(program, uses, tensor));
        let mut parts: Vec<Subgraph> = parts.filter(|part| part.ops.len() > 1).collect();
        parts.sort_by_key(|part| std::cmp::Reverse(part.ops.len()));
        parts
    }

    fn part(&self, program: &Program, uses: &Uses, tensor: Var) -> Option<Subgraph> {
        let (dims, rank) = (&declared(program, tensor)?.dims, declared(program, self.output)?.dims.len());
        if dims.len() != rank || rank == 0 {
            return None;
        }
        let is_row = |var: Var| {
            let row = declared(program, var).map(|desc| &desc.dims);
            row.is_some_and(|row| rank > 1 && row.len() == 1 && row.last() == dims.last())
        };
        let (mut ops, mut inputs, mut open) = (BTreeSet::new(), vec![tensor], vec![self.output]);
        while let Some(var) = open.pop() {
            if inputs.contains(&var) || uses.constants.contains(&var) {
                continue;
            }
            match uses.writers.get(&var).filter(|i| self.ops.binary_search(i).is_ok()) {
                _ if is_row(var) => inputs.push(var),
                Some(i) => {
                    ops.insert(*i);
                    open.extend(program.root().ops[*i].reads());
                }
                None => return None,
            }
        }
        let known = dims.last().is_some_and(|dim| dim.get().is_some());
        let dtype = |var: Var| declared(program, var).map(|desc| desc.dtype);
        let written = ops.iter().flat_map(|i| program.root().ops[*i].writes());
        let has_one_dtype = written.chain([tensor]).all(|var| dtype(var) == dtype(self.output));
        (has_one_dtype && (inputs.len() == 1 || known && inputs.len() <= 3)).then(|| Subgraph {
            ops: ops.into_iter().collect(),
            inputs,
            output: self.output,
            bypassed: vec![],
        })
    }

    /// Whether an operator is in the subgraph.
    pub(super) fn has(&self, program: &Program, ty: &str) -> bool {
        self.ops.iter().any(|i| &*program.root().ops[*i].ty == ty)
    }

    /// The operators of the subgraph and of its constants.
    pub(super) fn all_ops<'p>(&self, program: &'p Program, uses: &Uses) -> impl Iterator<Item = &'p OpDesc> {
        let (mut all, mut open) = (BTreeSet::new(), self.ops.clone());
        while let Some(i) = open.pop() {
            if all.insert(i) {
                let constants = program.root().ops[i].reads().filter(|var| uses.constants.contains(var));
                open.extend(constants.filter_map(|var| uses.writers.get(&var)));
            }
        }
        all.into_iter().map(|i| &program.root().ops[i])
    }

    /// The subgraph as a program, for inputs of any size; equal for subgraphs that compute the same in the same way.
    pub(super) fn program(&self, program: &Program, uses: &Uses) -> Option<Program> {
        let mut part = Program::new();
        let mut ops: Vec<OpDesc> = self.all_ops(program, uses).cloned().collect();
        let mut named = HashMap::from([(self.output, part.var(samples::OUTPUT))]);
        for (i, (input, meta)) in self.inputs.iter().zip(self.open_inputs(program)?).enumerate() {
            let var = part.var(&samples::input(i));
            part.root_mut().vars.insert(var, VarDesc::data(meta.dtype, meta.dims));
            named.insert(*input, var);
        }
        for op in &mut ops {
            op.site = None;
            for var in op.inputs.args_mut().chain(op.outputs.args_mut()).filter(|var| **var != Var::EMPTY) {
                let desc = program.root().vars.get(var)?;
                *var = *named.entry(*var).or_insert_with(|| part.fresh("v"));
                if !part.root().vars.contains_key(var) {
                    let desc = VarDesc::new(desc.dtype, unknown(desc.dims.len()));
                    part.root_mut().vars.insert(*var, desc);
                }
            }
        }
        part.root_mut().ops = ops;
        Some(part)
    }

    /// The inputs, with unknown dimensions.
    pub(super) fn open_inputs(&self, program: &Program) -> Option<Vec<Meta>> {
        let open = |desc: &VarDesc| Meta::new(desc.dtype, unknown(desc.dims.len()));
        self.inputs.iter().map(|input| declared(program, *input).map(open)).collect()
    }

    /// A sample of each input.
    pub(super) fn samples(&self, program: &Program) -> Option<Vec<Tensor>> {
        let sample = |(i, input): (usize, &Var)| {
            let desc = declared(program, *input)?;
            match i {
                0 => samples::tensor(desc.dtype, desc.dims.len()),
                row => samples::row(desc.dtype, row),
            }
        };
        self.inputs.iter().enumerate().map(sample).collect()
    }
}

/// Unknown dimensions.
fn unknown(rank: usize) -> Dims {
    std::iter::repeat_n(autobwd::tensor::Dim::UNKNOWN, rank).collect()
}
