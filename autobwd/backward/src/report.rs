//! Report of a backward pass: for every requested variable, the path of its gradient, or the place where it ends.

use std::{fmt, iter};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    checkpoints::RecomputeReport,
    flow::{given_for, incoming, listed},
};
use autobwd_core::{
    __private::internals::*, BlockId, CarriedInit, DType, GradKind, Name, OpDesc, OpInfoMap, Origin, Program,
    Site, StepCount, Var,
};

/// The result of [`append_backward`](crate::append_backward) and [`gradients`](crate::gradients): every requested
/// variable is in one of the two lists.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Gradients {
    /// Variables with their gradients, in the order of the request.
    pub pairs: Vec<(Var, Var)>,
    /// Variables without gradient, each with the reason, in the order of the request.
    pub missing: Vec<MissingGradient>,
    /// Places where part of a gradient ends: variables marked `stop_gradient` that are computed from a differentiable
    /// variable and that a target depends on, also in sub-blocks. None of them is named in `missing`.
    pub partial: Vec<PathEnd>,
    /// The forward values that the backward pass recomputes.
    pub recomputed: RecomputeReport,
    pub(super) asked: Vec<Var>,
}

impl Gradients {
    /// The gradient, if any, of every requested variable, in order.
    pub fn entries(&self) -> Vec<Option<Var>> {
        let mut pairs = self.pairs.iter().peekable();
        let grad = |var: &Var| pairs.next_if(|(v, _)| v == var).map(|(_, grad)| *grad);
        self.asked.iter().map(grad).collect()
    }

    /// The gradient of a requested variable, if any.
    pub fn of(&self, var: Var) -> Option<Var> {
        self.pairs.iter().find(|(v, _)| *v == var).map(|(_, grad)| *grad)
    }

    /// A line for every requested variable: the operators on the path of its gradient, or the place where the path
    /// ends. Further lines name the other places where part of a gradient ends, and checkpoints without effect.
    /// `program` is the differentiated one.
    ///
    /// ```
    /// # use autobwd::{Backward, Builder, DType, append_backward};
    /// # use autobwd_ops::{Init, Math};
    /// let net = Builder::new();
    /// let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
    /// let b = net.parameter("b", DType::F32, &[2], |b| Init::Constant(0.0).emit(b, 0));
    /// let loss = (w.square() + b.detach()).mean();
    /// let mut program = net.program()?.clone();
    /// let found = append_backward(&mut program, &loss.name(), &Backward::default())?;
    /// let report = found.report(&program).to_string();
    /// let lines: Vec<_> = report.lines().collect();
    /// assert!(lines[0].starts_with("`w` has the gradient `w@GRAD`: through operator 0 `square`"));
    /// assert!(lines[1].starts_with("`b` has no gradient: its path to `mean_0` ends at `assign_0`"));
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    pub fn report<'a>(&'a self, program: &'a Program) -> impl fmt::Display + 'a {
        fmt::from_fn(move |f| {
            if let Err(e) = program.check_structure() {
                return write!(f, "{e}");
            }
            let hops = gradient_hops(program);
            let mut newline = "";
            for (var, grad) in &self.pairs {
                write!(f, "{newline}`{}` has the gradient `{}`", program.name(*var), program.name(*grad))?;
                if let Some(hop) = hops.get(grad.index()).copied().flatten() {
                    let ops = &program.root().ops;
                    let next = |hop: &Hop| hops[hop.from.index()].filter(|next| next.length < hop.length);
                    let way = iter::successors(Some(hop), next);
                    let through =
                        way.filter_map(|hop| Some(OpLocation::of(hop.through?, ops.get(hop.through?)?)));
                    if hop.length > 0 {
                        write!(f, ": through {}", listed(through, hop.length))?;
                    }
                    write!(f, " to `{}`", program.name(hop.start))?;
                }
                newline = "\n";
            }
            for missing in &self.missing {
                write!(f, "{newline}{missing}")?;
                newline = "\n";
            }
            for cut in &self.partial {
                write!(f, "{newline}{cut}")?;
                newline = "\n";
            }
            if !self.recomputed.without_effect.is_empty() {
                write!(f, "{newline}{}", self.recomputed)?;
            }
            Ok(())
        })
    }
}

/// One step of a gradient's path from its seed.
#[derive(Clone, Copy)]
struct Hop {
    /// The forward operator that it passes through; none at the seed.
    through: Option<usize>,
    /// The upstream gradient at that operator.
    from: Var,
    /// The number of forward operators between here and the seed.
    length: usize,
    /// The target.
    start: Var,
}
impl Hop {
    fn start(start: Var) -> Hop {
        Hop { through: None, from: Var::EMPTY, length: 0, start }
    }
}

/// By gradient: the shortest path to it.
fn gradient_hops(program: &Program) -> Vec<Option<Hop>> {
    let root = program.root();
    let mut hops: Vec<Option<Hop>> = vec![None; program.name_count()];
    let mut written = vec![false; program.name_count()];
    for op in root.ops.iter().filter(|op| op.origin != Origin::Model) {
        // A gradient without writer was given.
        let hop_of = |v: Var| match written[v.index()] {
            true => hops[v.index()],
            false => Some(Hop::start(given_for(program, BlockId::ROOT, op, v).unwrap_or(v))),
        };
        let arriving = incoming(program, BlockId::ROOT, op).into_iter().filter_map(|v| Some((v, hop_of(v)?)));
        let hop = match (op.origin, arriving.min_by_key(|(_, hop)| hop.length)) {
            (Origin::Seed, _) => op.writes().next().map(|grad| {
                let target = root.vars.get(&grad).and_then(|desc| desc.gradient_of);
                Hop::start(target.unwrap_or(grad))
            }),
            (Origin::Gradient { of }, Some((from, hop))) if hop.through != Some(of) => {
                Some(Hop { through: Some(of), from, length: hop.length + 1, ..hop })
            }
            // A sum, or another step of the same rule.
            (_, nearest) => nearest.map(|(_, hop)| hop),
        };
        for var in op.writes() {
            hops[var.index()] = hop;
            written[var.index()] = true;
        }
    }
    hops
}

/// An operator of the root block, as reports name it: `` operator 3 `mul` (model.rs:12) ``.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct OpLocation {
    /// Its position.
    pub index: usize,
    /// Its type.
    pub ty: Name,
    /// The line that added it.
    pub site: Option<Site>,
}
impl OpLocation {
    pub(super) fn of(index: usize, op: &OpDesc) -> OpLocation {
        OpLocation { index, ty: op.ty, site: op.site }
    }
}
impl fmt::Display for OpLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "operator {} `{}`", self.index, self.ty)?;
        self.site.map_or(Ok(()), |site| write!(f, " ({site})"))
    }
}

/// A variable without gradient, and the reason.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MissingGradient {
    /// The variable.
    pub var: Var,
    /// Its name.
    pub name: String,
    /// The targets: `` `mean_0` ``.
    pub targets: String,
    /// The place where its path ends.
    pub cut: PathEnd,
}

/// The place where the path from a variable to the targets ends.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum PathEnd {
    /// No chain of operators leads to a target.
    NoPath,
    /// No gradient flows into a variable on the path.
    Variable {
        /// Its name.
        name: String,
        /// The reason.
        stop: StopReason,
        /// The operator that writes it.
        writer: Option<OpLocation>,
    },
    /// An operator on the path passes no gradient to one of its inputs.
    Operator {
        /// The operator.
        op: OpLocation,
        /// The input.
        slot: Name,
        /// The variable in it.
        name: String,
    },
    /// It ends within the sub-block of an operator.
    Block {
        /// The operator.
        op: OpLocation,
        /// The place in its sub-block.
        within: Box<PathEnd>,
    },
}

impl PathEnd {
    /// Whether it ends at a variable of this name, also within a sub-block.
    fn is_at(&self, var: &str) -> bool {
        match self {
            PathEnd::Variable { name, .. } => name == var,
            PathEnd::Block { within, .. } => within.is_at(var),
            PathEnd::NoPath | PathEnd::Operator { .. } => false,
        }
    }
}

/// The reason why no gradient flows into a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// It is in the caller's no-grad set.
    NoGradSet,
    /// It is marked `stop_gradient`.
    StopGradient,
    /// Its dtype is not a floating point type.
    DType(DType),
}

impl fmt::Display for MissingGradient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MissingGradient { name, targets, cut, .. } = self;
        write!(f, "`{name}` has no gradient: ")?;
        match cut {
            PathEnd::NoPath => write!(f, "no path leads from it to {targets}"),
            PathEnd::Variable { name: own, stop, .. } if own == name => write!(f, "it {stop}"),
            PathEnd::Variable { name, stop, writer } => {
                write!(f, "its path to {targets} ends at `{name}`, which {stop}")?;
                writer.map_or(Ok(()), |op| write!(f, "; {op} writes it"))
            }
            PathEnd::Operator { op, slot, name } => {
                write!(
                    f,
                    "its path to {targets} ends at {op}, which passes no gradient on to {slot} = `{name}`"
                )
            }
            PathEnd::Block { op, within } => write!(f, "its path to {targets} ends in {op}, where {within}"),
        }
    }
}
impl fmt::Display for PathEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathEnd::NoPath => write!(f, "no path"),
            PathEnd::Variable { name, stop, writer } => {
                write!(f, "no gradient flows through `{name}`, which {stop}")?;
                writer.map_or(Ok(()), |op| write!(f, "; {op} writes it"))
            }
            PathEnd::Operator { op, slot, name } => {
                write!(f, "{op} passes no gradient on to {slot} = `{name}`")
            }
            PathEnd::Block { op, within } => write!(f, "in {op}, {within}"),
        }
    }
}
impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopReason::NoGradSet => write!(f, "is in the no-grad set"),
            StopReason::StopGradient => write!(f, "is marked `stop_gradient`"),
            StopReason::DType(dtype) => write!(f, "holds {dtype}, not floating point numbers"),
        }
    }
}

/// The marked variables that lead to a target and are not named by `missing`. Those of sub-blocks have their block.
pub(super) fn partial(
    program: &Program,
    targets: &[Var],
    marked: &[Var],
    within: &[(BlockId, Var)],
    missing: &[MissingGradient],
) -> Vec<PathEnd> {
    let is_named = |var: Var| {
        let name = program.name(var);
        missing.iter().any(|m| m.name == name || m.cut.is_at(name))
    };
    if marked.is_empty() && within.is_empty() {
        return vec![];
    }
    // By marked variable of a sub-block.
    let mut writers: FxHashMap<(BlockId, Var), OpLocation> = FxHashMap::default();
    for id in within.iter().map(|(block, _)| *block).collect::<FxHashSet<_>>() {
        for (i, op) in program.block(id).iter().flat_map(|block| block.ops.iter().enumerate()) {
            writers.extend(op.writes().map(|var| ((id, var), OpLocation::of(i, op))));
        }
    }
    let end = |var: Var, writer: Option<OpLocation>| PathEnd::Variable {
        name: program.name(var).to_string(),
        stop: StopReason::StopGradient,
        writer,
    };
    // By sub-block of the root block.
    let mut cuts: FxHashMap<BlockId, Vec<(BlockId, Var)>> = FxHashMap::default();
    for (block, var) in within.iter().filter(|(_, var)| !is_named(*var)) {
        let ancestors = iter::successors(Some(*block), |at| program.block(*at)?.parent);
        let outermost = ancestors.take_while(|at| *at != BlockId::ROOT).last();
        outermost.into_iter().for_each(|outermost| cuts.entry(outermost).or_default().push((*block, *var)));
    }
    let n = program.name_count();
    let (mut leads, mut is_marked, mut found) = (vec![false; n], vec![false; n], vec![]);
    targets.iter().for_each(|v| leads[v.index()] = true);
    marked.iter().for_each(|v| is_marked[v.index()] = true);
    for (i, op) in program.root().ops.iter().enumerate().rev() {
        let mut on_path = false;
        for var in op.writes().filter(|v| leads[v.index()]) {
            on_path = true;
            if std::mem::take(&mut is_marked[var.index()]) && !is_named(var) {
                found.push(end(var, Some(OpLocation::of(i, op))));
            }
        }
        let cuts = op.attrs.blocks().filter(|_| on_path).filter_map(|block| cuts.remove(&block)).flatten();
        found.extend(cuts.map(|(block, var)| PathEnd::Block {
            op: OpLocation::of(i, op),
            within: Box::new(end(var, writers.get(&(block, var)).copied())),
        }));
        op.reads().filter(|_| on_path).for_each(|v| leads[v.index()] = true);
    }
    found.reverse();
    found
}

/// The first place in a sub-block of `owner` where all gradients of values computed from `inputs` may end: a variable
/// marked `stop_gradient`, else an operator that passes no gradient on, else integers.
fn end_within(
    program: &Program,
    (owner, block): (&OpDesc, BlockId),
    inputs: &FxHashSet<Var>,
    ops: Option<&OpInfoMap>,
) -> Option<PathEnd> {
    let own = program.block(block)?;
    let call = ops.and_then(|ops| ops.get(&owner.ty).ok()?.call(owner, program).ok()?);
    // Pairs of a value and its name elsewhere in the block: at the start, and at the start of the next step.
    let mut renamed: Vec<(Var, Var)> = vec![];
    if let Some(call) = call.filter(|call| call.block == block) {
        renamed.extend(call.slices.iter().map(|(outer, inner, _)| (*outer, *inner)));
        for carried in &call.carried {
            if let CarriedInit::Value(first, _) = carried.first {
                renamed.push((first, carried.start));
            }
            if !matches!(call.steps, StepCount::If(_)) {
                renamed.push((carried.end, carried.start));
            }
        }
    }
    let mut reached = inputs.clone();
    let reads = |op: &OpDesc, reached: &FxHashSet<Var>| op.reads().find(|v| reached.contains(v));
    // A later step goes on with what an earlier one has reached.
    loop {
        let known = reached.len();
        for (value, name) in &renamed {
            reached.extend(reached.contains(value).then_some(*name));
        }
        let readers = own.ops.iter();
        readers.for_each(|op| {
            reached.extend(op.writes().filter(|_| reads(op, &reached).is_some()).collect::<Vec<_>>())
        });
        if reached.len() == known {
            break;
        }
    }
    let on_path = || own.ops.iter().enumerate().filter_map(|(i, op)| Some((i, op, reads(op, &reached)?)));
    let stopped = |of_dtype: bool| {
        on_path().find_map(|(i, op, _)| {
            let stop = |var: Var| {
                let desc = own.vars.get(&var)?;
                match desc.dtype.is_float() {
                    true => (desc.stop_gradient && !of_dtype).then_some(StopReason::StopGradient),
                    false => of_dtype.then_some(StopReason::DType(desc.dtype)),
                }
            };
            let (var, stop) = op.writes().find_map(|var| Some((var, stop(var)?)))?;
            let writer = Some(OpLocation::of(i, op));
            Some(PathEnd::Variable { name: program.name(var).to_string(), stop, writer })
        })
    };
    let inner = || {
        on_path().find_map(|(i, op, _)| {
            let within = op.attrs.blocks().find_map(|id| end_within(program, (op, id), &reached, ops))?;
            Some(PathEnd::Block { op: OpLocation::of(i, op), within: Box::new(within) })
        })
    };
    let zero = || {
        on_path().find(|(_, op, _)| is_zero(ops, op)).map(|(i, op, read)| PathEnd::Operator {
            op: OpLocation::of(i, op),
            slot: op.inputs.slot_of(read).unwrap_or("".into()),
            name: program.name(read).to_string(),
        })
    };
    stopped(false).or_else(inner).or_else(zero).or_else(|| stopped(true))
}

/// The place where the path of a gradient ends.
#[derive(Clone, Copy)]
struct ForwardEnd {
    /// The operator that passes no gradient on.
    reader: usize,
    /// Its input without gradient, or a variable without gradient that it reads or writes.
    at: Var,
    /// Whether operator or variable never have a gradient; else the gradient may just not have been needed.
    certain: bool,
}

/// Whether the gradients of an operator are known to be zero for any upstream gradient.
fn is_zero(ops: Option<&OpInfoMap>, op: &OpDesc) -> bool {
    let info = ops.and_then(|ops| ops.get(&op.ty).ok());
    info.is_some_and(|info| matches!(info.grad_kind(), GradKind::Zero))
}

/// The places where the paths of variables without gradient end. `no_grad` says, by variable, whether it was excluded;
/// `having` are those with a gradient. Without `ops`, operators whose gradients are always zero are not known, nor what
/// loops carry from step to step under another name.
pub fn missing(
    program: &Program,
    targets: &[Var],
    no_grad: &[bool],
    having: impl Iterator<Item = Var>,
    ops: Option<&OpInfoMap>,
    asked: &[Var],
) -> Vec<MissingGradient> {
    if asked.is_empty() {
        return vec![];
    }
    let (root, n) = (program.root(), program.name_count());
    let (mut leads, mut produced) = (vec![false; n], vec![false; n]);
    targets.iter().for_each(|v| leads[v.index()] = true);
    having.chain(targets.iter().copied()).for_each(|v| produced[v.index()] = true);
    let stop = |var: Var| match root.vars.get(&var) {
        Some(desc) if !desc.dtype.is_float() => Some(StopReason::DType(desc.dtype)),
        Some(desc) if desc.stop_gradient => Some(StopReason::StopGradient),
        _ => no_grad.get(var.index()).is_some_and(|no| *no).then_some(StopReason::NoGradSet),
    };
    // By variable that leads to a target: the place where its gradient ends.
    let mut ends: Vec<Option<ForwardEnd>> = vec![None; n];
    let mut writer: Vec<Option<usize>> = vec![None; n];
    for (i, op) in root.ops.iter().enumerate().rev() {
        op.writes().for_each(|v| writer[v.index()] = Some(i));
        let on_path = || op.writes().filter(|v| leads[v.index()]);
        if on_path().next().is_none() {
            continue;
        }
        let stopped = on_path().find(|v| stop(*v).is_some());
        let (zero, arrives) = (is_zero(ops, op), on_path().any(|v| produced[v.index()]));
        let behind = on_path().filter_map(|v| ends[v.index()]).max_by_key(|end| end.certain);
        for v in op.reads() {
            leads[v.index()] = true;
            let end = match stopped {
                Some(at) => Some(ForwardEnd { reader: i, at, certain: true }),
                None if zero || arrives => Some(ForwardEnd { reader: i, at: v, certain: zero }),
                None => behind,
            };
            let known = &mut ends[v.index()];
            let better = |end: &ForwardEnd| end.certain || !known.is_some_and(|known| known.certain);
            if let Some(end) = end.filter(better).filter(|_| !produced[v.index()]) {
                *known = Some(end);
            }
        }
    }
    let name = |var: Var| program.name(var).to_string();
    let cut = |var: Var| {
        if !leads[var.index()] {
            return PathEnd::NoPath;
        }
        let at = |var: Var, stop: StopReason| {
            let writer = writer[var.index()].map(|i| OpLocation::of(i, &root.ops[i]));
            PathEnd::Variable { name: name(var), stop, writer }
        };
        match (stop(var), ends[var.index()]) {
            (Some(stop), _) => at(var, stop),
            (None, None) => PathEnd::NoPath,
            (None, Some(ForwardEnd { reader, at: input, .. })) => {
                let op = &root.ops[reader];
                let slot = op.inputs.slot_of(input).unwrap_or("".into());
                let location = OpLocation::of(reader, op);
                let passes_none = || {
                    let inputs = FxHashSet::from_iter([input]);
                    let within =
                        op.attrs.blocks().find_map(|block| end_within(program, (op, block), &inputs, ops));
                    match within {
                        Some(within) => PathEnd::Block { op: location, within: Box::new(within) },
                        None => PathEnd::Operator { op: location, slot, name: name(input) },
                    }
                };
                stop(input).map_or_else(passes_none, |stop| at(input, stop))
            }
        }
    };
    let targets = listed(targets.iter().map(|v| format!("`{}`", program.name(*v))), targets.len());
    asked
        .iter()
        .map(|v| MissingGradient { var: *v, name: name(*v), targets: targets.clone(), cut: cut(*v) })
        .collect()
}
