//! Report of a backward pass: for every requested variable, the path of its gradient, or the place where it ends.

use std::{fmt, iter};

use crate::{
    checkpoints::RecomputeReport,
    flow::{given_for, incoming, listed},
};
use autobwd_core::{BlockId, DType, Name, OpDesc, Origin, Program, Site, Var};

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
    pub(super) fn is_at(&self, var: &str) -> bool {
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
            StopReason::DType(DType::U8) => {
                write!(f, "holds uint8, not floating point numbers; quantised weights are frozen")
            }
            StopReason::DType(dtype) => write!(f, "holds {dtype}, not floating point numbers"),
        }
    }
}
